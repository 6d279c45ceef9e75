//go:build linux

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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/auth"
)

// Program is a program that Serve runs.
type Program interface {
	// Handlers returns the handlers for callers outside, which authenticate, and for callers
	// that use the socket: in a sandbox, programs inside.
	Handlers() (outside, inside http.Handler)
	// Inside returns additional addresses: sockets that only the server's user can open and, in
	// a sandbox, addresses for programs inside.
	Inside() []string
	// Begin completes the start while the server already accepts requests. It returns when ctx
	// is done.
	Begin(ctx context.Context)
	// Shutdown prepares the stop while the server still accepts requests.
	Shutdown(ctx context.Context)
	// Close ends everything after the server has stopped.
	Close() error
}

// Releaser is a Program that may stop using one of its inside addresses.
type Releaser interface {
	// OnRelease passes the function that closes such an address. It is called before the program is served.
	OnRelease(release func(address string))
}

// Limits of the phases of a stop.
const (
	stopHooks   = 60 * time.Second       // for all shutdown hooks together
	stopCalls   = 5 * time.Second        // for requests to finish
	stopStreams = 500 * time.Millisecond // until streams and WebSockets are canceled
)

// Listen listens on host:port or unix:/path. It replaces an unused socket. Errors name the variable that sets the address.
func Listen(address, variable string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with --listen or %s=%s", address, err,
				variable, otherAddress(address))
		}
		return l, nil
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("cannot listen on %s: already in use by another server", address)
		}
		os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// otherAddress returns an example of another address: the next port.
func otherAddress(address string) string {
	name, port, err := net.SplitHostPort(address)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || n <= 0 || n >= 65535 {
		return "127.0.0.1:18080"
	}
	return net.JoinHostPort(name, strconv.Itoa(n+1))
}

// Inherit returns the listening socket that the parent process opened as fd.
func Inherit(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on file descriptor %d: %w; it must be an inherited listening socket", fd, err)
	}
	return l, nil
}

// Serve serves on the listener until ctx is done, and then stops in order: hooks, requests,
// services, processes.
func Serve(ctx context.Context, l net.Listener, s Program, log *slog.Logger) error {
	return ServeUntil(ctx, nil, l, s, log)
}

// ServeUntil serves like Serve. If next fires, it stops for a successor and returns
// ErrHandover: in-flight requests are finished, and streams end.
func ServeUntil(ctx context.Context, next <-chan struct{}, l net.Listener, s Program, log *slog.Logger) error {
	base, cancel := context.WithCancel(context.Background())
	defer cancel()
	outside, inside := s.Handlers()
	over := newHandover(base)
	defer over.cut()
	server := newServer(base, over.wrap(outside), log)
	limit := newConnLimit(log)
	server.ConnState = func(c net.Conn, state http.ConnState) {
		over.note(c, state)
		limit.note(c, state)
	}
	// Clients that get a response outside may connect inside, too.
	own, release := serveInside(base, s.Inside(), inside, log)
	if r, ok := s.(Releaser); ok {
		r.OnRelease(release)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	begin, endBegin := context.WithCancel(base)
	var start sync.WaitGroup
	start.Go(func() { s.Begin(begin) })

	var failed error
	calls := stopCalls
	select {
	case <-ctx.Done():
	case failed = <-served:
	case <-next:
		log.Info("handing over to a successor")
		over.announce(ctx)
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		l.Close()
		<-served
		over.drain(ctx)
		calls, failed = handoverCalls, ErrHandover
	}
	log.Info("stopping")
	endBegin()
	start.Wait()
	hooks, done := context.WithTimeout(base, stopHooks)
	s.Shutdown(hooks)
	done()
	// Streams and WebSockets end only when canceled; short calls may finish.
	timer := time.AfterFunc(stopStreams, func() {
		over.cut()
		if calls == stopCalls {
			cancel()
		}
	})
	defer timer.Stop()
	grace, done := context.WithTimeout(context.Background(), calls)
	defer done()
	if err := server.Shutdown(grace); err != nil {
		server.Close()
	}
	cancel()
	own.Close()
	err := s.Close()
	if ctx.Err() != nil {
		failed = nil // stopped on request
	}
	if failed != nil && !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(failed, err)
	}
	log.Info("stopped")
	return err
}

// serveInside serves programs inside the sandbox. If an address cannot be used, it logs a warning,
// and these programs must authenticate like other callers. The returned function closes one of the addresses.
func serveInside(base context.Context, addresses []string, h http.Handler, log *slog.Logger) (*http.Server, func(address string)) {
	server := newServer(base, h, log)
	open := map[string]net.Listener{}
	for _, address := range addresses {
		l, err := listenInside(address)
		if err != nil {
			log.Warn("cannot listen for programs inside", "address", address, "error", err)
			continue
		}
		open[address] = l
		go server.Serve(l)
	}
	return server, func(address string) {
		if l := open[address]; l != nil {
			l.Close()
		}
	}
}

func listenInside(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
	}
	return Listen(address, "AIO_LISTEN")
}

func newServer(base context.Context, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       auth.ConnContext,
		ReadHeaderTimeout: 10 * time.Second, // against clients that send headers slowly
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// "OPTIONS *" must be authenticated like other requests.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
