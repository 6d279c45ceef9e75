package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxLinks bounds the links of clients without sessions to one server. More clients share one.
	maxLinks = 64
	// linkIdle is how long an unused link of such a client is kept.
	linkIdle = 10 * time.Minute
)

// link is a connection to another server. Each client has a separate one if possible, so that
// questions of the server reach the right client.
type link struct {
	m         *mount
	conn      *mcp.ClientSession
	stateless bool
	stop      func() // ends the process, if it has one
	notices   notices
	unused    *time.Timer // ends a link of a stateless client; nil otherwise

	once sync.Once
	mu   sync.Mutex
	runs []*run
}

// run is a request that the link is forwarding.
type run struct {
	key    any     // of the client
	own    string  // the progress token at the server
	parked *parked // nil for a client with a session

	mu     sync.Mutex
	ctx    context.Context // of the client's request; nil while none is waiting
	client client
}

var runIDs atomic.Int64

var errNoClient = errors.New("no client is waiting for this server")

func newRun(ctx context.Context, c client) *run {
	return &run{key: c.key(), client: c, ctx: ctx, own: "p" + strconv.FormatInt(runIDs.Add(1), 10)}
}

// attach passes later messages to another request of the client.
func (f *run) attach(ctx context.Context, c client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx, f.client = ctx, c
}

func (f *run) detach() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx = nil
}

// request returns the request of the client that is waiting; false: none is.
func (f *run) request() (context.Context, client, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ctx, f.client, f.ctx != nil && f.client.session != nil
}

// ask asks the client of the run.
func (f *run) ask(ctx context.Context, q mcp.InputRequest) (mcp.InputResponse, error) {
	waiting, c, ok := f.request()
	if f.parked != nil {
		if err := c.errUnsupported(q); err != nil {
			return nil, err
		}
		return f.parked.ask(ctx, q)
	}
	if !ok {
		return nil, errNoClient
	}
	return askSession(waiting, c.session, q)
}

// connect opens a link in the version of the protocol that the client uses, or in the other one if
// the server refuses it.
func (m *mount) connect(request context.Context, control bool, c client) (*link, error) {
	// The SDK would send the version in the request's context to the server.
	ctx, cancel := context.WithTimeout(m.life, connectLimit)
	defer cancel()
	defer context.AfterFunc(request, cancel)()
	versions := []string{withSessions, Stateless}
	if c.stateless {
		slices.Reverse(versions)
	}
	var first error
	for _, version := range versions {
		m.mu.Lock()
		refused := m.refused == version
		m.mu.Unlock()
		if refused {
			continue
		}
		l, err := m.dial(ctx, version, control, c)
		if err == nil {
			m.noteRefusal(first, versions[0], l)
			return l, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil || !m.isRefusal(err) {
			break
		}
	}
	return nil, first
}

// noteRefusal notes that the server refused a version but accepted the link, so that it is not
// tried again.
func (m *mount) noteRefusal(err error, version string, l *link) {
	if err != nil || version == Stateless && !l.stateless { // the SDK falls back itself if it can
		m.mu.Lock()
		defer m.mu.Unlock()
		m.refused = version
	}
}

// isRefusal reports whether a server answered that it does not support a version. Servers do so
// with various errors.
func (m *mount) isRefusal(err error) bool {
	if m.Start != nil {
		answer, ok := errors.AsType[*jsonrpc.Error](err)
		return ok && answer.Code != codeNotSent
	}
	_, unreachable := errors.AsType[*url.Error](err)
	return !unreachable
}

func (m *mount) dial(ctx context.Context, version string, control bool, c client) (*link, error) {
	l := &link{m: m, stop: func() {}}
	transport, err := m.transport(ctx, l)
	if err != nil {
		return nil, err
	}
	own := mcp.NewClient(&mcp.Implementation{Name: m.s.cfg.Name, Version: m.s.cfg.Version}, l.options(control, c))
	own.AddReceivingMiddleware(l.notices.middleware, l.forwardQuestions)
	if l.conn, err = own.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version}); err != nil {
		l.stop()
		return nil, err
	}
	server := l.conn.InitializeResult()
	l.stateless = server.ProtocolVersion >= Stateless
	if !l.stateless && server.Capabilities != nil && server.Capabilities.Logging != nil {
		_ = l.conn.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}) // clients choose the level that they receive
	}
	return l, nil
}

func (m *mount) transport(ctx context.Context, l *link) (mcp.Transport, error) {
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
		return lasting{&mcp.SSEClientTransport{Endpoint: m.URL, HTTPClient: client}, l}, nil
	}
	return &mcp.StreamableClientTransport{Endpoint: m.URL, HTTPClient: client, MaxEventSize: maxReply}, nil
}

// lasting is a transport whose connection lasts as long as the link. The SDK's would end with the context of Connect.
type lasting struct {
	mcp.Transport
	link *link
}

func (t lasting) Connect(ctx context.Context) (mcp.Connection, error) {
	life, cancel := context.WithCancel(t.link.m.life)
	connected := context.AfterFunc(ctx, cancel)
	c, err := t.Transport.Connect(life)
	if err == nil && !connected() {
		c.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	t.link.stop = cancel
	return c, nil
}

// options make a link forward questions and notifications of the server.
func (l *link) options(control bool, c client) *mcp.ClientOptions {
	o := &mcp.ClientOptions{
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{},
			Sampling:    &mcp.SamplingCapabilities{Tools: &mcp.SamplingToolsCapabilities{}, Context: &mcp.SamplingContextCapabilities{}},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			f, err := l.current()
			if err != nil {
				return
			}
			if ctx, c, ok := f.request(); ok {
				_ = c.session.Log(ctx, r.Params)
			}
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { l.forwardProgress(r.Params) },
	}
	if c.caps != nil {
		caps := *c.caps
		if caps.Roots.ListChanged {
			caps.RootsV2 = &mcp.RootCapabilities{}
		}
		o.Capabilities = &caps
	}
	if control {
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
		q, ok := req.GetParams().(mcp.InputRequest)
		if method == "roots/list" {
			q, ok = &mcp.ListRootsParams{}, true
		}
		if !ok {
			return next(ctx, method, req)
		}
		f, err := l.current()
		if err != nil {
			return nil, err
		}
		a, err := f.ask(ctx, q)
		if err != nil {
			return nil, err
		}
		return a.(mcp.Result), nil
	}
}

// current returns the request that a message of the server belongs to. With requests of
// several clients in flight, that is unknown.
func (l *link) current() (*run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.runs) == 0 || l.runs[len(l.runs)-1].key == nil {
		return nil, errNoClient
	}
	last := l.runs[len(l.runs)-1]
	for _, f := range l.runs {
		if f.key != last.key {
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
	if f == nil {
		return
	}
	if ctx, c, ok := f.request(); ok && c.meta[metaToken] != nil {
		forwarded := *p
		forwarded.ProgressToken = c.meta[metaToken]
		_ = c.session.NotifyProgress(ctx, &forwarded)
	}
}

func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.runs) > 0
}

// enter registers a request that is forwarded; leave removes it.
func (l *link) enter(f *run) (leave func()) {
	l.mu.Lock()
	l.runs = append(l.runs, f)
	l.mu.Unlock()
	return func() {
		l.mu.Lock()
		l.runs = slices.DeleteFunc(l.runs, func(other *run) bool { return other == f })
		l.mu.Unlock()
		if l.unused != nil {
			l.unused.Reset(linkIdle)
		}
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
		if l.unused != nil {
			l.unused.Stop()
		}
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

// reach returns the link for a request, and opens it if necessary. A process has only one.
func (m *mount) reach(ctx context.Context, c client) (*link, error) {
	m.mu.Lock()
	l, known := m.links[c.key()]
	shared := m.Start != nil || !c.ownsLink() || !known && c.stateless && len(m.links) >= maxLinks
	if shared {
		l = m.control
	}
	m.mu.Unlock()
	switch {
	case l != nil:
		return l, nil
	case m.life.Err() != nil:
		return nil, errors.New("the server was removed")
	case shared:
		return m.restart(ctx)
	}
	return m.keep(ctx, c)
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

// keep opens the link of a client and keeps it until it or its client ends.
func (m *mount) keep(ctx context.Context, c client) (*link, error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	l := m.links[c.key()]
	m.mu.Unlock()
	if l != nil {
		return l, nil
	}
	l, err := m.connect(ctx, false, c)
	if err != nil {
		return nil, err
	}
	if c.stateless {
		l.unused = time.AfterFunc(linkIdle, func() {
			if !l.busy() {
				m.discard(l)
			}
		})
	} else {
		m.s.work.Go(func() { _ = c.session.Wait(); m.discard(l) })
	}
	m.mu.Lock()
	m.links[c.key()] = l
	m.mu.Unlock()
	m.s.work.Go(func() { _ = l.conn.Wait(); m.discard(l) })
	return l, nil
}

// round is one of the requests that a call consists of.
type round struct {
	request   string // method and name
	responses mcp.InputResponseMap
	state     string
}

// sender sends a request over a link.
type sender[R any] func(ctx context.Context, l *link, meta mcp.Meta, in round) (R, error)

// forward sends a request to the server. Questions of the server reach the client in the version
// of the protocol that the client uses.
func forward[R mcp.Result](m *mount, ctx context.Context, c client, in round, send sender[R]) (R, error) {
	if c.stateless {
		return converse(m, ctx, c, in, send)
	}
	return exchange(m, ctx, c, newRun(ctx, c), in, send)
}

// exchange sends a request to the server. If the server has ended before it received the
// request, exchange restarts it and retries once.
func exchange[R mcp.Result](m *mount, ctx context.Context, c client, f *run, in round, send sender[R]) (R, error) {
	var none R
	for retried := false; ; retried = true {
		l, err := m.reach(ctx, c)
		if err != nil {
			return none, m.errUnreachable(err)
		}
		leave := l.enter(f)
		sendRound := func(in round) (R, error) { return send(ctx, l, c.metaFor(l.stateless, f.own), in) }
		var out R
		if l.stateless && c.session != nil && !c.stateless {
			out, err = answerRounds(ctx, c, in, sendRound)
		} else {
			out, err = sendRound(in)
		}
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

// discard removes a link that does not work, or is no longer used.
func (m *mount) discard(l *link) {
	m.mu.Lock()
	if m.control == l {
		m.control = nil
	}
	maps.DeleteFunc(m.links, func(_ any, other *link) bool { return other == l })
	m.mu.Unlock()
	m.s.work.Go(l.close)
}
