package app

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

// toy is a complete service: one Spec, one In, one Out, one method.
type toy struct{}

type greetIn struct {
	Name  string `json:"name" doc:"Name of a person"`
	Times int    `json:"times" doc:"Number of repetitions" default:"1" maximum:"3"`
}

type greetOut struct {
	Text string `json:"text"`
}

func (toy) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "toy_greet", Route: "POST /v1/toy/greet", Tag: "toy", Doc: "Greet a person."}, toy{}.Greet),
	}
}

func (toy) Greet(_ context.Context, in greetIn) (greetOut, error) {
	if in.Name == "missing" {
		return greetOut{}, op.Errorf(op.NotFound, "no such person; use another name")
	}
	return greetOut{strings.Repeat("hello "+in.Name+" ", in.Times)}, nil
}

// TestOneDefinitionEverySurface: a service is available over REST, in OpenAPI, as a tool and
// as a verb, with the same results.
func TestOneDefinitionEverySurface(t *testing.T) {
	var table *op.Table
	get := func() *op.Table { return table }
	tools := mcp.New(mcp.Config{Name: "t", Version: "1", Ops: func() []op.Op { return table.All() }})
	table = op.NewTable(toy{}.Ops(), rest.Docs("T", "1", get, rest.Guest, fstest.MapFS{}),
		[]op.Op{op.Handle(op.Spec{Content: op.ContentAPI, Name: "mcp", Route: "/mcp", Tag: "mcp", Doc: "Tools."}, tools)})
	server := httptest.NewServer(rest.New(rest.Config{Table: table}))
	defer server.Close()

	t.Run("rest", func(t *testing.T) {
		if got := post(t, server.URL+"/v1/toy/greet",
			`{"name":"you","times":2}`); got != `{"success":true,"message":"Operation `+
			`successful","data":{"text":"hello you hello you "},"hint":null}` {
			t.Errorf("got %s, want the greeting in an envelope", got)
		}
	})
	t.Run("openapi", func(t *testing.T) {
		res, err := http.Get(server.URL + "/v1/openapi.json")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var doc struct {
			Paths map[string]map[string]struct{ Summary string }
		}
		if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || doc.Paths["/v1/toy/greet"]["post"].Summary != "Greet a person" {
			t.Errorf("got %+v and error %v, want the summary of toy_greet", doc.Paths, err)
		}
	})
	t.Run("tool", func(t *testing.T) { toolParity(t, server.URL+"/mcp") })
	t.Run("verb", func(t *testing.T) {
		run := func(args ...string) (string, error) {
			var out bytes.Buffer
			root := &cobra.Command{Use: "t", SilenceErrors: true, SilenceUsage: true}
			cli.Add(root, cli.Config{Table: table, Client: &cli.Client{URL: server.URL},
				Stdin: strings.NewReader("stdin"), Stdout: &out, Stderr: &out, Person: func() bool { return false }})
			root.SetArgs(args)
			err := root.ExecuteContext(t.Context())
			return out.String(), err
		}
		for _, args := range [][]string{{"toy", "greet", "you", "--times", "2"}, {"toy", "greet", "--times=2", "--name", "you"}} {
			if out, err := run(args...); err != nil || out != "{\n  \"text\": \"hello you hello you \"\n}\n" {
				t.Errorf("%v: got %q and error %v, want the greeting", args, out, err)
			}
		}
		if out, err := run("toy", "greet", "-"); err != nil || !strings.Contains(out, "hello stdin") {
			t.Errorf("standard input: got %q and error %v, want hello stdin", out, err)
		}
		for want, args := range map[int][]string{
			cli.ExitFailed: {"toy", "greet", "missing"}, cli.ExitUsage: {"toy", "greet", "x", "--times", "9"},
		} {
			if _, err := run(args...); cli.Code(err) != want {
				t.Errorf("%v: got exit code %d (%v), want %d", args, cli.Code(err), err, want)
			}
		}
		for _, args := range [][]string{{"toy", "greet"}, {"toy", "sing"}, {"toy", "greet", "a", "b"}, {"toy", "greet", "a", "--times", "x"}} {
			if _, err := run(args...); cli.Code(err) != cli.ExitUsage {
				t.Errorf("%v: got exit code %d (%v), want %d", args, cli.Code(err), err, cli.ExitUsage)
			}
		}
	})
}

func toolParity(t *testing.T, url string) {
	client := gomcp.NewClient(&gomcp.Implementation{Name: "c", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &gomcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.Tools, func(tool *gomcp.Tool) bool { return tool.Name == "toy_greet" }) {
		t.Fatalf("got %d tools, want toy_greet among them", len(list.Tools))
	}
	call := func(args map[string]any) *gomcp.CallToolResult {
		r, err := session.CallTool(t.Context(), &gomcp.CallToolParams{Name: "toy_greet", Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := call(map[string]any{"name": "you"}); r.IsError || r.StructuredContent.(map[string]any)["text"] != "hello you " {
		t.Errorf("got %+v, want the greeting", r)
	}
	if r := call(map[string]any{"name": "missing"}); !r.IsError {
		t.Errorf("got %+v, want an error", r)
	}
	if r := call(map[string]any{"times": 9}); !r.IsError || !strings.Contains(r.Content[0].(*gomcp.TextContent).Text,
		`missing argument "name"; argument "times":`) {
		t.Errorf("got %+v, want all faults", r.Content[0])
	}
	// Small scripts call without a handshake.
	got := post(t, url, `{"method":"tools/call","params":{"name":"toy_greet","arguments":{"name":"bare"}}}`)
	if !strings.Contains(got, "hello bare") {
		t.Errorf("got %s, want hello bare", got)
	}
}

func post(t *testing.T, url, body string) string {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
