// Package relay is the egress of a sandbox that has no network of its own: a port
// on loopback that forwards to the hub's proxy, and the environment that points
// programs to it.
//
// The hub's proxy speaks HTTP, CONNECT and SOCKS5 on a socket that hardly any
// program can use as a proxy; the outlet forwards each connection to it unchanged.
// It owns its listener and its connections. It does not decide what may be reached:
// the hub's rules do, outside, where the sandbox cannot change them.
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

// Config of an outlet.
type Config struct {
	// Target is the address of the hub's proxy: "unix:/path" or "tcp:host:port".
	// Empty: the sandbox has its own network, and the outlet does nothing.
	Target string
	// Always makes it listen without a target too, for a handler.
	Always bool
	// Listen is an address on loopback; default 127.0.0.1:8118. If the port is in
	// use, the outlet chooses another one.
	Listen   string
	MaxConns int // maximum concurrent connections; default 512, the hub's own limit
	// Patience is how long a connection waits while the hub restarts; default 5 s.
	Patience time.Duration
	// Open admits every user. It is for a sandbox, whose loopback is its own; on a machine,
	// only root, the user that runs this program and Users may connect: others would reach
	// what this user may reach, such as servers that admit nobody else.
	Open  bool
	Users []int
	Log   *slog.Logger
}

const (
	defaultListen   = "127.0.0.1:8118"
	defaultMaxConns = 512
	defaultPatience = 5 * time.Second
)

// Outlet forwards connections to the hub's proxy.
type Outlet struct {
	cfg              Config
	network, address string // of the target; empty without one
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

// New returns an outlet. It has no side effects.
func New(cfg Config) (*Outlet, error) {
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
	o := &Outlet{cfg: cfg, conns: map[net.Conn]bool{}}
	var err error
	if o.network, o.address, err = parseTarget(cfg.Target); err != nil {
		return nil, err
	}
	o.listen, err = netip.ParseAddrPort(cfg.Listen)
	if err != nil || !o.listen.Addr().IsLoopback() {
		return nil, fmt.Errorf("invalid listen address %q for egress; use a loopback address such as %s", cfg.Listen, defaultListen)
	}
	o.life, o.cancel = context.WithCancel(context.Background())
	return o, nil
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

// Open begins to listen. Without a target it does nothing. Call it before Env:
// only then is the port known.
func (o *Outlet) Open() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return net.ErrClosed
	case o.network == "" && !o.cfg.Always || o.listener != nil:
		return nil
	}
	l, err := net.Listen("tcp", o.listen.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(o.listen.Addr(), 0).String())
	}
	if err != nil {
		return fmt.Errorf("open egress: %w", err)
	}
	if !o.cfg.Open {
		l = peer.Guard(l, o.cfg.Users, o.cfg.Log)
	}
	o.listener = l
	o.work.Go(func() { o.accept(l) })
	return nil
}

// addr is the address that the outlet listens on, or will if the port is free.
func (o *Outlet) addr() netip.AddrPort {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener != nil {
		if tcp, ok := o.listener.Addr().(*net.TCPAddr); ok {
			return tcp.AddrPort()
		}
	}
	return o.listen
}

// URL is the proxy URL of the outlet; empty without a target.
func (o *Outlet) URL() string {
	if o.network == "" && !o.cfg.Always {
		return ""
	}
	return "http://" + o.addr().String()
}

// Handle makes handle serve connections from now on, instead of forwarding them
// unchanged. It may close the connection; the outlet does when it returns.
func (o *Outlet) Handle(handle func(net.Conn)) { o.handler.Store(&handle) }

// HasTarget reports whether there is a hub's proxy to dial.
func (o *Outlet) HasTarget() bool { return o.network != "" }

// Address is the address that the outlet listens on, which previews must not reach; empty without a target.
func (o *Outlet) Address() string { return strings.TrimPrefix(o.URL(), "http://") }

// Close closes all connections and waits until they have ended.
func (o *Outlet) Close() error {
	o.mu.Lock()
	o.closed = true
	o.cancel()
	if o.listener != nil {
		o.listener.Close()
	}
	for c := range o.conns {
		c.Close()
	}
	o.mu.Unlock()
	o.work.Wait()
	return nil
}
