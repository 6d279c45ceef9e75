package rest

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// heartbeat is the interval of comments, which prevent proxies from closing an idle stream.
const heartbeat = 15 * time.Second

// serveStream sends server-sent events until the operation ends or the caller disconnects.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, o op.Op, in any) {
	op.CallOf(r.Context()).LastEventID = r.Header.Get("Last-Event-ID")
	out := &events{w: w, flush: http.NewResponseController(w)}
	ctx, cancel := context.WithCancel(r.Context())
	var beat sync.WaitGroup
	beat.Go(func() { out.keepAlive(ctx) })
	defer beat.Wait()
	defer cancel()
	err := o.Stream(ctx, in, out.send)
	if err == nil || r.Context().Err() != nil {
		out.open()
		return
	}
	if !out.opened() {
		s.writeError(w, r, o, err)
		return
	}
	if e, ok := op.AsError(err); ok && e.Code != op.Internal {
		_ = out.send(op.Event{Name: "error", Data: failure(e)})
		return
	}
	id := op.CallOf(r.Context()).ID
	s.Log.Error("stream failed", "id", id, "op", o.Name, "error", err)
	_ = out.send(op.Event{Name: "error", Data: failure(&op.Error{Msg: op.InternalMessage(id)})})
}

// events writes one stream, for the operation and the heartbeat.
type events struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	flush *http.ResponseController
	begun bool
}

func (e *events) opened() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begun
}

func (e *events) open() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin()
}

func (e *events) begin() {
	if e.begun {
		return
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	e.w.WriteHeader(http.StatusOK)
	e.flush.Flush()
}

func (e *events) send(ev op.Event) error {
	data, err := op.JSON(ev.Data)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, line := range []struct{ key, value string }{{"id: ", ev.ID}, {"event: ", ev.Name}} {
		if line.value != "" {
			b.WriteString(line.key + strings.NewReplacer("\n", " ", "\r", " ").Replace(line.value) + "\n")
		}
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	return e.write(b.Bytes())
}

func (e *events) write(b []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin()
	if _, err := e.w.Write(b); err != nil {
		return err
	}
	return e.flush.Flush()
}

// keepAlive sends the headers after a short time, for callers that wait for the first event,
// and then a comment at each heartbeat.
func (e *events) keepAlive(ctx context.Context) {
	wait := 200 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if wait == heartbeat {
			if e.write([]byte(": keep-alive\n\n")) != nil {
				return
			}
		}
		e.open()
		wait = heartbeat
	}
}

// serveWebSocket upgrades to a WebSocket. The guard has checked the origin.
func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request, o op.Op, in any) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		writeJSON(w, r, http.StatusUpgradeRequired, map[string]any{"detail": "WebSocket endpoint; connect with a WebSocket client"})
		return
	}
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true,
		Subprotocols:       o.Protocols,
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return
	}
	c.SetReadLimit(16 << 20)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	err = o.Duplex(ctx, in, socket{c})
	code, reason := websocket.StatusNormalClosure, ""
	if e, ok := op.AsError(err); ok {
		code, reason = websocket.StatusPolicyViolation, e.Msg
	} else if err != nil && websocket.CloseStatus(err) == -1 && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		code, reason = websocket.StatusInternalError, op.InternalMessage(op.CallOf(r.Context()).ID)
		s.Log.Warn("websocket failed", "id", op.CallOf(r.Context()).ID, "op", o.Name, "error", err)
	}
	socket{c}.Close(int(code), reason)
}

type socket struct{ c *websocket.Conn }

func (s socket) Read(ctx context.Context) ([]byte, bool, error) {
	kind, data, err := s.c.Read(ctx)
	if errors.Is(err, websocket.ErrMessageTooBig) {
		s.c.CloseNow() // a regular close would read the rest of the message, which may be endless
	}
	return data, kind == websocket.MessageText, err
}

func (s socket) Write(ctx context.Context, data []byte, text bool) error {
	kind := websocket.MessageBinary
	if text {
		kind = websocket.MessageText
	}
	return s.c.Write(ctx, kind, data)
}

func (s socket) Close(code int, reason string) error {
	if len(reason) > 120 {
		reason = reason[:120]
	}
	return s.c.Close(websocket.StatusCode(code), strings.ToValidUTF8(reason, ""))
}
