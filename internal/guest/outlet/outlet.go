// Package outlet is where programs in a sandbox without a network of its own plug in
// to reach the outside: a port on loopback that leads to the hub's proxy, and
// the environment that tells programs of it.
//
// The hub's proxy speaks HTTP, CONNECT and SOCKS5 on a socket that hardly any program
// can be pointed at; the outlet passes each connection on to it, byte for byte. It
// owns its listener and the connections through it. What may be reached is not its
// to say: the hub's rules do that, outside, where the sandbox cannot change them.
//
// A program that knows no proxy finds no way out here. One for those would take
// their connections from elsewhere and ask for their targets by SOCKS5, over the
// same connections that dial makes.
package outlet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config of an outlet.
type Config struct {
	// Target is where the way out begins: "unix:/path" or "tcp:host:port". Empty: the
	// sandbox has a network of its own, and the outlet does nothing.
	Target string
	// Listen is an address on loopback; default 127.0.0.1:3128. When its port is
	// taken, another is used.
	Listen   string
	MaxConns int // at once; default 512, which is the hub's own limit
	// Patience is how long a connection waits for a hub that is being restarted; default 5 s.
	Patience time.Duration
	Log      *slog.Logger
}

const (
	defaultListen   = "127.0.0.1:3128"
	defaultMaxConns = 512
	defaultPatience = 5 * time.Second
)

// Outlet leads out.
type Outlet struct {
	cfg              Config
	network, address string // of the target; empty without one
	listen           netip.AddrPort
	life             context.Context
	end              context.CancelFunc

	mu       sync.Mutex
	closed   bool
	listener net.Listener
	conns    map[net.Conn]bool
	work     sync.WaitGroup
}

// New returns an outlet. It opens nothing.
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
	if o.network, o.address, err = target(cfg.Target); err != nil {
		return nil, err
	}
	o.listen, err = netip.ParseAddrPort(cfg.Listen)
	if err != nil || !o.listen.Addr().IsLoopback() {
		return nil, fmt.Errorf("the outlet cannot listen on %q: use an address on loopback, such as %s", cfg.Listen, defaultListen)
	}
	o.life, o.end = context.WithCancel(context.Background())
	return o, nil
}

// target takes "unix:/path" and "tcp:host:port" apart.
func target(s string) (network, address string, err error) {
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
	return "", "", fmt.Errorf("the way out cannot begin at %q: use unix:/path or tcp:host:port", s)
}

// Open begins to listen. Without a target it does nothing. It comes before the
// environment is given to anybody: only then is the port known.
func (o *Outlet) Open() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return net.ErrClosed
	case o.network == "" || o.listener != nil:
		return nil
	}
	l, err := net.Listen("tcp", o.listen.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(o.listen.Addr(), 0).String())
	}
	if err != nil {
		return fmt.Errorf("open the way out: %w", err)
	}
	o.listener = l
	o.work.Go(func() { o.accept(l) })
	return nil
}

// addr is where the outlet listens, or will if the port is free.
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

// URL is the outlet as an HTTP proxy; empty without a target.
func (o *Outlet) URL() string {
	if o.network == "" {
		return ""
	}
	return "http://" + o.addr().String()
}

// Address is where the outlet listens, which no preview may show; empty without a target.
func (o *Outlet) Address() string { return strings.TrimPrefix(o.URL(), "http://") }

// Close ends everything that passes through, and waits for it.
func (o *Outlet) Close() error {
	o.mu.Lock()
	o.closed = true
	o.end()
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
