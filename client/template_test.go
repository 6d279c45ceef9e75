package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestBuildLog: the log resumes after a broken connection without losing or repeating a line, and ends with the build.
func TestBuildLog(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if calls.Add(1) == 1 {
			fmt.Fprint(w, "id: 1\ndata: {\"text\":\"one\"}\n\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		if got := r.Header.Get("Last-Event-ID"); got != "1" {
			t.Errorf("resumes after %q, want 1", got)
		}
		fmt.Fprint(w, "id: 2\ndata: {\"text\":\"two\",\"step\":\"3\"}\n\n")
	}))
	defer s.Close()
	c, err := New(Config{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []string
	for e, err := range c.Templates().BuildLog(t.Context(), "b") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Text+e.Step)
	}
	if strings.Join(got, " ") != "one two3" {
		t.Errorf("got %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range c.Templates().BuildLog(ctx, "b") {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want a cancellation", err)
		}
	}
}

// TestUploadFiles: only missing files are sent, to the hub that the client calls, and the error of their source is returned.
func TestUploadFiles(t *testing.T) {
	t.Parallel()
	var present atomic.Bool
	var received atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			fmt.Fprintf(w, `{"code":"SUCCESS","data":{"present":%v,"url":"http://elsewhere.invalid/x?upload=ticket"}}`, present.Load())
			return
		}
		b, err := io.ReadAll(r.Body)
		if err == nil {
			received.Store(r.URL.RequestURI() + " " + string(b))
		}
	}))
	defer s.Close()
	c, err := New(Config{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write := func(w io.Writer) error { _, err := io.WriteString(w, "content"); return err }
	if sent, err := c.Templates().UploadFiles(t.Context(), "h", write); !sent || err != nil {
		t.Errorf("got %v, %v, want an upload", sent, err)
	}
	if got := received.Load(); got != "/api/v1/template/upload?upload=ticket content" {
		t.Errorf("the hub received %v", got)
	}
	failed := errors.New("a file changed")
	if _, err := c.Templates().UploadFiles(t.Context(), "h", func(io.Writer) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of the source", err)
	}
	present.Store(true)
	sent, err := c.Templates().UploadFiles(t.Context(), "h", func(io.Writer) error { t.Error("present files are sent"); return nil })
	if sent || err != nil {
		t.Errorf("got %v, %v for present files", sent, err)
	}
}
