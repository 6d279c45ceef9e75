package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/provider/mem"
	"github.com/cove-sandbox/cove/internal/sandbox"
	surface "github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// provider is mem plus the features that mem lacks.
type provider struct {
	*mem.Provider
	shelf
	dir     string
	resumes atomic.Int64
	starts  atomic.Int64
	slow    chan struct{} // if not nil, resume and start wait for it
	image   bool
	cpus    int64 // 0: unknown
	memory  int64

	refuse atomic.Int64 // number of connections that fail
	drowse atomic.Int64 // number of times that the sandbox is found suspended
	mu     sync.Mutex
	egress []net.Listener
	stats  map[string]bool // IDs of measured sandboxes
}

func (p *provider) Abilities() sandbox.Abilities {
	a := p.Provider.Abilities()
	a.Egress, a.Logs, a.Stats, a.AnyPort, a.Image = true, true, true, true, p.image
	a.Limits = append(slices.Clone(a.Limits), "disk_rate")
	a.MaxCPU, a.MaxMemory = 1000*p.cpus, p.memory
	return a
}

func (p *provider) Logs(_ context.Context, id string, max int64) ([]byte, error) {
	if _, err := p.Get(context.Background(), id); err != nil {
		return nil, err
	}
	text := []byte("what the program said\n")
	return text[len(text)-int(min(max, int64(len(text)))):], nil
}

func (p *provider) Stats(_ context.Context, id string) (sandbox.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stats == nil {
		p.stats = map[string]bool{}
	}
	p.stats[id] = true
	return sandbox.Stats{CPU: 1500 * time.Millisecond, Memory: 42, Pids: 3, Disk: -1, Time: time.Now()}, nil
}

func (p *provider) Egress(_ context.Context, id string) (net.Listener, error) {
	if _, err := p.Get(context.Background(), id); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(p.dir, id+fmt.Sprintf("%d", time.Now().UnixNano())))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.egress = append(p.egress, l)
	return l, err
}

// measured reports whether a sandbox was measured since the last call, and forgets it.
func (p *provider) measured(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer delete(p.stats, id)
	return p.stats[id]
}

// opened is how often an egress listener was opened.
func (p *provider) opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.egress)
}

func (p *provider) hold(ctx context.Context) error {
	if p.slow == nil {
		return nil
	}
	select {
	case <-p.slow:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *provider) Resume(ctx context.Context, id string) error {
	p.resumes.Add(1)
	if err := p.hold(ctx); err != nil {
		return err
	}
	return p.Provider.Resume(ctx, id)
}

func (p *provider) Start(ctx context.Context, id string) error {
	p.starts.Add(1)
	if err := p.hold(ctx); err != nil {
		return err
	}
	return p.Provider.Start(ctx, id)
}

// Endpoint connects to other ports on the machine of the test.
func (p *provider) Endpoint(ctx context.Context, id string, port int) (sandbox.Endpoint, error) {
	if port == 0 {
		if p.drowse.Add(-1) >= 0 {
			p.Provider.Stop(ctx, id)
		}
		ep, err := p.Provider.Endpoint(ctx, id, 0)
		dial := ep.Dial
		ep.Dial = func(ctx context.Context) (net.Conn, error) {
			if p.refuse.Add(-1) >= 0 {
				return nil, syscall.ECONNREFUSED
			}
			return dial(ctx)
		}
		return ep, err
	}
	return sandbox.Endpoint{Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	}}, nil
}

// guestServer is the program in a sandbox.
type guestServer struct {
	sb      sandbox.Sandbox
	mux     *http.ServeMux
	tools   *mcp.Server
	ready   func() bool
	current atomic.Bool // a command runs in the background
}

func (g *guestServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if path.Clean(r.URL.Path) != strings.TrimSuffix(r.URL.Path, "/") && r.URL.Path != "/" {
		g.echo(w, r) // the mux would clean the path
		return
	}
	g.mux.ServeHTTP(w, r)
}

func (g *guestServer) Pause()  {}
func (g *guestServer) Resume() {}

// Close discards the sessions of the tools, as the end of the program does.
func (g *guestServer) Close() error {
	for s := range g.tools.Sessions() {
		s.Close()
	}
	return nil
}

func (g *guestServer) readyz(w http.ResponseWriter, _ *http.Request) {
	if g.ready != nil && !g.ready() {
		http.Error(w, "not yet", http.StatusServiceUnavailable)
	}
}

// seen is a request as the server inside received it.
type seen struct {
	Method, URI, Host, Body string
	Header                  http.Header
}

func (g *guestServer) echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Host, string(b), r.Header})
}

func (g *guestServer) sessions(w http.ResponseWriter, _ *http.Request) {
	command := "null"
	if g.current.Load() {
		command = `"sleep 100"`
	}
	fmt.Fprintf(w, `{"success":true,"data":[{"session_id":"a","current_command":%s}]}`, command)
}

func websocketEcho(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(8 << 20)
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}

// newGuest creates the program of a sandbox; more extends it.
func newGuest(sb sandbox.Sandbox, more func(*guestServer)) *guestServer {
	g := &guestServer{sb: sb, mux: http.NewServeMux(), tools: toolServer(sb)}
	g.mux.HandleFunc("GET /readyz", g.readyz)
	g.mux.HandleFunc("GET /v1/bash/sessions", g.sessions)
	g.mux.HandleFunc("/ws", websocketEcho)
	g.mux.HandleFunc("/", g.echo)
	// A protocol whose sessions end when the sandbox is restarted.
	g.mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return g.tools },
		&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true}))
	if more != nil {
		more(g)
	}
	return g
}

// toolServer offers tools as a sandbox does.
func toolServer(sb sandbox.Sandbox) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "guest", Version: "1"}, nil)
	object := map[string]any{"type": "object"}
	server.AddTool(&mcp.Tool{Name: "say", Description: "Say it back.", InputSchema: object},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: sb.Spec.Name + " " + string(r.Params.Arguments)}}}, nil
		})
	server.AddTool(&mcp.Tool{Name: "all", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{
			Meta: mcp.Meta{"trace": "x"},
			Content: []mcp.Content{
				&mcp.TextContent{Text: "text"}, &mcp.ImageContent{Data: []byte{1, 2, 3}, MIMEType: "image/png"},
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///a", Text: "b"}},
			},
			StructuredContent: map[string]any{"n": 1.0, "list": []any{"a"}},
		}, nil
	})
	server.AddTool(&mcp.Tool{Name: "fail", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "it went wrong"}},
			StructuredContent: map[string]any{"errno": 2.0}}, nil
	})
	return server
}

// rig is a hub behind a server, as an app wires it.
type rig struct {
	t        *testing.T
	hub      *Hub
	store    *mem.Store
	provider *provider
	sessions *upstream.Sessions
	server   *httptest.Server
	guard    *auth.Guard
	more     func(*guestServer)
}

type setup struct {
	hub    Config
	stores stores
	more   func(*guestServer) // added to every program inside
	auth   *auth.Config
	slow   chan struct{}
	bare   bool // only the features of mem

	image  bool // the provider claims to support images
	cpus   int64
	memory int64
}

func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	r := &rig{t: t, store: &mem.Store{}, more: s.more}
	r.open(s)
	t.Cleanup(func() {
		r.close()
		p, err := mem.Open(mem.Config{Store: r.store, Run: r.run})
		if err != nil {
			t.Error(err)
			return
		}
		list, _ := p.List(context.Background(), sandbox.Filter{})
		for _, sb := range list {
			p.Delete(context.Background(), sb.ID)
		}
		p.Close()
		if left := r.store.Left(); len(left) > 0 {
			t.Errorf("left: got %v, want none", left)
		}
	})
	return r
}

func (r *rig) run(sb sandbox.Sandbox, _ *mem.Disk, _ func(int)) (mem.Guest, error) {
	return newGuest(sb, r.more), nil
}

func (r *rig) open(s setup) {
	r.t.Helper()
	p, err := mem.Open(mem.Config{Store: r.store, Run: r.run})
	if err != nil {
		r.t.Fatal(err)
	}
	r.provider = &provider{Provider: p, dir: r.t.TempDir(), slow: s.slow, image: s.image, cpus: s.cpus, memory: s.memory}
	s.hub.Provider = r.provider
	if s.bare {
		s.hub.Provider = p
	}
	if s.hub.Metrics == nil {
		s.hub.Metrics = metric.New()
	}
	s.hub.Log = slog.New(slog.NewTextHandler(r.t.Output(), nil))
	r.sessions = upstream.NewSessions(upstream.SessionsConfig{Name: "cove", Version: "1"})
	if s.hub.SandboxTools == nil {
		s.hub.SandboxTools = r.sessions
	}
	r.hub = build(s.hub, s.stores)
	tools := surface.New(surface.Config{Name: "cove", Version: "1", Tools: r.hub.Tools, Visible: r.hub.SeesTool,
		Fixed: r.hub.LimitTools, Around: r.hub.AroundTool, Log: s.hub.Log})
	r.hub.Begin(context.Background())
	c := rest.Config{
		Table: op.NewTable(r.hub.Ops(), []op.Op{r.hub.ToolsOp(tools)}), Dialect: rest.Hub, Front: r.hub.Front,
		Base:   func(q *http.Request) *url.URL { return auth.Base(q, nil) },
		Caller: r.hub.Caller, Admit: r.hub.Admit, Served: func(v rest.Served) { r.hub.Served(Visit(v)) },
	}
	if s.auth != nil {
		r.hub.SignIn(s.auth)
		r.guard = auth.New(*s.auth)
		c.Guard = r.guard.Wrap
	} else {
		c.Guard = asSubject
	}
	r.server = httptest.NewServer(rest.New(c))
}

// asSubject reads the subject from a header.
func asSubject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		next.ServeHTTP(w, q.WithContext(auth.NewContext(q.Context(), auth.Identity{Subject: q.Header.Get("X-Test-Subject")})))
	})
}

// close ends the hub as a graceful stop does.
func (r *rig) close() {
	r.server.CloseClientConnections()
	r.server.Close()
	r.hub.Close()
	r.sessions.Close()
	r.provider.Close()
}

// sandbox returns the only sandbox of that name.
func (r *rig) sandbox(name string) sandbox.Sandbox {
	r.t.Helper()
	list, err := r.hub.cfg.Provider.List(context.Background(), sandbox.Filter{Name: name})
	if err != nil || len(list) != 1 {
		r.t.Fatalf("got %d sandboxes named %q, %v; want one", len(list), name, err)
	}
	return list[0]
}

// openRequests returns the number of in-flight requests to a sandbox.
func (r *rig) openRequests(name string) int {
	r.t.Helper()
	return r.hub.fleet.OpenRequests(r.sandbox(name))
}

// closeIdle closes the hub's idle connections to a sandbox.
func (r *rig) closeIdle(name string) {
	r.t.Helper()
	b, err := r.hub.fleet.Enter(r.t.Context(), r.sandbox(name), time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	defer b.Leave()
	b.CloseIdleConnections()
}

// reply is a response of the hub.
type reply struct {
	Status int             `json:"-"`
	Header http.Header     `json:"-"`
	Body   string          `json:"-"`
	Code   string          `json:"code"`
	Data   json.RawMessage `json:"data"`
	Error  string          `json:"error"`
}

func (r *rig) do(method, path, body string, header ...string) reply {
	r.t.Helper()
	req, err := http.NewRequest(method, r.server.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	return r.send(req, header...)
}

func (r *rig) send(req *http.Request, header ...string) reply {
	r.t.Helper()
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	out := reply{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	json.Unmarshal(b, &out)
	return out
}

// create creates a sandbox and returns it.
func (r *rig) create(body string, header ...string) lifecycle.Object {
	r.t.Helper()
	return r.object(r.do("POST", "/api/v1/sandbox?full=true", body, header...))
}

func (r *rig) object(a reply) lifecycle.Object {
	r.t.Helper()
	var o lifecycle.Object
	if a.Status != 200 || a.Code != "0" || json.Unmarshal(a.Data, &o) != nil {
		r.t.Fatalf(`got %d %s, want status 200, code "0" and a sandbox`, a.Status, a.Body)
	}
	return o
}

func (r *rig) status(name string) string {
	r.t.Helper()
	return r.object(r.do("GET", "/api/v1/sandbox/"+name, "")).Status
}

// seen sends a request to a sandbox and returns the request that it received.
func (r *rig) seen(method, path, body string, header ...string) seen {
	r.t.Helper()
	a := r.do(method, path, body, header...)
	var s seen
	if err := json.NewDecoder(bytes.NewReader([]byte(a.Body))).Decode(&s); a.Status != 200 || err != nil {
		r.t.Fatalf("%s %s: got %d %s, want status 200", method, path, a.Status, a.Body)
	}
	return s
}

// poll waits until a condition is true.
func poll(t testing.TB, what string, ok func() bool) { t.Helper(); testenv.Poll(t, what, ok) }

// contextUntil returns a context that is canceled when a condition is true.
func contextUntil(t testing.TB, ok func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		testenv.Eventually(func() bool { return ctx.Err() != nil || ok() })
		cancel()
	}()
	return ctx, cancel
}
