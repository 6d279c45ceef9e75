# Two commands do everything: make run, make test. The others are parts of them.
SHELL := /bin/bash
export PATH := $(CURDIR)/.tools/go/bin:$(CURDIR)/.tools/bin:$(PATH)
VERSION ?= $(shell git describe --tags --always --match 'v[0-9]*' 2>/dev/null | sed -n 's/^v\([0-9].*\)/\1/p')
STAMP := $(if $(VERSION),-X main.version=$(VERSION))
GO := CGO_ENABLED=0 go
PKGS ?= ./...

.PHONY: run test build check gen bench deps clean web

run: deps-run build ## install what is missing, build, serve on 127.0.0.1:8080
	AIO_VENV=$${AIO_VENV:-$(CURDIR)/.venv} exec bin/aio serve

test: deps build ## install what is missing, run all tests
	go vet $(PKGS)
	go test -race -timeout 20m $(PKGS)

build: ## bin/aio and bin/cove, each with the small program it starts, static
	$(GO) build -trimpath -ldflags '-s -w $(STAMP)' -o bin/ ./cmd/...

LINT := .tools/bin/golangci-lint
$(LINT):
	GOBIN=$(CURDIR)/.tools/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.14.0

check: $(LINT) ## format, vet, lint, house rules, goldens: fast, before every commit
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'not gofmt-ed:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet $(PKGS)
	$(LINT) run
	go test ./internal/arch ./internal/op ./internal/surface/... ./internal/config
	go test ./internal/app/... -run Golden

gen: ## rewrite the golden files under api/ from the table of operations
	go test ./internal/app/... -run Golden -update

bench: deps build ## side-by-side benchmarks: they print, they never fail
	go test ./bench ./internal/guest/jupyter ./internal/guest/node -run '^$$' -bench . -benchtime 1x -timeout 60m

deps: ## everything that tests need (make run installs the part that serving needs)
	scripts/deps all

deps-run:
	scripts/deps run

web: ## fetch the third-party parts of the pages anew
	scripts/web

clean:
	rm -rf bin
