# Use make run to serve, and make unit and make test to test. The other targets are parts of these or for specific changes.
SHELL := /bin/bash
export PATH := $(CURDIR)/.tools/go/bin:$(CURDIR)/.tools/bin:$(PATH)
VERSION ?= $(shell git describe --tags --always --match 'v[0-9]*' 2>/dev/null | sed -n 's/^v\([0-9].*\)/\1/p')
COMMIT ?= $(shell git describe --always --abbrev=40 --dirty --exclude '*' 2>/dev/null)
STAMP := $(if $(VERSION),-X main.version=$(VERSION)) $(if $(COMMIT),-X github.com/cove-sandbox/cove/internal/app/host.commit=$(COMMIT))
GO := CGO_ENABLED=0 go
PKGS ?= ./...

.PHONY: run install unit test test-engines flaky deps-engines build dist check gen bench scale fuzz nightly deps clean web image image-hub

run: ## serve on 127.0.0.1:8080 as soon as the server is built, and install missing programs meanwhile
	scripts/deps start
	exec scripts/serve

LANE := CGO_ENABLED=0 go run ./test/lane
unit: ## tests that need only Go (3 minutes)
	$(LANE) unit

test: deps ## install missing dependencies, run all tests except those of engines (10 minutes)
	$(LANE) test

test-engines: deps-engines ## tests of Docker, Podman, Kubernetes, gVisor, image, chart, packages and arm64 (20 minutes)
	$(LANE) engines

N ?= 20
flaky: ## PKG=./internal/system/proc [RUN=TestKill] [N=20]: repeat tests under CPU load and count failures
	$(LANE) -repeat $(N) -busy 2 $(if $(RUN),-run '$(RUN)') nightly $(PKG)

PROGRAMS ?= ./cmd/...
build: ## build bin/aio, bin/cove and their helper programs, statically linked
	$(GO) build $(TRIM) -ldflags '-s -w $(STAMP)' -o bin/ $(PROGRAMS)

PREFIX ?= $(if $(filter 0,$(shell id -u)),/usr/local,$(HOME)/.local)
install: build ## install the programs in PREFIX/bin: /usr/local/bin for root, otherwise ~/.local/bin
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install bin/* '$(DESTDIR)$(PREFIX)/bin/'
	@case ":$$PATH:" in *':$(PREFIX)/bin:'*) ;; *) echo 'Add the programs to your PATH: export PATH=$(PREFIX)/bin:$$PATH' ;; esac

dist: ## build archives, Debian packages, SBOMs and checksums in dist/ for the version of the tag
	scripts/dist '$(or $(VERSION),0.1.0)' '$(if $(COMMIT),-X github.com/cove-sandbox/cove/internal/app/host.commit=$(COMMIT))'

LINT := .tools/bin/golangci-lint
$(LINT):
	GOBIN="$(CURDIR)/.tools/bin" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.14.0

check: $(LINT) ## fast checks before a commit: format, vet, lint, house rules, golden files, vulnerabilities
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'not gofmt-ed:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go mod tidy -diff
	go vet $(PKGS)
	GOARCH=arm64 $(GO) build -o /dev/null ./cmd/...
	GOOS=darwin $(GO) build -o /dev/null ./cmd/cove
	GOOS=windows $(GO) build -o /dev/null ./cmd/cove
	$(LINT) run
	@if [ -x test/page/node_modules/.bin/tsc ]; then test/page/node_modules/.bin/tsc -p web; fi # otherwise TestTypes, after make deps
	go test ./internal/dev/arch ./internal/dev/bundle ./internal/api/op ./internal/surface/... ./internal/config
	go test ./internal/app/... -run Golden
	scripts/vuln

gen: ## rewrite the golden files under api/ and lower the exceptions of internal/dev/arch
	go test ./internal/app ./internal/app/cove ./internal/dev/arch ./internal/dev/bundle -run Golden -update

bench: deps build ## benchmarks with comparisons; they print results and never fail
	scripts/deps bench || echo 'without nginx'
	go test ./bench ./internal/guest/jupyter ./internal/guest/node ./internal/hub/internal/pool ./internal/provider/kubernetes \
		-run '^$$' -bench . -benchtime 1x -timeout 60m

scale: ## measure one hub with thousands of sandboxes on a simulated cluster (docs/scale.md)
	scripts/deps scale
	go test ./bench/scale -run '^$$' -bench . -benchtime 1x -timeout 180m

FUZZTIME ?= 1m
fuzz: ## run each fuzz target for FUZZTIME, sequentially; stops at the first finding
	@for pkg in $$(go list ./...); do \
		dir=$$(go list -f '{{.Dir}}' $$pkg); \
		for target in $$(grep -hos '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -d' ' -f2); do \
			echo "$$pkg $$target"; \
			go test $$pkg -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x || exit 1; \
		done; \
	done

nightly: deps-engines ## run all tests with race detection and full iteration counts, then each fuzz target for one minute
	$(LANE) nightly
	$(MAKE) fuzz

deps: ## install the dependencies of make test (make run needs fewer, make test-engines more)
	scripts/deps test

deps-engines:
	scripts/deps engines

web: ## update the third-party code of the pages
	scripts/web

TARGET ?= full
image image-hub: TRIM := -trimpath
image: build ## build cove-sandbox:latest with Docker; TARGET=slim builds the small image, BASE selects another Debian image
	docker build -f deploy/Dockerfile --target $(TARGET) $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg PROGRAMS=prebuilt \
		-t cove-sandbox:$(TARGET) -t cove-sandbox:latest .

image-hub: build ## build cove-hub:latest for Kubernetes: the hub with the programs of its sandboxes
	docker build -f deploy/Dockerfile --target hub $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg PROGRAMS=prebuilt -t cove-hub:latest .

clean:
	rm -rf bin dist
