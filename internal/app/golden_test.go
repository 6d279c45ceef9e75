package app

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/testenv"
)

const root = "../.."

// blank is a sandbox that is never started.
func blank(t testing.TB) *Aio {
	t.Helper()
	a, err := NewAio(config.Aio{Listen: "127.0.0.1:8080"}, nil, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestGoldens guards the public contract: a change of it shows in the diff.
func TestGoldens(t *testing.T) {
	a := blank(t)
	testenv.Golden(t, root, "aio-openapi.json", indent(t, rest.OpenAPI(Title, "0.0.0", a.Table, rest.Guest)))
	testenv.Golden(t, root, "aio-mcp-tools.json", indent(t, a.tools.List("tools=all")))
	cmd, err := AioCommand("0.0.0", nil, host.Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cli.Tree(cmd, &b)
	testenv.Golden(t, root, "aio-cli.txt", b.Bytes())
	testenv.Golden(t, root, "../docs/settings.md", settingsPage(config.Fields(&config.Aio{})))
}

// settingsPage lists the settings of a sandbox for readers.
func settingsPage(fields []config.Field) []byte {
	var b bytes.Buffer
	b.WriteString(`# Settings of a sandbox

<!-- Written by make gen from internal/config/aio.go. -->

Each setting has a variable, a flag of ` + "`aio serve`" + ` (` + "`public_port`" + ` is ` + "`--public-port`" + `) and a key in the file. Flags override variables, which override the file.
A wrong value stops the start with an error that names it. Variables without ` + "`AIO_`" + ` have the names that the public sandbox image uses, so an environment that was written for it works.
Programs in the sandbox inherit all other variables (` + "`PIP_INDEX_URL`, `UV_INDEX_URL`, `NPM_CONFIG_REGISTRY`, `GITHUB_TOKEN`" + ` and the like); those marked *secret* they never see.

| variable | setting | default | what it does |
|---|---|---|---|
`)
	for _, f := range fields {
		names := make([]string, len(f.Env))
		for i, name := range f.Env {
			names[i] = "`" + name + "`"
		}
		value := f.Default
		if value != "" {
			value = "`" + value + "`"
		}
		doc := strings.ReplaceAll(f.Doc, "|", "\\|")
		if len(f.Enum) > 0 {
			doc += " One of: " + strings.Join(f.Enum, ", ") + "."
		}
		if f.Scrub {
			doc += " *Secret.*"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", strings.Join(names, ", "), f.Key, value, doc)
	}
	b.WriteString(`
The image's entrypoint (` + "`deploy/entrypoint.sh`" + `) also reads ` + "`USER`" + `: the name of the user that it gives the IDs of ` + "`USER_UID`" + ` and ` + "`USER_GID`" + `. It listens on all addresses, on ` + "`PUBLIC_PORT`" + `, and
writes logs to ` + "`/var/log/gem`" + `. ` + "`WAIT_PORTS`" + ` may name 8079 and 8091, ports of the public image's own parts: one server has them all, so they count as open.
` + "`CODEX_*`" + ` and ` + "`OPENCODE_*`" + ` become the configuration files of these agents: a whole file from ` + "`CODEX_CONFIG_TOML`, `CODEX_MODEL_CATALOG_JSON`" + ` or ` + "`OPENCODE_JSON`" + `, otherwise one made of
` + "`CODEX_MODEL`, `CODEX_BASE_URL`" + ` with the key in ` + "`CODEX_API_KEY`, `ARK_API_KEY` or `OPENAI_API_KEY`" + `, and of ` + "`OPENCODE_API_KEY`, `OPENCODE_MODEL`, `OPENCODE_PROVIDER`, `OPENCODE_BASE_URL`, `OPENCODE_PROVIDER_NPM`" + `.
The files name the variable that holds the key, never the key; a file that you have changed is kept.
`)
	return b.Bytes()
}

func indent(t *testing.T, v any) []byte {
	t.Helper()
	b, err := op.JSON(v)
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Indent(t, b)
}
