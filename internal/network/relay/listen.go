// Package relay forwards connections from a loopback port in a sandbox to the egress proxy of its hub, and owns the
// environment variables that point programs to that port.
//
// The egress proxy speaks HTTP, CONNECT and SOCKS5 on a socket that few programs can use as a proxy. The relay forwards each
// connection to it unchanged, or passes it to the sandbox's own proxy. It owns its listener and its connections. It does not
// decide which hosts are reachable: the egress proxy does, outside of the sandbox.
//
// Programs without proxy support cannot use it.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/auth/peer"
)

// Config of a relay.
type Config struct {
	// Target is the address of the egress proxy: "unix:/path" or "tcp:host:port". If it is empty, the sandbox has direct
	// network access and the relay does nothing.
	Target string
	// Always makes the relay listen without a target too, for a handler.
	Always bool
	// Listen is a loopback address; default 127.0.0.1:8118. If the port is in use, the relay selects another one.
	Listen   string
	MaxConns int // maximum number of concurrent connections; default 16384, as in the egress proxy
	// Patience is how long a connection waits while the hub restarts; default 5 s.
	Patience time.Duration
	// Open allows connections of every user, which is safe on the loopback interface of a sandbox. On a machine, only root,
	// the user of this process and Users may connect: others could reach servers that accept only this user.
	Open  bool
	Users []int
	Log   *slog.Logger
}

const (
	defaultListen   = "127.0.0.1:8118"
	defaultMaxConns = 16 << 10
	defaultPatience = 5 * time.Second
)

// Relay forwards connections to the egress proxy.
type Relay struct {
	cfg              Config
	network, address string // of the target; empty if there is none
	listen           netip.AddrPort
	handler          atomic.Pointer[func(net.Conn)]
	life             context.Context
	cancel           context.CancelFunc

	mu       sync.Mutex
	closed   bool
	listener net.Listener
	conns    map[net.Conn]bool
	work     sync.WaitGroup
}

// New returns a relay. It has no side effects.
func New(cfg Config) (*Relay, error) {
	if cfg.Listen == "" {
		cfg.Listen = defaultListen
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = defaultMaxConns
	}
	if cfg.Patience <= 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Relay{cfg: cfg, conns: map[net.Conn]bool{}}
	var err error
	if r.network, r.address, err = parseTarget(cfg.Target); err != nil {
		return nil, err
	}
	r.listen, err = netip.ParseAddrPort(cfg.Listen)
	if err != nil || !r.listen.Addr().IsLoopback() {
		return nil, fmt.Errorf("invalid listen address %q of the relay; use a loopback address such as %s", cfg.Listen, defaultListen)
	}
	r.life, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// parseTarget parses "unix:/path" and "tcp:host:port".
func parseTarget(s string) (network, address string, err error) {
	if s == "" {
		return "", "", nil
	}
	network, address, _ = strings.Cut(s, ":")
	switch network {
	case "unix":
		if strings.HasPrefix(address, "/") {
			return network, address, nil
		}
	case "tcp":
		if host, port, err := net.SplitHostPort(address); err == nil && host != "" && port != "" {
			return network, address, nil
		}
	}
	return "", "", fmt.Errorf("invalid egress target %q; use unix:/path or tcp:host:port", s)
}

// Open starts listening. It does nothing if there is no target and Always is false. Call it before Env, which needs the
// port.
func (r *Relay) Open() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return net.ErrClosed
	case r.network == "" && !r.cfg.Always || r.listener != nil:
		return nil
	}
	l, err := net.Listen("tcp", r.listen.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(r.listen.Addr(), 0).String())
	}
	if err != nil {
		return fmt.Errorf("open relay: %w", err)
	}
	if !r.cfg.Open {
		l = peer.Guard(l, r.cfg.Users, r.cfg.Log)
	}
	r.listener = l
	r.work.Go(func() { r.accept(l) })
	return nil
}

// addr returns the address that the relay listens on, or the configured one before Open.
func (r *Relay) addr() netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		if tcp, ok := r.listener.Addr().(*net.TCPAddr); ok {
			return tcp.AddrPort()
		}
	}
	return r.listen
}

// URL returns the proxy URL of the relay. It is empty if the relay does not listen.
func (r *Relay) URL() string {
	if r.network == "" && !r.cfg.Always {
		return ""
	}
	return "http://" + r.addr().String()
}

// Handle passes new connections to handle instead of forwarding them. The relay closes a connection when handle returns.
func (r *Relay) Handle(handle func(net.Conn)) { r.handler.Store(&handle) }

// HasTarget reports whether there is an egress proxy to dial.
func (r *Relay) HasTarget() bool { return r.network != "" }

// Address returns the address that the relay listens on, which previews must not reach. It is empty if the relay does not
// listen.
func (r *Relay) Address() string { return strings.TrimPrefix(r.URL(), "http://") }

// Close closes all connections and waits until they have ended.
func (r *Relay) Close() error {
	r.mu.Lock()
	r.closed = true
	r.cancel()
	if r.listener != nil {
		r.listener.Close()
	}
	for c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.work.Wait()
	return nil
}
