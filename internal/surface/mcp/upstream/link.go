package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// linkKind is what a connection to another server is for.
type linkKind int

const (
	linkControl linkKind = iota // lists and notifications; a process has only this one
	linkModern                  // requests of clients without sessions
	linkSession                 // the requests of one session
)

// link is a connection to another server. Each client session has a separate one, so that
// questions of the server reach the right client.
type link struct {
	m       *mount
	conn    *mcp.ClientSession
	stop    func() // ends the process, if it has one
	notices notices

	once sync.Once
	mu   sync.Mutex
	runs []*run
}

// run is a request that the link is forwarding.
type run struct {
	ctx     context.Context
	session *mcp.ServerSession
	token   any // the client's progress token
	own     string
}

var runIDs atomic.Int64

func (m *mount) connect(ctx context.Context, kind linkKind, client *mcp.ServerSession) (*link, error) {
	l := &link{m: m, stop: func() {}}
	transport, err := m.transport(ctx, l, kind)
	if err != nil {
		return nil, err
	}
	c := mcp.NewClient(&mcp.Implementation{Name: m.s.cfg.Name, Version: m.s.cfg.Version}, l.options(kind, client))
	c.AddReceivingMiddleware(l.notices.middleware, l.forwardQuestions)
	options := &mcp.ClientSessionOptions{}
	if kind != linkModern {
		options.ProtocolVersion = "2025-11-25"
	}
	if l.conn, err = c.Connect(ctx, transport, options); err != nil {
		l.stop()
		return nil, err
	}
	if caps := l.conn.InitializeResult().Capabilities; kind != linkModern && caps != nil && caps.Logging != nil {
		_ = l.conn.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}) // clients choose the level that they receive
	}
	return l, nil
}

func (m *mount) transport(ctx context.Context, l *link, kind linkKind) (mcp.Transport, error) {
	if m.Start != nil {
		out, in, stop, err := m.Start(ctx)
		if err != nil {
			return nil, err
		}
		l.stop = stop
		return &mcp.IOTransport{Reader: &noticeReader{ReadCloser: out, n: &l.notices}, Writer: in}, nil
	}
	client := &http.Client{Transport: http.DefaultTransport}
	if m.Client != nil {
		*client = *m.Client
	}
	client.Transport = noticeTransport{client.Transport, &l.notices}
	if m.SSE {
		return &mcp.SSEClientTransport{Endpoint: m.URL, HTTPClient: client}, nil
	}
	return &mcp.StreamableClientTransport{Endpoint: m.URL, HTTPClient: client, MaxEventSize: maxReply,
		DisableStandaloneSSE: kind == linkModern}, nil
}

// options make a link forward questions and notifications of the server.
func (l *link) options(kind linkKind, client *mcp.ServerSession) *mcp.ClientOptions {
	o := &mcp.ClientOptions{
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{},
			Sampling:    &mcp.SamplingCapabilities{Tools: &mcp.SamplingToolsCapabilities{}, Context: &mcp.SamplingContextCapabilities{}},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		CreateMessageWithToolsHandler: func(_ context.Context, r *mcp.CreateMessageWithToolsRequest) (*mcp.CreateMessageWithToolsResult, error) {
			f, err := l.current()
			if err != nil {
				return nil, err
			}
			return f.session.CreateMessageWithTools(f.ctx, r.Params)
		},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			f, err := l.current()
			if err != nil {
				return nil, err
			}
			return f.session.Elicit(f.ctx, r.Params)
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			if f, err := l.current(); err == nil {
				_ = f.session.Log(f.ctx, r.Params)
			}
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { l.forwardProgress(r.Params) },
	}
	if client != nil && client.InitializeParams() != nil && client.InitializeParams().Capabilities != nil {
		caps := *client.InitializeParams().Capabilities
		if caps.Roots.ListChanged {
			caps.RootsV2 = &mcp.RootCapabilities{}
		}
		o.Capabilities = &caps
	}
	if kind == linkControl {
		o.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { l.m.refreshSoon() }
		o.PromptListChangedHandler = func(context.Context, *mcp.PromptListChangedRequest) { l.m.refreshSoon() }
		o.ResourceListChangedHandler = func(context.Context, *mcp.ResourceListChangedRequest) { l.m.refreshSoon() }
		o.ResourceUpdatedHandler = func(ctx context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			_ = l.m.s.local.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: r.Params.URI})
		}
	}
	return o
}

// forwardQuestions forwards questions of the server to the client as they are. The handlers
// of the SDK would refuse schemas that it does not know.
func (l *link) forwardQuestions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		elicit, _ := req.GetParams().(*mcp.ElicitParams)
		if method != "roots/list" && elicit == nil {
			return next(ctx, method, req)
		}
		f, err := l.current()
		if err != nil {
			return nil, err
		}
		if elicit != nil {
			return f.session.Elicit(f.ctx, elicit)
		}
		return f.session.ListRoots(f.ctx, nil)
	}
}

// current returns the request that a message of the server belongs to. With requests of
// several clients in flight, that is unknown.
func (l *link) current() (*run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.runs) == 0 || l.runs[len(l.runs)-1].session == nil {
		return nil, errors.New("no client is waiting for this server")
	}
	last := l.runs[len(l.runs)-1]
	for _, f := range l.runs {
		if f.session != last.session {
			return nil, errors.New("several clients are waiting for this server, so its question cannot be assigned to one")
		}
	}
	return last, nil
}

func (l *link) forwardProgress(p *mcp.ProgressNotificationParams) {
	l.mu.Lock()
	i := slices.IndexFunc(l.runs, func(f *run) bool { return f.own == fmt.Sprint(p.ProgressToken) })
	var f *run
	if i >= 0 {
		f = l.runs[i]
	}
	l.mu.Unlock()
	if f == nil || f.token == nil {
		return
	}
	forwarded := *p
	forwarded.ProgressToken = f.token
	_ = f.session.NotifyProgress(f.ctx, &forwarded)
}

func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.runs) > 0
}

// enter registers a request that is forwarded; leave removes it.
func (l *link) enter(ctx context.Context, s *mcp.ServerSession, token any) (f *run, leave func()) {
	f = &run{ctx: ctx, session: s, token: token, own: "p" + strconv.FormatInt(runIDs.Add(1), 10)}
	l.mu.Lock()
	l.runs = append(l.runs, f)
	l.mu.Unlock()
	return f, func() {
		l.mu.Lock()
		l.runs = slices.DeleteFunc(l.runs, func(other *run) bool { return other == f })
		l.mu.Unlock()
		l.m.resetIdleTimer()
	}
}

func (m *mount) resetIdleTimer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.idle != nil && m.Idle > 0 && m.control != nil {
		m.idle.Reset(m.Idle)
	}
}

func (l *link) close() {
	l.once.Do(func() {
		if l.m.Start != nil {
			l.stop() // a process may never answer
		}
		done := make(chan struct{})
		go func() { defer close(done); l.conn.Close() }()
		select {
		case <-done:
		case <-time.After(closeLimit): // the server may never answer
		}
		l.stop()
	})
}

// reach returns the link for a request, and opens it if necessary.
func (m *mount) reach(ctx context.Context, s *mcp.ServerSession, modern bool) (*link, error) {
	m.mu.Lock()
	var l *link
	switch {
	case m.Start != nil || s == nil || !modern && s.ID() == "":
		l = m.control
	case modern:
		l = m.modern
	default:
		l = m.links[s]
	}
	m.mu.Unlock()
	if l != nil {
		return l, nil
	}
	if m.life.Err() != nil {
		return nil, errors.New("the server was removed")
	}
	switch {
	case m.Start != nil || s == nil || !modern && s.ID() == "":
		return m.restart(ctx)
	case modern:
		return m.keep(ctx, linkModern, nil)
	}
	return m.keep(ctx, linkSession, s)
}

// restart starts a process that was stopped, or waits until it is restarted.
func (m *mount) restart(ctx context.Context) (*link, error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	l, idle := m.control, m.state == "idle"
	m.mu.Unlock()
	if l != nil && !idle {
		return l, nil
	}
	l, err := m.open()
	if err != nil {
		return nil, err
	}
	if idle { // the goroutine of begin has ended
		m.s.work.Go(func() {
			_ = l.conn.Wait()
			if !m.noteEnd(l) && m.life.Err() == nil {
				m.s.mu.Lock()
				defer m.s.mu.Unlock()
				m.begin()
			}
		})
	}
	return l, nil
}

// keep opens a link and keeps it until it or its client ends.
func (m *mount) keep(ctx context.Context, kind linkKind, s *mcp.ServerSession) (*link, error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	l := m.modern
	if s != nil {
		l = m.links[s]
	}
	m.mu.Unlock()
	if l != nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	l, err := m.connect(ctx, kind, s)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	if s != nil {
		m.links[s] = l
	} else {
		m.modern = l
	}
	m.mu.Unlock()
	forget := func() {
		m.mu.Lock()
		if m.modern == l {
			m.modern = nil
		}
		if s != nil && m.links[s] == l {
			delete(m.links, s)
		}
		m.mu.Unlock()
		l.close()
	}
	m.s.work.Go(func() { _ = l.conn.Wait(); forget() })
	if s != nil {
		m.s.work.Go(func() { _ = s.Wait(); forget() })
	}
	return l, nil
}

// forward sends a request to the server. If the server has ended before it received the
// request, forward restarts it and retries once.
func forward[R any](m *mount, ctx context.Context, s *mcp.ServerSession, modern bool, meta mcp.Meta,
	send func(context.Context, *link, mcp.Meta) (R, error)) (R, error) {
	var none R
	for retried := false; ; retried = true {
		l, err := m.reach(ctx, s, modern)
		if err != nil {
			return none, m.errUnreachable(err)
		}
		f, leave := l.enter(ctx, s, meta["progressToken"])
		own := mcp.Meta{}
		maps.Copy(own, meta)
		delete(own, "progressToken")
		if f.token != nil {
			own["progressToken"] = f.own
		}
		out, err := send(ctx, l, own)
		l.notices.drain(ctx)
		leave()
		answer, answered := errors.AsType[*jsonrpc.Error](err)
		unsent := answered && answer.Code == codeNotSent || errors.Is(err, mcp.ErrSessionMissing) ||
			errors.Is(err, mcp.ErrConnectionClosed) || errors.Is(err, io.ErrClosedPipe)
		switch {
		case err == nil:
			return out, nil
		case answered && !unsent, ctx.Err() != nil:
			return none, err
		}
		m.discard(l)
		if retried || !unsent {
			return none, m.errUnreachable(err)
		}
	}
}

// discard removes a link that does not work.
func (m *mount) discard(l *link) {
	m.mu.Lock()
	if m.modern == l {
		m.modern = nil
	}
	if m.control == l {
		m.control = nil
	}
	for s, other := range m.links {
		if other == l {
			delete(m.links, s)
		}
	}
	m.mu.Unlock()
	m.s.work.Go(l.close)
}
