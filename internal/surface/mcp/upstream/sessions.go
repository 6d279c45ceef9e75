package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

const (
	// endpoint is the address of every server. The transport that the caller passes in
	// decides which server that is.
	endpoint = "http://server/mcp"
	// handshakeLimit bounds the opening of a session, closeLimit its closing.
	handshakeLimit = 30 * time.Second
	closeLimit     = 2 * time.Second
	// maxPages and maxListing bound the list of tools, because servers are not trusted.
	maxPages   = 16
	maxListing = 4 << 20
	// maxReply bounds a tool result from a server.
	maxReply = 64 << 20
	// maxMessage bounds a progress message.
	maxMessage = 1 << 10
	// codeNotSent is the code that the SDK gives to errors of the transport. Otherwise they
	// look like errors of the server.
	codeNotSent = -32005
)

// errClosed is returned by Sessions after Close.
var errClosed = errors.New("the MCP client is closed")

// SessionsConfig configures Sessions.
type SessionsConfig struct {
	Name    string
	Version string
	Idle    time.Duration // an unused session is closed after that time; default 10 minutes
	Max     int           // maximum number of sessions; default 256
}

// Sessions calls tools of other servers. It keeps one session per server, which it opens
// when needed and reopens after the server was restarted. It owns the goroutines that open
// and close them.
//
// A server is identified by an ID and reached through a transport. A session keeps the
// transport that it was opened with until it ends, or until Forget.
type Sessions struct {
	cfg    SessionsConfig
	life   context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // users of sessions and goroutines

	reports sync.Map // by progress token: func that reports progress to the caller
	tokens  atomic.Int64

	mu     sync.Mutex
	closed bool
	byID   map[string]*session
}

// session is a session with a server, or the attempt to open it.
type session struct {
	id    string
	ready chan struct{} // closed when conn or err is set
	conn  *mcp.ClientSession
	err   error
	used  time.Time
	busy  int
	idle  *time.Timer // set by the first release
}

// NewSessions returns a client; it opens nothing.
func NewSessions(c SessionsConfig) *Sessions {
	if c.Idle == 0 {
		c.Idle = 10 * time.Minute
	}
	if c.Max == 0 {
		c.Max = 256
	}
	s := &Sessions{cfg: c, byID: map[string]*session{}}
	s.life, s.cancel = context.WithCancel(context.Background())
	return s
}

// ListTools lists the tools of a server, and calls add for each.
func (s *Sessions) ListTools(ctx context.Context, id string, via http.RoundTripper,
	add func(name, description string, inputSchema any)) error {
	var all []*mcp.Tool
	ctx = context.WithValue(ctx, limitKey{}, int64(maxListing))
	err := s.with(ctx, id, via, func(ctx context.Context, c *mcp.ClientSession) error {
		all = nil
		var p mcp.ListToolsParams
		for range maxPages {
			page, err := c.ListTools(ctx, &p)
			if err != nil {
				return err
			}
			all = append(all, page.Tools...)
			if page.NextCursor == "" {
				break
			}
			p.Cursor = page.NextCursor
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range all {
		add(t.Name, t.Description, t.InputSchema)
	}
	return nil
}

// CallTool calls a tool of a server. The result, which may report a failure of the tool, is
// an output that the MCP surface sends unchanged. Progress is reported to the caller.
func (s *Sessions) CallTool(ctx context.Context, id string, via http.RoundTripper, tool string, args json.RawMessage) (any, error) {
	var result *mcp.CallToolResult
	p := &mcp.CallToolParams{Name: tool, Arguments: args}
	if report := op.CallOf(ctx).Progress; report != nil {
		token := "call-" + strconv.FormatInt(s.tokens.Add(1), 10)
		p.SetProgressToken(token)
		s.reports.Store(token, report)
		defer s.reports.Delete(token)
	}
	err := s.with(ctx, id, via, func(ctx context.Context, c *mcp.ClientSession) (err error) {
		result, err = c.CallTool(ctx, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return passed{result}, nil
}

// passed is the result of a tool, as an output.
type passed struct{ *mcp.CallToolResult }

// ToolResult returns the result itself.
func (p passed) ToolResult() any { return p.CallToolResult }

// Forget closes the session with a server.
func (s *Sessions) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.byID[id]; ok {
		s.drop(c)
	}
}

// Close ends all calls and sessions without notice to the servers, and refuses new ones.
// It is idempotent.
func (s *Sessions) Close() error {
	s.mu.Lock()
	s.closed = true
	left := s.byID
	s.byID = map[string]*session{}
	s.mu.Unlock()
	s.cancel()
	for _, c := range left {
		c.close()
	}
	s.work.Wait()
	return nil
}

// with runs f in a session. If a restarted server does not know the session, with reopens
// it and runs f again, because the server has not executed the first request. If the server
// refuses the request, the error is an op.Error with its message.
func (s *Sessions) with(ctx context.Context, id string, via http.RoundTripper, f func(context.Context, *mcp.ClientSession) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errClosed) })()
	for retried := false; ; retried = true {
		c, err := s.acquire(ctx, id, via)
		if err == nil {
			err = f(ctx, c.conn)
			_, works := errors.AsType[*jsonrpc.Error](err)
			s.release(c, err == nil || works)
		}
		switch answer, ok := errors.AsType[*jsonrpc.Error](err); {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.life.Err() != nil: // ctx is canceled a little later
			return errClosed
		case !retried && errors.Is(err, mcp.ErrSessionMissing):
		case ok && answer.Code != codeNotSent:
			return op.Errorf(op.Invalid, "%s", answer.Message)
		default:
			return err
		}
	}
}

// acquire returns an open session; the caller must release it.
func (s *Sessions) acquire(ctx context.Context, id string, via http.RoundTripper) (*session, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	c, ok := s.byID[id]
	if !ok {
		c = &session{id: id, ready: make(chan struct{})}
		s.byID[id] = c
		s.evict()
		s.work.Go(func() { s.open(c, via) })
	}
	c.busy++
	c.used = time.Now()
	s.work.Add(1)
	s.mu.Unlock()
	select {
	case <-c.ready:
	case <-ctx.Done():
		s.release(c, true)
		return nil, context.Cause(ctx)
	}
	if c.err != nil {
		s.release(c, false)
		return nil, c.err
	}
	return c, nil
}

// open performs the handshake. It serves all callers that wait for the session, so it does
// not end with the context of one of them.
func (s *Sessions) open(c *session, via http.RoundTripper) {
	defer close(c.ready)
	ctx, cancel := context.WithTimeout(context.WithValue(s.life, limitKey{}, int64(maxListing)), handshakeLimit)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: s.cfg.Name, Version: s.cfg.Version}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{}, ProgressNotificationHandler: s.passProgress,
	})
	c.conn, c.err = client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:   endpoint,
		HTTPClient: &http.Client{Transport: transport{via, s.life}},
		MaxRetries: -1,
		// The server sends nothing without a request, and an open stream would keep a sandbox awake.
		DisableStandaloneSSE: true,
		MaxEventSize:         maxReply,
	}, nil)
}

// passProgress reports the progress of a call to its caller. Reports about unknown calls are
// ignored.
func (s *Sessions) passProgress(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
	token, _ := r.Params.ProgressToken.(string)
	if report, ok := s.reports.Load(token); ok {
		message := r.Params.Message
		if len(message) > maxMessage {
			message = strings.ToValidUTF8(message[:maxMessage], "")
		}
		report.(func(done, total float64, message string))(r.Params.Progress, r.Params.Total, message)
	}
}

// release ends the use of a session. A failed session is not used again.
func (s *Sessions) release(c *session, healthy bool) {
	defer s.work.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.busy--
	c.used = time.Now()
	switch kept := s.byID[c.id] == c; {
	case kept && !healthy:
		s.drop(c)
	case !kept && c.busy == 0:
		s.end(c)
	case kept && c.idle == nil:
		c.idle = time.AfterFunc(s.cfg.Idle, func() { s.expire(c) })
	case kept:
		c.idle.Reset(s.cfg.Idle)
	}
}

// expire closes a session that was unused for its idle time.
func (s *Sessions) expire(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[c.id] == c && c.busy == 0 && time.Since(c.used) >= s.cfg.Idle {
		s.drop(c)
	}
}

// evict closes the least recently used session if there are too many. Sessions in use are
// never closed, so their number can exceed the limit. mu is held.
func (s *Sessions) evict() {
	if len(s.byID) <= s.cfg.Max {
		return
	}
	var oldest *session
	for _, c := range s.byID {
		if c.busy == 0 && !c.used.IsZero() && (oldest == nil || c.used.Before(oldest.used)) {
			oldest = c
		}
	}
	if oldest != nil {
		s.drop(oldest)
	}
}

// drop removes a session, which ends when its last user releases it. mu is held.
func (s *Sessions) drop(c *session) {
	delete(s.byID, c.id)
	if c.busy == 0 {
		s.end(c)
	}
}

// end closes a session in the background, because the server may never answer. mu is held.
func (s *Sessions) end(c *session) { s.work.Go(c.close) }

func (c *session) close() {
	<-c.ready
	if c.idle != nil {
		c.idle.Stop()
	}
	if c.conn != nil {
		c.conn.Close()
	}
}

// limitKey carries the maximum size of a response, in bytes.
type limitKey struct{}

// transport bounds responses and continues traces.
type transport struct {
	http.RoundTripper
	life context.Context
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodDelete {
		return t.leave(r), nil
	}
	span.Inject(r.Context(), r.Header)
	res, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	limit, ok := r.Context().Value(limitKey{}).(int64)
	if !ok {
		limit = maxReply
	}
	// The SDK reads a response into memory, and the server is not trusted.
	res.Body = http.MaxBytesReader(nil, res.Body, limit)
	return res, nil
}

// leave tells the server that the session ends, as best effort: the server closes unused
// sessions itself.
func (t transport) leave(r *http.Request) *http.Response {
	ctx, cancel := context.WithTimeout(r.Context(), closeLimit)
	defer cancel()
	if t.life.Err() == nil {
		if res, err := t.RoundTripper.RoundTrip(r.WithContext(ctx)); err == nil {
			res.Body.Close()
		}
	}
	return &http.Response{StatusCode: http.StatusNoContent, Proto: r.Proto, Header: http.Header{}, Body: http.NoBody, Request: r}
}
