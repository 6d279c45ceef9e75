package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type toyIn struct {
	Mode string `json:"mode" default:"" doc:"What to do"`
	N    int    `json:"n" default:"0" maximum:"9" doc:"How often"`
}

type toyOut struct {
	Text string `json:"text"`
}

type longOut struct {
	N int `json:"n"`
}

func (o longOut) ToolText() string { return fmt.Sprintf("there are %d", o.N) }

// forwarded is an output that is a result of the protocol.
type forwarded struct{ *mcp.CallToolResult }

func (f forwarded) ToolResult() any { return f.CallToolResult }

// toys are operations with every kind of output and error.
func toys() []op.Op {
	spec := func(name string) op.Spec {
		return op.Spec{Name: name, Content: op.ContentAPI, Route: "POST /v1/" + name, Tag: "toy", Doc: "Do " + name + ". At once."}
	}
	hidden := spec("hidden")
	hidden.NoTool = true
	return []op.Op{
		op.New(spec("object"), func(ctx context.Context, in toyIn) (toyOut, error) {
			if in.Mode == "hint" {
				op.Hint(ctx, "look twice")
			}
			return toyOut{"<hello>"}, nil
		}),
		op.New(spec("list"), func(context.Context, toyIn) ([]string, error) { return nil, nil }),
		op.New(spec("text"), func(context.Context, toyIn) (string, error) { return "a line", nil }),
		op.New(spec("tooltext"), func(context.Context, toyIn) (longOut, error) { return longOut{3}, nil }),
		op.New(spec("passed"), func(context.Context, toyIn) (any, error) {
			return forwarded{&mcp.CallToolResult{IsError: true,
				Content: []mcp.Content{&mcp.TextContent{Text: "from afar"}}, Meta: mcp.Meta{"k": "v"}}}, nil
		}),
		op.New(spec("blob"), func(_ context.Context, in toyIn) (*op.Blob, error) {
			if in.Mode == "" {
				return &op.Blob{}, nil
			}
			body := io.Reader(strings.NewReader("bytes"))
			if in.Mode == "large" {
				body = io.LimitReader(zeros{}, 1<<20)
			}
			return &op.Blob{Name: "a b", Type: in.Mode, Body: io.NopCloser(body)}, nil
		}),
		op.New(spec("who"), func(ctx context.Context, _ toyIn) (string, error) {
			c := op.CallOf(ctx)
			return fmt.Sprintf("%s %s %s %s %s %v %s", c.Via, c.ID, c.Subject, c.Role, c.KeyID, c.Share, c.URL("http", "/x", "")), nil
		}),
		op.New(spec("fail"), func(_ context.Context, in toyIn) (toyOut, error) {
			switch in.Mode {
			case "panic":
				panic("oh")
			case "internal error":
				return toyOut{}, errors.New("secret cause")
			case "internal":
				return toyOut{}, op.Errorf(op.Internal, "secret cause")
			case "data":
				return toyOut{}, &op.Error{Code: op.Conflict, Msg: "it is taken", Hint: "take another", Data: toyOut{"theirs"}}
			}
			return toyOut{}, op.Errorf(op.NotFound, "there is none; make one")
		}),
		op.New(hidden, func(context.Context, toyIn) (string, error) { return "", nil }),
		op.Handle(op.Spec{Content: op.ContentAPI, Name: "page", Route: "/page", Tag: "toy", Doc: "A page."}, http.NotFoundHandler()),
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// serve serves the toys to a fixed, authenticated caller.
func serve(t *testing.T, c Config) *httptest.Server {
	t.Helper()
	c.Name, c.Version, c.Ops = "toys", "1", toys
	h := New(c)
	t.Cleanup(func() { h.Close() })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := &op.Call{ID: "id-1", Subject: "anna", Role: "user", KeyID: "k", Share: &op.Share{ID: "s", Port: 80},
			Base: &url.URL{Scheme: "https", Host: "h", Path: "/p"}, Via: "rest"}
		h.ServeHTTP(w, r.WithContext(op.WithCall(r.Context(), call)))
	}))
	t.Cleanup(s.Close)
	return s
}

func connect(t *testing.T, s *httptest.Server, header http.Header) *mcp.ClientSession {
	t.Helper()
	return connectVersion(t, s, header, "")
}

func connectVersion(t *testing.T, s *httptest.Server, header http.Header, version string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	c, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp",
		HTTPClient: &http.Client{Transport: with{s.Client().Transport, header}}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// with adds headers to every request.
type with struct {
	http.RoundTripper
	header http.Header
}

func (w with) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for k := range w.header {
		r.Header.Set(k, w.header.Get(k))
	}
	return w.RoundTripper.RoundTrip(r)
}

// call calls a tool and returns its result, without the fields that the SDK adds.
func call(t *testing.T, c *mcp.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	if delete(r.Meta, "io.modelcontextprotocol/serverInfo"); len(r.Meta) == 0 {
		r.Meta = nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(b), `,"resultType":"complete"`, "", 1)
}

// versions are the supported versions of the protocol.
var versions = []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"}

func TestResults(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := connectVersion(t, serve(t, Config{}), nil, version)
			for _, x := range []struct{ tool, mode, want string }{
				{"object", "", `{"content":[{"type":"text","text":"{\"text\":\"\u003chello\u003e\"}"}],` +
					`"structuredContent":{"text":"\u003chello\u003e"}}`},
				{"object", "hint", `{"content":[{"type":"text","text":"{\"text\":\"\u003chello\u003e\"}\n[look ` +
					`twice]"}],"structuredContent":{"text":"\u003chello\u003e"}}`},
				{"list", "", `{"content":[{"type":"text","text":"[]"}],"structuredContent":{"result":[]}}`},
				{"text", "", `{"content":[{"type":"text","text":"a line"}]}`},
				{"tooltext", "", `{"content":[{"type":"text","text":"there are 3"}],"structuredContent":{"n":3}}`},
				{"passed", "", `{"_meta":{"k":"v"},"content":[{"type":"text","text":"from afar"}],"isError":true}`},
				{"blob", "", `{"content":[{"type":"text","text":""}]}`},
				{"blob", "text/plain; charset=utf-8", `{"content":[{"type":"text","text":"bytes"}]}`},
				{"blob", "image/png", `{"content":[{"type":"image","mimeType":"image/png","data":"Ynl0ZXM="}]}`},
				{"blob", "application/zip", `{"content":[{"type":"text","text":"the result is too large"}],"isError":true}`},
				{"fail", "", `{"content":[{"type":"text","text":"there is none; make one"}],"isError":true}`},
				{"fail", "data", `{"content":[{"type":"text","text":"it is taken\ntake ` +
					`another"}],"structuredContent":{"text":"theirs"},"isError":true}`},
				{"fail", "internal error", `{"content":[{"type":"text","text":"` + op.InternalMessage("id-1") + `"}],"isError":true}`},
				{"fail", "internal", `{"content":[{"type":"text","text":"` + op.InternalMessage("id-1") + `"}],"isError":true}`},
				{"who", "", `{"content":[{"type":"text","text":"mcp id-1 anna user k \u0026{s  80 false} https://h/p/x"}]}`},
			} {
				if got := call(t, c, x.tool, map[string]any{"mode": x.mode}); got != x.want {
					t.Errorf("%s %q:\n got %s\nwant %s", x.tool, x.mode, got, x.want)
				}
			}
			want := `{"content":[{"type":"text","text":"argument \"n\": Input should be less than or equal to 9"}],"isError":true}`
			if got := call(t, c, "object", map[string]any{"n": 10}); got != want {
				t.Errorf("wrong argument:\n got %s\nwant %s", got, want)
			}
		})
	}
}

// TestCallerCannotBeForged: the internal header that carries the caller is not accepted from
// clients.
func TestCallerCannotBeForged(t *testing.T) {
	t.Parallel()
	c := connect(t, serve(t, Config{}), http.Header{headerCall: {`{"Subject":"root","Role":"admin"}`}})
	if got := call(t, c, "who", nil); !strings.Contains(got, "anna user") || strings.Contains(got, "root") {
		t.Errorf("got %s, want the caller anna", got)
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	h := New(Config{Ops: toys})
	t.Cleanup(func() { h.Close() })
	listed := h.List("")
	var names []string
	for _, x := range listed {
		names = append(names, x.Name)
	}
	if got, want := strings.Join(names, " "), "object list text tooltext passed blob who fail"; got != want {
		t.Errorf("got tools %s, want %s", got, want)
	}
	b, err := json.Marshal(listed[0])
	want := `{"annotations":{"destructiveHint":false,"idempotentHint":false,"openWorldHint":false,` +
		`"readOnlyHint":false},"description":"Do object. At once.",`
	if err != nil || !strings.HasPrefix(string(b), want) {
		t.Errorf("got %s, %v, want %s…", b, err, want)
	}
}

// TestPanic: a panic ends neither the server nor the session, and its stack is logged.
func TestPanic(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		around func(context.Context, op.Op, int, func(context.Context) error) error
		frame  string
	}{
		{"operation", nil, "mcp.toys.func"},
		{"around", func(context.Context, op.Op, int, func(context.Context) error) error { panic("oh") }, "mcp.TestPanic.func"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c := connect(t, serve(t, Config{Log: slog.New(slog.NewJSONHandler(&log, nil)), Around: x.around}), nil)
			want := `{"content":[{"type":"text","text":"` + op.InternalMessage("id-1") + `"}],"isError":true}`
			for range 2 {
				log.Reset()
				if got := call(t, c, "fail", map[string]any{"mode": "panic"}); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			var line struct{ Msg, ID, Tool, Error, Stack string }
			if err := json.Unmarshal(log.Bytes(), &line); err != nil {
				t.Fatalf("got log %s, want one line: %v", &log, err)
			}
			if line.Msg != "tool failed" || line.ID != "id-1" || line.Tool != "fail" || line.Error != "panic: oh" ||
				!strings.Contains(line.Stack, x.frame) {
				t.Errorf("got %+v, want the stack of %s", line, x.frame)
			}
		})
	}
}

// TestAround: the hook sees every call, including those with invalid arguments or a panic, and
// its error is final.
func TestAround(t *testing.T) {
	t.Parallel()
	var seen []string
	c := connect(t, serve(t, Config{Around: func(ctx context.Context, o op.Op, size int, run func(context.Context) error) error {
		if o.Name == "list" {
			return op.Errorf(op.Denied, "not for %s", op.CallOf(ctx).Subject)
		}
		err := run(ctx)
		seen = append(seen, fmt.Sprintf("%s %d %v", o.Name, size, err))
		if o.Name == "text" {
			return op.Errorf(op.Unavailable, "it was not recorded")
		}
		return err
	}}), nil)
	for _, x := range []struct {
		tool string
		args map[string]any
		want string
	}{
		{"object", map[string]any{}, `"structuredContent"`},
		{"object", map[string]any{"n": 10}, "less than or equal to 9"},
		{"fail", map[string]any{"mode": "panic"}, "id-1"},
		{"list", nil, "not for anna"},
		{"text", nil, "it was not recorded"},
	} {
		if got := call(t, c, x.tool, x.args); !strings.Contains(got, x.want) {
			t.Errorf("%s: got %s, want %s", x.tool, got, x.want)
		}
	}
	got, want := strings.Join(seen, "; "),
		"object 2 <nil>; object 8 argument \"n\": Input should be less than or equal to 9; fail 16 panic: oh; text 2 <nil>"
	if got != want {
		t.Errorf("got calls %s, want %s", got, want)
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		body, want string
		opens      bool
	}{
		{`{"method":"tools/list"}`, `{"id":1,"jsonrpc":"2.0","method":"tools/list"}`, false},
		{`{"method":"tools/call","id":"x","params":{"name":"a"}}`,
			`{"id":"x","jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}`, false},
		{`{"jsonrpc":"2.0","method":"ping"}`, `{"jsonrpc":"2.0","method":"ping"}`, false},
		{`{"jsonrpc":"2.0","id":1,"method":"initialize"}`, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, true},
		{`{"method": "initialize"}`, `{"id":1,"jsonrpc":"2.0","method":"initialize"}`, true},
		{`{"params":{}}`, `{"params":{}}`, false},
		{`[{"method":"a"}]`, `[{"method":"a"}]`, false},
		{`{"method":`, `{"method":`, false},
		{``, ``, false},
	} {
		if m := inspect([]byte(x.body)); string(m.body) != x.want || m.opens != x.opens {
			t.Errorf("%s: got %s, %v, want %s, %v", x.body, m.body, m.opens, x.want, x.opens)
		}
	}
}

func FuzzInspect(f *testing.F) {
	f.Add([]byte(`{"method":"tools/list"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if m := inspect(body); json.Valid(body) && !json.Valid(m.body) {
			t.Errorf("got %q from %q, want JSON", m.body, body)
		}
	})
}

// TestBareRequests: scripts send a method and its parameters, and read JSON.
func TestBareRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{MaxBody: 1 << 10})
	{
		post := func(body string) (int, string) {
			res, err := s.Client().Post(s.URL, "text/plain", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(b)
		}
		for _, x := range []struct {
			body   string
			status int
			want   string
		}{
			{`{"method":"tools/call","params":{"name":"text"}}`, 200, `"text":"a line"`},
			{`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"text"}}`, 200,
				`{"id":"a","jsonrpc":"2.0","result":{"content":[{"type":"text","text":"a line"}]}}`},
			{`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"text","_meta":{"progressToken":1}}}`, 200, `a line`},
			{`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"text","arguments":[]}}`, 200, `"isError":true`},
			{`{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"text"}}`, 400, ``},
			{`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"text"}}`, 400, `missing id`},
			{`{"method":"tools/list"}`, 200, `"name":"tooltext"`},
			{`{"method":"tools/call","params":{"name":"nothing"}}`, 200, `unknown tool`},
			{`{"method":"x/y"}`, 400, ``},
			{`{"method":"` + strings.Repeat("x", 1<<10) + `"}`, 413, `too large`},
		} {
			if status, got := post(x.body); status != x.status || !strings.Contains(got, x.want) {
				t.Errorf("%s: got %d %s, want %d %s", x.body, status, got, x.status, x.want)
			}
		}
	}
}
