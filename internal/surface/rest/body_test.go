package rest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

type textIn struct {
	Text string `json:"text" doc:"Text"`
}

type textOut struct {
	Length int `json:"length" doc:"Length"`
}

// meter is a Buffer for tests.
type meter struct{ held, most, limit *atomic.Int64 }

func (m meter) Grow(n int) error {
	if m.held.Add(int64(n)) > m.limit.Load() {
		return op.Errorf(op.Exhausted, "request memory exceeded")
	}
	m.most.Store(max(m.most.Load(), m.held.Load()))
	return nil
}
func (m meter) Free() { m.held.Store(0) }

func bounded(t *testing.T, m meter, timeout time.Duration) *httptest.Server {
	t.Helper()
	table := op.NewTable([]op.Op{
		op.New(op.Spec{Name: "text_len", Route: "POST /len", Tag: "t", Doc: "Count."}, func(ctx context.Context, in textIn) (*textOut, error) {
			// The deadline of the body must not end a request that takes longer.
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(2 * timeout):
			}
			return &textOut{len(in.Text)}, nil
		}),
		op.Handle(op.Spec{Content: op.ContentAPI, Name: "reject", Route: "POST /reject", Tag: "t", Doc: "Refuse."},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
			})),
		op.Handle(op.Spec{Content: op.ContentAPI, Name: "raw", Route: "POST /raw", Tag: "t", Doc: "Read.",
			MaxBody: 1 << 20}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				w.WriteHeader(http.StatusBadRequest)
			}
		})),
	})
	s := httptest.NewServer(New(Config{Table: table, Dialect: Hub, MaxBody: 1 << 16, BodyTimeout: timeout,
		Buffer: func(context.Context) Buffer { return m }}))
	t.Cleanup(s.Close)
	return s
}

func newMeter(limit int64) meter {
	m := meter{new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)}
	m.limit.Store(limit)
	return m
}

// TestBodyIsCountedAndTimed: the memory of a body is counted, and a body must arrive in time.
func TestBodyIsCountedAndTimed(t *testing.T) {
	t.Parallel()
	m := newMeter(1 << 15)
	s := bounded(t, m, time.Second)
	post := func(path, text string) (int, string) {
		t.Helper()
		res, err := http.Post(s.URL+path, "application/json", strings.NewReader(`{"text":"`+text+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	if status, body := post("/len", "abc"); status != 200 || !strings.Contains(body, "3") || m.most.Load() < 10 || m.held.Load() != 0 {
		t.Errorf("got %d %s, %d bytes at most, %d now; want 200, counted and freed", status, body, m.most.Load(), m.held.Load())
	}
	if status, body := post("/len", strings.Repeat("x", 1<<15)); status != 429 || !strings.Contains(body, "request memory") {
		t.Errorf("got %d %s, want 429", status, body)
	}
	if status, body := post("/len", strings.Repeat("x", 1<<17)); status != 413 && status != 429 {
		t.Errorf("got %d %s, want 413", status, body)
	}
	if status, _ := post("/raw", strings.Repeat("x", 1<<15)); status != 400 {
		t.Errorf("got %d, want the raw handler to be rejected too", status)
	}
	// An endless body is interrupted.
	for _, path := range []string{"/len", "/raw", "/reject"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", path)
		c.SetReadDeadline(time.Now().Add(time.Minute))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: got %v, want a reply before the minute is over", path, err)
		}
		if res.StatusCode != 400 {
			t.Errorf("%s: got %d, want 400", path, res.StatusCode)
		}
		c.Close()
	}
}
