package cove

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/mem"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// able is mem plus the features that mem lacks.
type able struct{ *mem.Provider }

func (p able) Abilities() sandbox.Abilities {
	a := p.Provider.Abilities()
	a.Logs, a.Stats, a.AnyPort, a.Export, a.Egress, a.MaxMemory = true, true, true, true, false, 64<<30
	return a
}

func (p able) Logs(context.Context, string, int64) ([]byte, error) { return []byte("log"), nil }
func (p able) Stats(context.Context, string) (sandbox.Stats, error) {
	return sandbox.Stats{CPU: time.Second, Memory: 1 << 20, Disk: 1 << 10, Time: time.Now()}, nil
}
func (p able) Export(_ context.Context, _ string, w io.Writer) error {
	_, err := io.WriteString(w, "an image")
	return err
}

// inside is the program of a sandbox: it returns its name and echoes sockets.
type inside struct {
	id  string
	mcp http.Handler
}

func (i inside) Pause()       {}
func (i inside) Resume()      {}
func (i inside) Close() error { return nil }

func (i inside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/mcp":
		i.mcp.ServeHTTP(w, r)
	case r.Header.Get("Upgrade") != "":
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		if kind, b, err := c.Read(r.Context()); err == nil {
			c.Write(r.Context(), kind, b)
		}
	case r.URL.Path == "/access":
		io.WriteString(w, r.Header.Get(op.AccessHeader))
	case r.URL.Path == "/v1/sandbox/activity":
		io.WriteString(w, `{"entries":[{"id":1,"time":"t1","op":"bash_exec","input":"<script>of `+i.id+`</script>"}]}`)
	case strings.HasSuffix(r.URL.Path, "/caller"):
		io.WriteString(w, r.Header.Get(op.CallerHeader))
	default:
		io.WriteString(w, "inside "+i.id+" port "+r.Header.Get("X-Aio-Proxy-Port"))
	}
}

func runInside(sb sandbox.Sandbox, _ *mem.Disk, _ func(int)) (mem.Guest, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "guest", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "say", InputSchema: map[string]any{"type": "object"}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "said"}}}, nil
		})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true})
	return inside{sb.ID, h}, nil
}

// rig is the program's hub on a fake provider.
type rig struct {
	t        *testing.T
	cfg      config.Cove
	store    *mem.Store
	provider *mem.Provider
	hub      *Hub
	server   *httptest.Server
	admin    string // secret of the first key
}

func newRig(t *testing.T, change func(*config.Cove)) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, store: &mem.Store{}}
	report, err := config.Load(&r.cfg, config.Source{Flags: map[string][]string{"state": {dir}, "tenants": {"true"}}})
	if err != nil {
		t.Fatal(report, err)
	}
	if change != nil {
		change(&r.cfg)
	}
	r.open()
	t.Cleanup(func() {
		list, err := r.provider.List(context.Background(), sandbox.Filter{})
		if err != nil {
			t.Error(err)
		}
		for _, sb := range list {
			r.provider.Delete(context.Background(), sb.ID)
		}
		r.close()
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	p, err := mem.Open(mem.Config{Store: r.store, Run: runInside})
	if err != nil {
		r.t.Fatal(err)
	}
	r.provider = p
	if r.hub, err = New(r.cfg, able{p}, "0",
		slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))); err != nil {
		r.t.Fatal(err)
	}
	outside, _ := r.hub.Handlers()
	r.server = httptest.NewServer(outside)
	r.hub.Begin(context.Background())
}

func (r *rig) close() {
	r.server.CloseClientConnections()
	r.server.Close()
	if err := r.hub.Close(); err != nil {
		r.t.Error(err)
	}
}

// key creates a key as the operator does and returns its secret and ID.
func (r *rig) key(who, role string) (secret, id string) {
	r.t.Helper()
	if r.admin == "" {
		if err := r.hub.hub.CreateFirstKey(io.Discard); err != nil {
			r.t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(r.cfg.State, "admin.key"))
		if err != nil {
			r.t.Fatal(err)
		}
		r.admin = strings.TrimSpace(string(b))
	}
	a := r.must(r.admin, "POST", "/api/v1/key", `{"tenant":"`+who+`","role":"`+role+`"}`)
	return field(r.t, a.data, "secret"), field(r.t, a.data, "id")
}

// share creates a link and returns its token and ID.
func (r *rig) share(key, name, body string) (token, id string) {
	r.t.Helper()
	a := r.must(key, "POST", "/api/v1/sandbox/"+name+"/share", body)
	return field(r.t, a.data, "token"), field(r.t, a.data, "id")
}

// must sends a request and fails the test unless it succeeds.
func (r *rig) must(key, method, path, body string) reply {
	r.t.Helper()
	a := r.do(key, method, path, body)
	if a.status != http.StatusOK {
		r.t.Fatalf("%s %s: got %d %s, want 200", method, path, a.status, a.body)
	}
	return a
}

// box creates a sandbox directly at the provider, without the hub.
func (r *rig) box(owner, name string) sandbox.Sandbox {
	r.t.Helper()
	sb, err := r.provider.Create(r.t.Context(), sandbox.Spec{Owner: owner, Name: name,
		Lifetime: sandbox.Lifetime{Timeout: time.Hour, IdleTimeout: time.Hour, IdlePolicy: sandbox.IdleDelete}})
	if err != nil {
		r.t.Fatal(err)
	}
	return sb
}

type reply struct {
	status int
	header http.Header
	body   string
	data   json.RawMessage
}

func (r *rig) do(key, method, path, body string, header ...string) reply {
	r.t.Helper()
	// An endless stream is read only briefly.
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.server.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		r.t.Fatal(method, path, err)
	}
	defer res.Body.Close()
	out := reply{status: res.StatusCode, header: res.Header}
	if res.Header.Get("Content-Type") == "text/event-stream" && !strings.Contains(path, "audit") {
		return out
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(method, path, err)
	}
	out.body = string(b)
	var wrapped struct {
		Data json.RawMessage `json:"data"`
	}
	json.Unmarshal(b, &wrapped)
	out.data = wrapped.Data
	return out
}

// tool calls a tool of the hub with a plain request and reports whether it succeeded.
func (r *rig) tool(key, name string, args map[string]any) (status int, text string, failed bool) {
	r.t.Helper()
	b, err := json.Marshal(map[string]any{"method": "tools/call", "params": map[string]any{"name": name, "arguments": args}})
	if err != nil {
		r.t.Fatal(err)
	}
	a := r.do(key, "POST", "/mcp", string(b))
	var out struct {
		Result struct {
			IsError bool `json:"isError"`
			Content []struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"result"`
	}
	if a.status != http.StatusOK {
		return a.status, a.body, true
	}
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || len(out.Result.Content) == 0 {
		r.t.Fatalf("%s: got %s, want at least 1 content part", name, a.body)
	}
	return a.status, out.Result.Content[0].Text, out.Result.IsError
}

// field returns a string field of a reply's data.
func field(t *testing.T, data json.RawMessage, name string) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	s, _ := m[name].(string)
	return s
}
