package app

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

var update = flag.Bool("update", false, "rewrite the golden files under api/")

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
	golden(t, "aio-openapi.json", indent(t, rest.OpenAPI(Title, "0.0.0", table, rest.Guest)))
	var tools []*gomcp.Tool
	for _, o := range table.All() {
		if o.Call != nil && !o.NoTool {
			tools = append(tools, mcp.Tool(o))
		}
	}
	golden(t, "aio-mcp-tools.json", indent(t, tools))
	root, err := AioCommand("0.0.0", nil, Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cli.Tree(root, &b)
	golden(t, "aio-cli.txt", b.Bytes())
}

func indent(t *testing.T, v any) []byte {
	t.Helper()
	b, err := op.JSON(v)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", " "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("..", "..", "api", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("api/%s is not what the table says; look at the change, then run make gen", name)
	}
}
