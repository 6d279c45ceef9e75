package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

const (
	// maxBatch is the maximum number of messages in a request.
	maxBatch = 50
)

// ServeHTTP serves clients of every version of the protocol. It also serves bare requests
// without a handshake, with which small scripts call a tool.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := h.build()
	sendCall(r)
	jsonOnly := !acceptsEvents(r)
	if r.Method != http.MethodPost {
		if r.Method == http.MethodGet && jsonOnly {
			http.Error(w, "Accept must contain text/event-stream", http.StatusNotAcceptable)
			return
		}
		h.serveSession(w, r, e, false, func() { e.sessions.ServeHTTP(keepAlive(w, r), r) })
		return
	}
	body, err := h.bodies.read(http.MaxBytesReader(w, r.Body, h.MaxBody), r.ContentLength)
	if err != nil {
		refuseBody(w, err)
		return
	}
	m := inspect(body)
	if m.count > maxBatch {
		refuse(w, http.StatusBadRequest, -32600, "a batch may contain at most 50 messages")
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(m.body)), int64(len(m.body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	switch modern := r.Header.Get("Mcp-Protocol-Version") >= upstream.Stateless; {
	case modern && jsonOnly:
		e.single.ServeHTTP(w, ownCall(r))
	case modern:
		e.streams.ServeHTTP(keepAlive(w, r), ownCall(r))
	case r.Header.Get("Mcp-Session-Id") != "" || m.opens:
		h.serveSession(w, r, e, m.opens, func() {
			if jsonOnly {
				serveJSON(w, r, e.sessions)
				return
			}
			e.sessions.ServeHTTP(keepAlive(w, r), r)
		})
	case h.answer(w, r, e, m):
	case m.bare:
		repeatContent(w, ownCall(r), e.single)
	default:
		e.single.ServeHTTP(w, ownCall(r))
	}
}

func refuse(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": message}})
	w.Write(b)
}

func acceptsEvents(r *http.Request) bool {
	for _, v := range r.Header.Values("Accept") {
		if strings.Contains(v, "text/event-stream") || strings.Contains(v, "text/*") {
			return true
		}
	}
	return false
}

// message describes a request body.
type message struct {
	body  []byte // completed
	count int
	opens bool // it opens a session
	bare  bool // parts of a JSON-RPC request were missing

	// Of a single request.
	method string
	id     json.RawMessage
	params json.RawMessage
}

// inspect parses a body, and completes a bare {"method", "params"} to a JSON-RPC request.
func inspect(body []byte) message {
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] == '[' {
		var batch []struct{ Method string }
		if json.Unmarshal(body, &batch) != nil {
			return message{body: body, count: 1}
		}
		m := message{body: body, count: len(batch)}
		for _, one := range batch {
			m.opens = m.opens || one.Method == "initialize"
		}
		return m
	}
	var head struct {
		Method     *string
		Version    json.RawMessage `json:"jsonrpc"`
		ID, Params json.RawMessage
	}
	if json.Unmarshal(body, &head) != nil || head.Method == nil {
		return message{body: body, count: 1}
	}
	m := message{body: body, count: 1, opens: *head.Method == "initialize", method: *head.Method, id: head.ID, params: head.Params}
	if head.Version != nil {
		return m
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(body, &all) != nil {
		return m
	}
	all["jsonrpc"] = json.RawMessage(`"2.0"`)
	if all["id"] == nil {
		all["id"] = json.RawMessage(`1`)
	}
	if completed, err := json.Marshal(all); err == nil {
		m.body, m.bare, m.id = completed, true, all["id"]
	}
	return m
}

// ownerKey carries the context of the HTTP request that a call belongs to.
type ownerKey struct{}

// ownCall returns a request whose calls end with it.
func ownCall(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), ownerKey{}, r.Context()))
}

// withOwner returns a context that also ends with the HTTP request.
func withOwner(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	owner, ok := ctx.Value(ownerKey{}).(context.Context)
	if !ok {
		return ctx, cancel
	}
	stop := context.AfterFunc(owner, cancel)
	return ctx, func() { stop(); cancel() }
}

// callerID identifies the credentials of a caller.
func callerID(c *op.Call) string {
	id := c.Subject + "\x00" + c.KeyID
	if c.Share != nil {
		id += "\x00" + c.Share.ID
	}
	return id
}

// bindSessions allows only the caller that opened a session to use it. Other callers that
// know its ID are refused.
func bindSessions(next http.Handler) http.Handler {
	verify := func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: "caller " + callerID(op.CallOf(r.Context())), Expiration: time.Now().Add(time.Hour)}, nil
	}
	bound := auth.RequireBearerToken(verify, nil)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer caller") // credentials are already verified
		bound.ServeHTTP(w, r)
	})
}
