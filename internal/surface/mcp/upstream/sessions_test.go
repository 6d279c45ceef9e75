package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// peer is a server with tools and sessions, and the transport to it.
type peer struct {
	http.RoundTripper
	url     *url.URL
	server  *mcp.Server
	inits   atomic.Int64
	deletes atomic.Int64
	stuck   atomic.Bool   // requests hang
	entered chan struct{} // a call of the tool "hang" has begun
	ended   chan struct{}
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	p := &peer{entered: make(chan struct{}, 100), ended: make(chan struct{})}
	p.server = mcp.NewServer(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ServerOptions{PageSize: 2})
	schema := map[string]any{"type": "object"}
	for i := range 5 {
		p.server.AddTool(&mcp.Tool{Name: fmt.Sprint("echo", i), Description: "Echo the arguments.", InputSchema: schema},
			func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
			})
	}
	p.server.AddTool(&mcp.Tool{Name: "hang", InputSchema: schema},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			p.entered <- struct{}{}
			select {
			case <-ctx.Done():
			case <-p.ended:
			}
			return nil, context.Canceled
		})
	p.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if method == "initialize" {
				p.inits.Add(1)
			}
			return next(ctx, method, r)
		}
	})
	p.listen(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return p.server },
		&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true}))
	t.Cleanup(func() { close(p.ended) })
	return p
}

func (p *peer) listen(t *testing.T, h http.Handler) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		p.forgetSessions()
		s.CloseClientConnections()
		s.Close()
	})
	var err error
	if p.url, err = url.Parse(s.URL); err != nil {
		t.Fatal(err)
	}
	p.RoundTripper = s.Client().Transport
}

func (p *peer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodDelete {
		p.deletes.Add(1)
	}
	if p.stuck.Load() {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	r = r.Clone(r.Context())
	r.URL.Host = p.url.Host
	return p.RoundTripper.RoundTrip(r)
}

// forgetSessions ends all sessions, as a restart of the server does.
func (p *peer) forgetSessions() {
	if p.server == nil {
		return
	}
	for s := range p.server.Sessions() {
		s.Close()
	}
}

func (p *peer) open() int {
	n := 0
	for range p.server.Sessions() {
		n++
	}
	return n
}

func newSessions(t *testing.T, c SessionsConfig) *Sessions {
	t.Helper()
	c.Name, c.Version = "test", "1"
	s := NewSessions(c)
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *Sessions) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

func callEcho(t *testing.T, s *Sessions, id string, p http.RoundTripper, args string) {
	t.Helper()
	out, err := s.CallTool(t.Context(), id, p, "echo0", json.RawMessage(args))
	if err != nil {
		t.Fatalf("call of %s: %v", id, err)
	}
	if got := out.(passed).Content[0].(*mcp.TextContent).Text; got != args {
		t.Fatalf("call of %s: got %s, want %s", id, got, args)
	}
}

func TestListTools(t *testing.T) {
	t.Parallel()
	var got []string
	err := newSessions(t, SessionsConfig{}).ListTools(t.Context(), "a", newPeer(t), func(name, description string, schema any) {
		got = append(got, fmt.Sprintf("%s %q %v", name, description, schema))
	})
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprintf(`echo%d "Echo the arguments." map[type:object]`, i))
	}
	want = append(want, `hang "" map[type:object]`)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestSessionIsKept: concurrent callers share one session, also while it is being opened.
func TestSessionIsKept(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			args := fmt.Sprintf(`{"i":%d}`, i)
			if out, err := s.CallTool(t.Context(), "a", p, "echo0", json.RawMessage(args)); err != nil ||
				out.(passed).Content[0].(*mcp.TextContent).Text != args {
				t.Errorf("got %v, %v, want %s", out, err, args)
			}
		})
	}
	wait.Wait()
	if n := p.inits.Load(); n != 1 {
		t.Errorf("got %d sessions, want 1", n)
	}
}

// TestServerRestarts: a call succeeds although the server no longer knows the session.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	for i := range 3 {
		callEcho(t, s, "a", p, `{}`)
		if n := p.inits.Load(); n != int64(i+1) {
			t.Errorf("got %d sessions, want %d", n, i+1)
		}
		p.forgetSessions()
	}
	if n := s.len(); n != 1 {
		t.Errorf("got %d sessions kept, want 1", n)
	}
}

// TestRefusal: the server's error message reaches the caller, and the session stays open.
func TestRefusal(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	_, err := s.CallTool(t.Context(), "a", p, "nothing", json.RawMessage(`{}`))
	if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(e.Msg, `unknown tool "nothing"`) {
		t.Errorf("got %v, want that the tool is unknown", err)
	}
	callEcho(t, s, "a", p, `{}`)
	if n := p.inits.Load(); n != 1 {
		t.Errorf("got %d sessions, want 1", n)
	}
}

// TestUnreachable: the error wraps the cause, and the next call tries again.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	down := errors.New("down")
	_, err := s.CallTool(t.Context(), "a", roundTripper(func(*http.Request) (*http.Response, error) { return nil, down }), "echo0", nil)
	if !errors.Is(err, down) {
		t.Errorf("got %v, want %v", err, down)
	}
	if n := s.len(); n != 0 {
		t.Errorf("got %d sessions kept, want 0", n)
	}
	callEcho(t, s, "a", p, `{}`)
}

func TestMain(m *testing.M) { testenv.Main(m) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestUnusedSessionsEnd: an unused session ends after its idle time, and the server is notified.
func TestUnusedSessionsEnd(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{Idle: time.Millisecond}), newPeer(t)
	callEcho(t, s, "a", p, `{}`)
	testenv.Poll(t, "end of the session", func() bool { return s.len() == 0 && p.open() == 0 })
	if n := p.deletes.Load(); n != 1 {
		t.Errorf("got %d deletes, want 1", n)
	}
	callEcho(t, s, "a", p, `{}`)
}

// TestTooManySessions: the least recently used session is closed, but never one in use.
func TestTooManySessions(t *testing.T) {
	t.Parallel()
	s := newSessions(t, SessionsConfig{Max: 2})
	peers := map[string]*peer{}
	for _, id := range []string{"a", "b", "c", "d"} {
		peers[id] = newPeer(t)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, "a", peers["a"], "hang", json.RawMessage(`{}`))
		ended <- err
	}()
	<-peers["a"].entered
	for _, id := range []string{"b", "c", "d"} {
		callEcho(t, s, id, peers[id], `{}`)
	}
	// The server ends the session of a first attempt itself, with a delay.
	testenv.Poll(t, "eviction", func() bool {
		return peers["b"].open() == 0 && peers["c"].open() == 0 && peers["a"].open() == 1 && peers["d"].open() == 1
	})
	if n := s.len(); n != 2 {
		t.Errorf("got %d sessions, want 2", n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	callEcho(t, s, "a", p, `{}`)
	s.Forget("a")
	s.Forget("b")
	if n := s.len(); n != 0 {
		t.Errorf("got %d sessions kept, want 0", n)
	}
	testenv.Poll(t, "end of the session", func() bool { return p.open() == 0 })
}

// TestClose: a hanging call and a hanging handshake end with Close.
func TestClose(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	var silent peer
	arrived := make(chan struct{})
	release := make(chan struct{})
	silent.listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-release
	}))
	t.Cleanup(func() { close(release) })
	errs := make(chan error, 2)
	for id, via := range map[string]http.RoundTripper{"a": p, "b": &silent} {
		go func() {
			_, err := s.CallTool(t.Context(), id, via, "hang", json.RawMessage(`{}`))
			errs <- err
		}()
	}
	<-p.entered
	<-arrived
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("got %v, want no error", err)
		}
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
	}
	if _, err := s.CallTool(t.Context(), "a", p, "echo0", nil); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
	if n := p.deletes.Load(); n != 0 {
		t.Errorf("got %d deletes, want 0", n)
	}
}

// TestCloseDuringCall: a call that Close interrupts returns errClosed, even if its own context has not ended.
func TestCloseDuringCall(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	for range 20 {
		s := newSessions(t, SessionsConfig{})
		err := s.with(t.Context(), "a", p, func(context.Context, *mcp.ClientSession) error {
			s.cancel()
			return context.Canceled
		})
		if !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
	}
}

// TestCloseOfStuckServer: a server that stops answering, even to a cancellation, does not
// delay Close.
func TestCloseOfStuckServer(t *testing.T) {
	t.Parallel()
	s, p := newSessions(t, SessionsConfig{}), newPeer(t)
	ended := make(chan error, 1)
	go func() {
		_, err := s.CallTool(t.Context(), "a", p, "hang", json.RawMessage(`{}`))
		ended <- err
	}()
	<-p.entered
	p.stuck.Store(true)
	s.Close()
	if err := <-ended; !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
}

// TestEndlessReplies: a server cannot exhaust the memory of its caller.
func TestEndlessReplies(t *testing.T) {
	t.Parallel()
	var p peer
	p.listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		line := []byte(strings.Repeat(" ", 64<<10))
		for {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}))
	err := newSessions(t, SessionsConfig{}).ListTools(t.Context(), "a", &p, func(string, string, any) {})
	if err == nil || !strings.Contains(err.Error(), "body too large") {
		t.Errorf("got %v, want that the reply is too large", err)
	}
}
