//go:build linux

package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// blank is a program that responds to all requests with 204.
type blank struct{ inside string }

func (b blank) Handlers() (outside, inside http.Handler) { return b, b }
func (b blank) Inside() []string                         { return []string{"unix:" + b.inside} }
func (b blank) Begin(ctx context.Context)                { <-ctx.Done() }
func (blank) Shutdown(context.Context)                   {}
func (blank) Close() error                               { return nil }

func (blank) ServeHTTP(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

// TestInsideListensBeforeOutsideResponds: a client of a restarted hub learns that the hub is back
// from a response, and then uses the hub's own socket.
func TestInsideListensBeforeOutsideResponds(t *testing.T) {
	t.Parallel()
	for range 50 {
		own := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, l, blank{own}, slog.New(slog.DiscardHandler)) }()
		res, err := http.Get("http://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		c, err := net.Dial("unix", own)
		if err != nil {
			t.Fatalf("connect to the socket after a response: %v", err)
		}
		c.Close()
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Fatalf("serve: %v", err)
		}
	}
}

// TestUsedPort: the error about a used port names the setting, with another port.
func TestUsedPort(t *testing.T) {
	t.Parallel()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	port := used.Addr().(*net.TCPAddr).Port
	_, err = Listen(used.Addr().String(), "AIO_LISTEN")
	if want := fmt.Sprintf("--listen or AIO_LISTEN=127.0.0.1:%d", port+1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}
