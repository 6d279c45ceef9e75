package mcp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestBareCallerCannotBeForged: the caller of a bare request is the sender of the request.
func TestBareCallerCannotBeForged(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL,
		strings.NewReader(`{"method":"tools/call","params":{"name":"who"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(headerCall, `{"Subject":"root","Role":"admin"}`)
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(b), "anna user") || strings.Contains(string(b), "root") {
		t.Errorf("got %s, %v, want the caller anna", b, err)
	}
}

// TestBareCallEndsWithItsRequest: the tool ends if the caller disconnects or the server is closed.
func TestBareCallEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"the caller disconnects", "the server is closed"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			begun, ended := make(chan struct{}), make(chan struct{})
			wait := op.New(op.Spec{Name: "wait", Route: "POST /v1/wait", Tag: "toy",
				Doc: "Wait. Until it is canceled."}, func(ctx context.Context, _ toyIn) (string, error) {
				close(begun)
				<-ctx.Done()
				close(ended)
				return "", ctx.Err()
			})
			h := New(Config{Name: "toys", Version: "1", Ops: func() []op.Op { return []op.Op{wait} }})
			t.Cleanup(func() { h.Close() })
			s := httptest.NewServer(h)
			t.Cleanup(s.Close)
			ctx, disconnect := context.WithCancel(t.Context())
			defer disconnect()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader(`{"method":"tools/call","params":{"name":"wait"}}`))
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if res, err := s.Client().Do(r); err == nil {
					res.Body.Close()
				}
			}()
			<-begun
			if end == "the caller disconnects" {
				disconnect()
			} else {
				h.Close()
			}
			<-ended
			<-done
		})
	}
}
