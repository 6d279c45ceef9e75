package app

import (
	"bytes"
	"io"
	"log/slog"
	"testing"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
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
	table := blank(t).Table
	testenv.Golden(t, root, "aio-openapi.json", indent(t, rest.OpenAPI(Title, "0.0.0", table, rest.Guest)))
	var tools []*gomcp.Tool
	for _, o := range table.All() {
		if o.Call != nil && !o.NoTool {
			tools = append(tools, mcp.Tool(o))
		}
	}
	testenv.Golden(t, root, "aio-mcp-tools.json", indent(t, tools))
	cmd, err := AioCommand("0.0.0", nil, host.Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cli.Tree(cmd, &b)
	testenv.Golden(t, root, "aio-cli.txt", b.Bytes())
}

func indent(t *testing.T, v any) []byte {
	t.Helper()
	b, err := op.JSON(v)
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Indent(t, b)
}
