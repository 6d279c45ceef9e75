package cove

import (
	"bytes"
	"io"
	"log/slog"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

const root = "../../.."

// TestGoldens guards the public contract: each change to it appears in the diff.
func TestGoldens(t *testing.T) {
	h, err := New(config.Cove{Listen: "127.0.0.1:10000"}, nil, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Table.Check(); err != nil {
		t.Error(err)
	}
	b, err := op.JSON(rest.OpenAPI(Title, "0.0.0", h.Table, rest.Hub))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, root, "cove-openapi.json", testenv.Indent(t, b))
	verbs, err := h.Table.Outline()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, root, "cove-verbs.json", testenv.Indent(t, verbs))
	tools, err := op.JSON(h.tools.List("tools=all"))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, root, "cove-mcp-tools.json", testenv.Indent(t, tools))
	cmd, err := Command("0.0.0", nil, host.Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	cli.Tree(cmd, &text)
	testenv.Golden(t, root, "cove-cli.txt", text.Bytes())
}
