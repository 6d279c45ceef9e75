package fleet

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// ServerHost is the host of the sandbox's server in URLs for a Box.
	ServerHost = "server"
	portHost   = "port-"
	// bootWait is how long connections are retried after the server refused one: it can be
	// restarting.
	bootWait = 10 * time.Second
	// bufferSize is the size of a connection's write buffer.
	bufferSize = 64 << 10
)

// PortHost is the host of a port inside in URLs for a Box.
func PortHost(port int) string { return portHost + strconv.Itoa(port) }

// IsNative reports whether the server inside is Cove's own, which also serves the other ports of the
// sandbox.
func IsNative(sb sandbox.Sandbox) bool { return sb.Spec.Server.Port == 0 }

// newTransport returns a transport to one sandbox. It keeps few idle connections, because sandboxes
// do not limit them.
func (f *Fleet) newTransport(b *Box) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, _ := strings.Cut(addr, ":")
			port := 0
			if digits, ok := strings.CutPrefix(host, portHost); ok {
				port, _ = strconv.Atoi(digits)
			}
			return f.dial(ctx, b, port)
		},
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second, // shorter than the server's timeout, so that it never closes a connection in use
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
		WriteBufferSize:        bufferSize,
		ReadBufferSize:         bufferSize / 4,
	}
}

// DialError is a failed connection attempt: no part of the request was sent.
type DialError struct {
	Port int // 0: the sandbox's server
	Err  error
}

func (e *DialError) Error() string { return e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// dial connects to a port inside. It wakes a sandbox that was suspended meanwhile, and waits until a
// starting server accepts connections.
func (f *Fleet) dial(ctx context.Context, b *Box, port int) (net.Conn, error) {
	deadline := time.Now().Add(bootWait)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		c, err := f.dialOnce(ctx, b.id, port)
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, sandbox.ErrState):
			if err := f.waitAwake(ctx, b, f.WakeWait); err != nil {
				return nil, &DialError{port, err}
			}
		case port != 0 || errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrUnsupported) || errors.Is(err, sandbox.ErrClosed):
			return nil, &DialError{port, err}
		}
		if time.Now().After(deadline) {
			return nil, &DialError{port, err}
		}
		select {
		case <-ctx.Done():
			return nil, &DialError{port, context.Cause(ctx)}
		case <-time.After(pause):
		}
	}
}

func (f *Fleet) dialOnce(ctx context.Context, id string, port int) (net.Conn, error) {
	ep, err := f.Provider.Endpoint(ctx, id, port)
	if err != nil {
		return nil, err
	}
	return ep.Dial(ctx)
}
