//go:build linux

// Package replica lets several hubs share one state folder behind one address. One replica is active; the
// others forward their connections to it, and one of them takes over when it ends. So a request to any
// replica reaches every sandbox, and there is one clock, one pool and one writer of each file.
//
// It owns the files replica.* of the folder. The active replica holds a lock, which the kernel or the file
// server releases when the process ends. Replicas authenticate with a key in the folder, so that only they
// can forward connections and the addresses of clients.
package replica

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

// Config of a Member.
type Config struct {
	Dir     string // shared by all replicas
	Address string // host:port for connections of other replicas while this one is active
	Log     *slog.Logger
	// MaxConns is the maximum number of connections that are forwarded or wait, of which one address can
	// have half; default 8192.
	MaxConns int
}

const (
	lockTime  = 200 * time.Millisecond // interval of attempts to take the lock
	retryTime = 50 * time.Millisecond  // between attempts to forward
	dialTime  = 3 * time.Second        // of one attempt
	patience  = time.Minute            // of a connection while no replica is active
	maxConns  = 8192
	maxLobby  = 256 // unauthenticated connections to the port for replicas
)

// leader is the file with the address of the active replica.
type leader struct {
	Address   string `json:"address"`
	Cert, Key []byte
}

// Member is one replica. As a listener it accepts connections to its own address, and those that other
// replicas forward.
type Member struct {
	cfg    Config
	public net.Listener
	lock   *os.File
	others net.Listener           // nil until this replica is active
	own    atomic.Pointer[string] // its address

	accepted chan net.Conn
	serves   chan struct{} // closed when this replica is active
	crowd    crowd
	lobby    tunnel.Lobby
	life     context.Context
	end      context.CancelFunc
	work     sync.WaitGroup
}

// Join returns when this replica is active, or ctx is done. Until then it forwards the connections of
// public. Close closes public; Leave lets another replica take over.
func Join(ctx context.Context, public net.Listener, cfg Config) (*Member, error) {
	if u, ok := public.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // another replica can already use it
	}
	m := &Member{cfg: cfg, public: public, accepted: make(chan net.Conn), serves: make(chan struct{}), lobby: tunnel.Lobby{Max: maxLobby}}
	m.crowd.limit = cmp.Or(cfg.MaxConns, maxConns)
	m.life, m.end = context.WithCancel(context.Background())
	err := os.MkdirAll(cfg.Dir, 0o700)
	if err != nil {
		return nil, err
	}
	if m.lock, err = os.OpenFile(m.file("lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	m.work.Go(func() { m.accept(public, m.handleOne) })
	if err = m.wait(ctx); err == nil {
		err = m.lead()
	}
	if err != nil {
		m.Close()
		m.Leave()
		return nil, err
	}
	close(m.serves)
	return m, nil
}

func (m *Member) file(kind string) string { return filepath.Join(m.cfg.Dir, "replica."+kind) }

// wait waits for the lock of the active replica and takes it.
func (m *Member) wait(ctx context.Context) error {
	for first := true; ; first = false {
		err := lockfile.TryLock(m.lock)
		if err == nil {
			return nil
		}
		if !errors.Is(err, lockfile.ErrLocked) {
			return fmt.Errorf("lock %s: %w; replicas need a shared folder with working locks", m.lock.Name(), err)
		}
		if first {
			m.cfg.Log.Info("another replica is active; forwarding connections to it")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockTime):
		}
	}
}

// lead publishes the address of this replica.
func (m *Member) lead() error {
	now, err := m.read()
	if errors.Is(err, os.ErrNotExist) {
		now.Cert, now.Key, err = tunnel.NewIdentity()
	}
	if err != nil {
		return err
	}
	settings, err := now.settings()
	if err != nil {
		return err
	}
	if m.others, err = net.Listen("tcp", m.cfg.Address); err != nil {
		return fmt.Errorf("listen for other replicas: %w; set replica_address to an address of this machine", err)
	}
	now.Address = m.others.Addr().String()
	m.own.Store(&now.Address)
	m.work.Go(func() { m.accept(m.others, func(c net.Conn) { m.receive(tls.Server(c, settings)) }) })
	return atomicfile.Replace(m.file("json"), atomicfile.Options{Perm: 0o600, Sync: true},
		func(f *os.File) error { return json.NewEncoder(f).Encode(now) })
}

func (m *Member) read() (l leader, err error) {
	data, err := os.ReadFile(m.file("json"))
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	return l, err
}

// settings are the TLS settings of both ends, which have the same key.
func (l leader) settings() (*tls.Config, error) {
	pin, err := tunnel.Pin(l.Cert)
	if err != nil {
		return nil, err
	}
	return tunnel.Configure(l.Cert, l.Key, pin)
}

// accept calls f with each connection, until the listener is closed.
func (m *Member) accept(l net.Listener, f func(net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			select {
			case <-m.life.Done():
			case <-time.After(retryTime):
			}
			continue
		}
		m.work.Go(func() { f(c) })
	}
}

// handleOne handles a connection, unless there are too many.
func (m *Member) handleOne(c net.Conn) {
	leave, ok := m.crowd.enter(c.RemoteAddr())
	if !ok {
		c.Close()
		return
	}
	defer leave()
	m.handle(c)
}

// handle serves a connection, or forwards it to the active replica.
func (m *Member) handle(c net.Conn) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		select {
		case <-m.serves:
			m.deliver(c)
			return
		default:
		}
		if to, err := m.dial(c.RemoteAddr()); err == nil {
			stop := context.AfterFunc(m.life, func() { c.Close(); to.Close() })
			defer stop()
			tunnel.Relay(c, to)
			return
		}
		select {
		case <-m.serves:
		case <-time.After(retryTime):
		case <-m.life.Done():
			c.Close()
			return
		}
	}
	m.cfg.Log.Warn("no active replica; closing connection")
	c.Close()
}

// deliver passes a connection to the server of this replica.
func (m *Member) deliver(c net.Conn) {
	select {
	case m.accepted <- c:
	case <-m.life.Done():
		c.Close()
	}
}

// maxAddress is the maximum length of an address.
const maxAddress = 64

// errOwn means that this replica is the active one.
var errOwn = errors.New("this replica is becoming active")

// dial connects to the active replica and sends the address of the client. It returns errOwn if that is
// this replica: a direct client may be local; a forwarded client never is.
func (m *Member) dial(from net.Addr) (net.Conn, error) {
	now, err := m.read()
	if err != nil {
		return nil, err
	}
	settings, err := now.settings()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(m.life, dialTime)
	defer cancel()
	c, err := (&tls.Dialer{Config: settings}).DialContext(ctx, "tcp", now.Address)
	if err != nil {
		return nil, err
	}
	text := from.String()
	if len(text) > maxAddress { // a path
		text = ""
	}
	c.SetDeadline(time.Now().Add(dialTime))
	_, err = c.Write(append([]byte{byte(len(text))}, text...))
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1)) // the peer is alive and has our key
	}
	if own := m.own.Load(); err == nil && own != nil && *own == now.Address {
		err = errOwn
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// receive takes a connection that another replica forwards.
func (m *Member) receive(c *tls.Conn) {
	c.SetDeadline(time.Now().Add(dialTime))
	m.lobby.Enter(c)
	from, err := readAddress(c)
	m.lobby.Leave(c)
	if err == nil {
		_, err = c.Write([]byte{0})
	}
	if err != nil {
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	select {
	case <-m.serves:
		m.deliver(&forwarded{c, from})
	case <-m.life.Done():
		c.Close()
	}
}

func readAddress(r io.Reader) (*net.TCPAddr, error) {
	text := make([]byte, 1, maxAddress)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	if text[0] > maxAddress {
		return nil, errors.New("address is too long")
	}
	text = text[:text[0]]
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	from, err := netip.ParseAddrPort(string(text))
	if err != nil || from.Addr().Unmap().IsLoopback() {
		// A client that is local to the other replica has no rights of local clients here.
		from = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	return net.TCPAddrFromAddrPort(from), nil
}

// forwarded is a connection to another replica.
type forwarded struct {
	*tls.Conn
	from net.Addr
}

// RemoteAddr is the address of the client.
func (f *forwarded) RemoteAddr() net.Addr { return f.from }

// Accept implements net.Listener.
func (m *Member) Accept() (net.Conn, error) {
	select {
	case c := <-m.accepted:
		return c, nil
	case <-m.life.Done():
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (m *Member) Addr() net.Addr { return m.public.Addr() }

// Close implements net.Listener.
func (m *Member) Close() error {
	m.end()
	err := m.public.Close()
	if m.others != nil {
		m.others.Close()
	}
	m.work.Wait()
	return err
}

// Leave lets another replica take over. Close all users of the folder before.
func (m *Member) Leave() { m.lock.Close() }
