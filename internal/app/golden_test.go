package app

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/guide"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/rest"
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

// TestGoldens protects the public contract: changes are visible in the diff.
func TestGoldens(t *testing.T) {
	a := blank(t)
	if err := a.Table.Check(); err != nil {
		t.Error(err)
	}
	testenv.Golden(t, root, "aio-openapi.json", indent(t, rest.OpenAPI(Title, "0.0.0", a.Table, rest.Guest)))
	testenv.Golden(t, root, "aio-commands.txt", []byte(cli.WriteCommands(a.Table)))
	testenv.Golden(t, root, "aio-mcp-tools.json", indent(t, a.tools.List("tools=all")))
	cmd, err := AioCommand("0.0.0", nil, host.Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cli.Tree(cmd, &b)
	testenv.Golden(t, root, "aio-cli.txt", b.Bytes())
	testenv.Golden(t, root, "../docs/settings.md", settingsPage(config.Fields(&config.Aio{})))
	testenv.Golden(t, root, "../docs/settings-hub.md", hubSettingsPage(config.Fields(&config.Cove{})))
	testenv.Golden(t, root, "../docs/errors.md", errorsPage(t))
	page, err := guide.Render(os.DirFS(filepath.Join(root, "docs"))) // last, because the pages above are its chapters
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, root, "../web/guide/index.html", page)
	pictures, err := guide.Screenshots(os.DirFS(filepath.Join(root, "docs")), page)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range pictures {
		testenv.Golden(t, root, "../web/guide/pictures/"+name, data)
	}
}

// settingsPage lists the settings of a sandbox for readers.
func settingsPage(fields []config.Field) []byte {
	var b bytes.Buffer
	b.WriteString(`# Settings of a sandbox

<!-- Written by make gen from internal/config/aiodoc.go. -->

Each setting has a variable, a flag of ` + "`aio serve`" + ` (` + "`public_port`" + ` is ` + "`--public-port`" +
		`) and a key in the file. Flags
override variables, which override the file. An invalid value prevents the start; the error names it. Variables
without ` + "`AIO_`" +
		` have the names of the public sandbox image, so an environment for that image works. Programs in
the sandbox inherit all other variables (` + "`PIP_INDEX_URL`, `UV_INDEX_URL`, `NPM_CONFIG_REGISTRY`, " +
		"`GITHUB_TOKEN`" + ` and
others), but not those marked *secret*.

`)
	writeSettings(&b, fields)
	b.WriteString(`
The image's entrypoint (` + "`deploy/entrypoint.sh`" + `) also reads these variables:

| variable | effect |
|---|---|
| ` + "`USER`" + ` | Name of the user with the IDs ` + "`USER_UID`" + ` and ` + "`USER_GID`" + `. |
| ` + "`WAIT_PORTS`" + ` | Ports to wait for. 8079 and 8091 of the public image count as open: one server has all components. |
| ` + "`CODEX_CONFIG_TOML`, `CODEX_MODEL_CATALOG_JSON`, `OPENCODE_JSON`" + ` | Complete configuration files of these agents. |
| ` + "`CODEX_MODEL`, `CODEX_BASE_URL`" + ` | Without a file: model and server of Codex. Its key is in ` +
		"`CODEX_API_KEY`, `ARK_API_KEY` or `OPENAI_API_KEY`" + `. |
| ` + "`OPENCODE_MODEL`, `OPENCODE_PROVIDER`, `OPENCODE_PROVIDER_NPM`, `OPENCODE_BASE_URL`, `OPENCODE_API_KEY`" +
		` | Without a file: settings of opencode. |

It listens on all addresses, on ` + "`PUBLIC_PORT`" + `, and writes logs to ` + "`/var/log/gem`" + `. Configuration files contain
the name of the variable with the key, never the key. A file that you have changed is not overwritten.
`)
	return b.Bytes()
}

// hubSettingsPage lists the settings of the hub.
func hubSettingsPage(fields []config.Field) []byte {
	var b bytes.Buffer
	b.WriteString(`# Settings of the hub

<!-- Written by make gen from internal/config/covedoc.go. -->

Each setting has a variable, a flag of ` + "`cove hub`" + ` (` + "`memory_limit`" + ` is ` + "`--memory-limit`" +
		`) and a key in the file
(` + "`--config`" + `, ` + "`COVE_CONFIG`" + ` or ` + "`/etc/cove/config.yaml`" + `). Flags override variables, which override the file.
` + "`cove config`" + ` prints each value with its origin.

`)
	writeSettings(&b, fields)
	return b.Bytes()
}

func writeSettings(b *bytes.Buffer, fields []config.Field) {
	b.WriteString("| variable | setting | default | what it does |\n|---|---|---|---|\n")
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
		fmt.Fprintf(b, "| %s | `%s` | %s | %s |\n", strings.Join(names, ", "), f.Key, value, doc)
	}
}

// meanings describes when each code is returned and what to do.
var meanings = map[op.Code]string{
	op.Invalid: "The input is invalid; the message describes what to change. Errors in fields return " +
		"422 with a list of all errors.",
	op.Unauthenticated: "Credentials are missing or invalid. Send a key or a token.",
	op.Denied:          "The caller does not have permission. Use a key with more permissions.",
	op.NotFound:        "The object does not exist, or the caller may not see it.",
	op.Conflict:        "The state conflicts: the object already exists or is in use, or a person has taken control. Retry later.",
	op.Exhausted:       "A limit is reached. Retry after the time in `Retry-After`; without it, release resources first.",
	op.TooLarge:        "The request or its result is too large. Send or request less.",
	op.Unavailable:     "A required component is not running or not installed; the message names it. Retry, or install it.",
	op.Upstream:        "An external service, such as an image registry, failed or is unreachable; the message has the reason.",
	op.Canceled:        "The client closed the connection before the response.",
	op.Unsupported:     "This machine, provider or sandbox does not support it.",
	op.Internal:        "A bug in Cove. The response contains the request ID of the log entry.",
}

// errorsPage lists the codes of failures, as internal/api/op declares them, and the exit codes.
func errorsPage(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(`# Error codes

<!-- Written by make gen from internal/api/op/error.go. -->

A failed call of a sandbox returns a status and a JSON object whose ` + "`message`" + ` or ` + "`detail`" + ` describes what
failed, why, and what to do. Over MCP the same text is the result, with ` + "`isError`" + `.

| code | status | meaning and solution |
|---|---|---|
`)
	for _, code := range declaredCodes(t) {
		if meanings[code] == "" {
			t.Errorf("the code %s has no meaning here", code)
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", code, code.HTTPStatus(), meanings[code])
	}
	b.WriteString("\n## Exit codes of the command line\n\n| code | meaning |\n|---|---|\n")
	for line := range strings.Lines(cli.ExitHelp) {
		if code, meaning, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			fmt.Fprintf(&b, "| %s | %s |\n", code, meaning)
		}
	}
	return b.Bytes()
}

// declaredCodes reads the codes from the source, so that the list is complete.
func declaredCodes(t *testing.T) (codes []op.Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "internal/api/op/error.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
				value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				codes = append(codes, op.Code(value))
			}
		}
		return true
	})
	return codes
}

func indent(t *testing.T, v any) []byte {
	t.Helper()
	b, err := op.JSON(v)
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Indent(t, b)
}
