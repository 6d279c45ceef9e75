package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Program is what Serve drives.
type Program interface {
	// Handlers for callers outside, who sign in, and for those inside.
	Handlers() (outside, inside http.Handler)
	// Inside is the path of the socket for callers inside; empty: there is none.
	Inside() string
	Begin(ctx context.Context)
	Shutdown(ctx context.Context)
	Close() error
}

const (
	stopHooks   = 60 * time.Second // all shutdown hooks together
	stopCalls   = 5 * time.Second  // requests that are being answered
	stopStreams = 500 * time.Millisecond
)

// Listen opens host:port or unix:/path. A socket that nobody serves any more is
// replaced; one that is served is not.
func Listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w; choose another with --listen", address, err)
		}
		return l, nil
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("listen on %s: another server answers there", address)
		}
		os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Inherit takes over a socket that whoever started us has opened.
func Inherit(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on descriptor %d: %w; it must be a listening socket that was handed over", fd, err)
	}
	return l, nil
}

// Serve answers on the listener until ctx ends, then stops in order: hooks,
// requests, services, processes, listener.
func Serve(ctx context.Context, l net.Listener, s Program, log *slog.Logger) error {
	base, cancel := context.WithCancel(context.Background())
	defer cancel()
	outside, inside := s.Handlers()
	server := newServer(base, outside, log)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	own := serveInside(base, s.Inside(), inside, log)
	begin, endBegin := context.WithCancel(base)
	var start sync.WaitGroup
	start.Go(func() { s.Begin(begin) })

	var failed error
	select {
	case <-ctx.Done():
	case failed = <-served:
	}
	log.Info("stopping")
	endBegin()
	start.Wait()
	hooks, done := context.WithTimeout(base, stopHooks)
	s.Shutdown(hooks)
	done()
	// Streams and sockets live until they are told; short calls may finish.
	timer := time.AfterFunc(stopStreams, cancel)
	defer timer.Stop()
	grace, done := context.WithTimeout(context.Background(), stopCalls)
	defer done()
	if err := server.Shutdown(grace); err != nil {
		server.Close()
	}
	cancel()
	own.Close()
	err := s.Close()
	if failed != nil && !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(failed, err)
	}
	log.Info("stopped")
	return err
}

// serveInside answers programs of the sandbox itself. Without its socket they are
// callers like all others, which is worth a warning but no reason not to serve.
func serveInside(base context.Context, path string, h http.Handler, log *slog.Logger) *http.Server {
	server := newServer(base, h, log)
	if path == "" {
		return server
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		var l net.Listener
		if l, err = Listen("unix:" + path); err == nil {
			go server.Serve(l)
			return server
		}
	}
	log.Warn("programs inside must sign in", "error", err)
	return server
}

func newServer(base context.Context, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second, // a caller that dawdles over its headers
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// "OPTIONS *" must pass the sign-in like everything else.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
