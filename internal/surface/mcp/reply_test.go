package mcp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestSilentStreamsStayOpen: a silent stream sends comments until it ends.
func TestSilentStreamsStayOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		s := keepAlive(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/mcp", nil))
		s.Header().Set("Content-Type", "text/event-stream")
		s.WriteHeader(http.StatusOK)
		fmt.Fprint(s, "data: one\n\n")
		testenv.Advance(2*keepAlivePause + time.Second)
		cancel()
		testenv.Advance(5 * keepAlivePause)
		if got, want := w.Body.String(), "data: one\n\n"+strings.Repeat(": keep-alive\n\n", 2); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestBatchesAreBounded: a request contains at most 50 messages.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	for _, c := range []struct {
		messages int
		refused  bool
	}{{maxBatch, false}, {maxBatch + 1, true}, {5000, true}} {
		body := "[" + strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/initialized"},`, c.messages-1) +
			`{"jsonrpc":"2.0","id":1,"method":"ping"}]`
		res, err := s.Client().Post(s.URL+"/mcp", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if refused := strings.Contains(string(b), "a batch may contain at most 50 messages") &&
			res.StatusCode == http.StatusBadRequest; err != nil || refused != c.refused {
			t.Errorf("%d messages: got status %d, %s, error %v, want refused %v", c.messages, res.StatusCode, b, err, c.refused)
		}
	}
}

// TestEventsHaveNoName: events that clients resume at have no name, which clients warn about.
func TestEventsHaveNoName(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	session := ""
	post := func(body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Mcp-Session-Id", session)
		res, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		session = res.Header.Get("Mcp-Session-Id")
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	got := post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},` +
		`"clientInfo":{"name":"a","version":"1"}}}`)
	got += post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"text"}}`)
	if !strings.Contains(got, "data: \n\n") || !strings.Contains(got, "a line") || strings.Contains(got, "event: prime") {
		t.Errorf("got %q, want empty events without a name", got)
	}
}
