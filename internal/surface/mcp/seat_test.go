package mcp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// crowd is a server with limits. Callers name their subject in a header.
type crowd struct {
	t *testing.T
	h *Handler
	s *httptest.Server
}

func newCrowd(t *testing.T, total, owned int) *crowd {
	t.Helper()
	h := New(Config{Name: "toys", Version: "1", Ops: toys, MaxSessions: total, MaxOwnSessions: owned})
	t.Cleanup(func() { h.Close() })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(op.WithCall(r.Context(), &op.Call{Subject: r.Header.Get("X-Subject")})))
	}))
	t.Cleanup(s.Close)
	return &crowd{t, h, s}
}

func (c *crowd) send(method, who, session, body string) (status int, header http.Header, reply string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.s.URL, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-Subject", who)
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

// open opens a session.
func (c *crowd) open(who string) (id string, status int) {
	c.t.Helper()
	status, header, reply := c.send("POST", who, "",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
			`"clientInfo":{"name":"x","version":"1"}}}`)
	if status == http.StatusTooManyRequests && (header.Get("Retry-After") == "" || !strings.Contains(reply, "session limit")) {
		c.t.Errorf("got %q and %s, want a time to retry and a reason", header.Get("Retry-After"), reply)
	}
	return header.Get("Mcp-Session-Id"), status
}

func (c *crowd) ping(who, id string) int {
	c.t.Helper()
	status, _, _ := c.send("POST", who, id, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	return status
}

// TestSessionsOfATenantAreLimited: a tenant at its limit cannot open a session, other tenants can.
// A closed or unused session frees its slot.
func TestSessionsOfATenantAreLimited(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 5, 3)
	var ids []string
	for range 3 {
		id, status := c.open("anna")
		if status != 200 || id == "" {
			t.Fatalf("got %d and the session %q, want one", status, id)
		}
		ids = append(ids, id)
	}
	want := func(what, who string, status int) (id string) {
		t.Helper()
		id, got := c.open(who)
		if got != status {
			t.Errorf("%s: got %d, want %d", what, got, status)
		}
		return id
	}
	want("one too many", "anna", 429)
	want("another tenant", "bert", 200)
	if status, _, _ := c.send("DELETE", "anna", ids[0], ""); status/100 != 2 {
		t.Errorf("got %d, want the session closed", status)
	}
	ids = append(ids[1:], want("after one was closed", "anna", 200))
	// The least recently used session is closed, even if it is not the oldest.
	c.h.seats.mu.Lock()
	for i, ago := range []time.Duration{2 * unusedAfter, 3 * unusedAfter, 0} {
		c.h.seats.byID[ids[i]].used = time.Now().Add(-ago)
	}
	c.h.seats.mu.Unlock()
	want("instead of an unused one", "anna", 200)
	testenv.Poll(t, "the least recently used session is closed", func() bool { return c.ping("anna", ids[1]) == http.StatusNotFound })
	if got := c.ping("anna", ids[0]); got != 200 {
		t.Errorf("another session: got %d, want 200", got)
	}
	want("one of the operator", "", 200)
	want("beyond all limits", "cleo", 429)
	want("the operator beyond all limits", "", 429)
}

// TestManyConcurrentSessions: concurrent requests open at most the allowed number of sessions.
func TestManyConcurrentSessions(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 50, 10)
	results := make(chan int)
	for range 60 {
		go func() {
			_, status := c.open("anna")
			results <- status
		}()
	}
	count := map[int]int{}
	for range 60 {
		count[<-results]++
	}
	if count[200] != 10 || count[429] != 50 {
		t.Errorf("got %v, want 10 sessions and 50 refusals", count)
	}
}

// TestEventsAreBounded: a session loses its own events first, and none uses all the memory.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	s, ctx := newEvents(), context.Background()
	after := func(session string) (n int, err error) {
		for _, e := range s.After(ctx, session, "stream", -1) {
			if err = e; err != nil {
				break
			}
			n++
		}
		return n, err
	}
	add := func(session string, size int) {
		t.Helper()
		if err := s.Open(ctx, session, "stream"); err != nil {
			t.Fatal(err)
		}
		if err := s.Append(ctx, session, "stream", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	add("quiet", 100)
	for range 100 {
		add("loud", 1<<20)
	}
	if n, err := after("quiet"); n != 1 || err != nil {
		t.Errorf("a quiet session next to a loud one: got %d events, %v, want 1", n, err)
	}
	if _, err := after("loud"); err == nil {
		t.Error("a loud session: got all events, want an error for those that were dropped")
	}
	for i := range 20 {
		add(fmt.Sprint("many", i), 1<<20)
	}
	if s.sum > maxEvents {
		t.Errorf("got %d bytes, want at most %d", s.sum, maxEvents)
	}
	if n, err := after("quiet"); n != 1 || err != nil {
		t.Errorf("a quiet session next to many: got %d events, %v, want 1", n, err)
	}
	for i := range 20 {
		s.SessionClosed(ctx, fmt.Sprint("many", i))
	}
	s.SessionClosed(ctx, "loud")
	s.SessionClosed(ctx, "quiet")
	if s.sum != 0 || len(s.byID) != 0 {
		t.Errorf("got %d bytes of %d sessions in the end, want none", s.sum, len(s.byID))
	}
}
