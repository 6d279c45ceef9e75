package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// serve runs a fake browser, for behavior that a real browser does not show on demand.
func serve(t testing.TB, cfg Config, fn func(context.Context, *websocket.Conn)) *Client {
	t.Helper()
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(-1)
		fn(r.Context(), ws)
	}))
	c, err := Dial(testContext(t), "ws"+strings.TrimPrefix(srv.URL, "http"), cfg)
	must(t, err)
	t.Cleanup(func() {
		c.Close()
		<-ended
		srv.Close()
	})
	return c
}

func TestInvalidMessagesAreIgnored(t *testing.T) {
	t.Parallel()
	c := serve(t, Config{}, func(ctx context.Context, ws *websocket.Conn) {
		_, msg, err := ws.Read(ctx)
		if err != nil {
			return
		}
		var m message
		_ = json.Unmarshal(msg, &m)
		for _, odd := range []string{"", "null", "[]", "{", `{"id":`, `{"id":99999999999999999999,"result":{}}`, `{"id":-1,"result":{}}`,
			`{"id":"1"}`, `{"id":77,"result":{}}`, `{"method":5}`, `{"method":"Target.detachedFromTarget","params":[]}`,
			`{"method":"Target.detachedFromTarget"}`, "\xff\x00",
			fmt.Sprintf(`{"result":{"value":"late"}, "id" : %d }`, m.ID)} {
			if ws.Write(ctx, websocket.MessageText, []byte(odd)) != nil {
				return
			}
		}
		// A second reply to the same call has no receiver.
		_ = ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"id":%d,"result":{"value":"again"}}`, m.ID))
		_, _, _ = ws.Read(ctx)
	})
	var got struct{ Value string }
	must(t, c.Call(testContext(t), Browser, "X.y", nil, &got))
	if got.Value != "late" {
		t.Errorf("the result is %q, want Value \"late\"", got.Value)
	}
	if err := c.Err(); err != nil {
		t.Errorf("the connection ended: %v", err)
	}
}

func TestMessageBeyondTheLimitEndsTheConnection(t *testing.T) {
	t.Parallel()
	c := serve(t, Config{MaxMessage: 1000}, func(ctx context.Context, ws *websocket.Conn) {
		_, _, _ = ws.Read(ctx)
		_ = ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"id":1,"result":%q}`, strings.Repeat("x", 2000)))
		_, _, _ = ws.Read(ctx)
	})
	err := c.Call(testContext(t), Browser, "X.y", nil, nil)
	if !errors.Is(err, ErrClosed) || !errors.Is(err, websocket.ErrMessageTooBig) {
		t.Errorf("the call ended with %v, want %v, %v", err, ErrClosed, websocket.ErrMessageTooBig)
	}
}

func TestBrowserThatReadsNothing(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	c := serve(t, Config{WriteTimeout: time.Second}, func(ctx context.Context, ws *websocket.Conn) { <-stop })
	defer close(stop)
	// More than the buffers of the network.
	big := make(chan error, 1)
	go func() {
		big <- c.Call(testContext(t), Browser, "X.y", map[string]string{"data": strings.Repeat("x", 32<<20)}, nil)
	}()
	// Callers return when their context ends, whether or not their message was sent.
	for range 3 * cap(c.out) {
		ctx, cancel := context.WithTimeout(testContext(t), time.Millisecond)
		if err := c.Call(ctx, Browser, "X.y", nil, nil); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrClosed) {
			t.Errorf("the call ended with %v, want a timeout or ErrClosed", err)
		}
		cancel()
	}
	if err := <-big; !errors.Is(err, ErrClosed) {
		t.Errorf("the unsent call ended with %v, want %v", err, ErrClosed)
	}
	<-c.Done()
}

func TestQueueIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	const events = 100
	payload := strings.Repeat("x", 1000)
	flooded := make(chan struct{})
	c := serve(t, Config{}, func(ctx context.Context, ws *websocket.Conn) {
		_, _, _ = ws.Read(ctx)
		for i := range events {
			_ = ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"method":"A.b","params":{"n":%d,"x":%q}}`, i, payload))
		}
		_ = ws.Write(ctx, websocket.MessageText, []byte(`{"id":1,"result":{}}`))
		close(flooded)
		_, _, _ = ws.Read(ctx)
	})
	ctx := testContext(t)
	few := c.Subscribe(Filter{Methods: []string{"A.b"}, MaxBytes: 5500})
	none := c.Subscribe(Filter{Methods: []string{"A.b"}, MaxBytes: 10})
	other := c.Subscribe(Filter{Methods: []string{"C.d"}})
	closed := c.Subscribe(Filter{})
	closed.Close()
	must(t, c.Call(ctx, Browser, "X.y", nil, nil))
	<-flooded
	if few.Dropped() != events-5 || none.Dropped() != events || other.Dropped() != 0 {
		t.Errorf("dropped %d, %d and %d events, want Dropped %v, Dropped %v, Dropped 0", few.Dropped(),
			none.Dropped(), other.Dropped(), events-5, events)
	}
	e, err := few.Next(ctx)
	must(t, err)
	var p struct{ N int }
	must(t, e.Decode(&p))
	if p.N != events-5 {
		t.Errorf("the oldest kept event is %d, want N %v", p.N, events-5)
	}
	if _, err := closed.Next(ctx); !errors.Is(err, errUnsubscribed) {
		t.Errorf("a closed subscription ended with %v, want %v", err, errUnsubscribed)
	}
}

func TestReplyID(t *testing.T) {
	t.Parallel()
	for msg, want := range map[string]int64{
		`{"id":7,"result":{}}`: 7, `{"id":123456789012345678,"result":{}}`: 123456789012345678, `{"id":1}`: 1,
		`{"id":0,"result":{}}`: 0, `{"id":7.5}`: 0, `{"id":-7}`: 0, `{"id":1234567890123456789}`: 0, `{"id":`: 0, `{"id":7`: 0,
		`{"method":"A.b"}`: 0, ``: 0, `{ "id":7}`: 0,
	} {
		if got, ok := replyID([]byte(msg)); got != want || ok != (want != 0) {
			t.Errorf("%s: %d, %v, want %v, ok %v", msg, got, ok, want, (want != 0))
		}
	}
}

// FuzzRoute feeds messages to a client that waits for a reply, has a session and a small queue.
func FuzzRoute(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"result":{"a":1}}`, `{"id":1,"error":{"code":-32001,"message":"m","data":"d"}}`, `{"id":2}`, `{"id":01}`,
		`{"method":"A.b","params":{},"sessionId":"s"}`, `{"method":"Target.detachedFromTarget","params":{"sessionId":"s"}}`, `{"error":{}}`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		c := &Client{done: make(chan struct{}), pending: map[int64]*call{}, subs: map[*Subscription]struct{}{}}
		wait := &call{session: "s", reply: make(chan []byte, 1), failed: make(chan error, 1)}
		c.pending[1] = wait
		s := c.Subscribe(Filter{AllSessions: true, MaxEvents: 2, MaxBytes: 100})
		c.Subscribe(Filter{Session: "s"})
		for range 3 {
			c.route(msg)
		}
		if len(s.queue) > 2 || s.bytes > 100 {
			t.Errorf("the queue holds %d events of %d bytes, want at most 2 events and 100 bytes", len(s.queue), s.bytes)
		}
		select {
		case raw := <-wait.reply:
			var result any
			_ = decodeReply("A.b", raw, &result)
		case <-wait.failed:
		default:
		}
	})
}
