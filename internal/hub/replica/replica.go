//go:build linux

// Package replica lets several hubs share one state folder behind one address: one of them
// serves, the others forward the connections that they receive to it, and one of those takes
// its place when it is gone. So every request to any replica reaches every sandbox, and there is
// one clock, one pool and one writer of each file.
//
// It owns the files replica.* of the folder. Who serves is decided by a lock, which the kernel or the file
// server releases when its holder is gone. Replicas know each other by a key in the folder: nobody
// else can forward connections, and so claim an address that is not his.
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

// Config says who we are.
type Config struct {
	Dir     string // shared by all replicas
	Address string // host:port at which the others reach us while we serve
	Log     *slog.Logger
	// MaxConns is how many connections are forwarded or wait, of which one address may have half; default 8192.
	MaxConns int
}

const (
	lockTime  = 200 * time.Millisecond // between looks whether the place is free
	retryTime = 50 * time.Millisecond  // between attempts to forward
	dialTime  = 3 * time.Second        // of one attempt
	patience  = time.Minute            // of a connection without anybody who serves
	maxConns  = 8192
	maxLobby  = 256 // connections to the port for replicas that have not proved that they are one
)

// leader is the file that says where the replica that serves is.
type leader struct {
	Address   string `json:"address"`
	Cert, Key []byte
}

// Member is a hub among its replicas. As a listener it has the connections of its own
// address, and those that others forward.
type Member struct {
	cfg    Config
	public net.Listener
	lock   *os.File
	others net.Listener           // nil until we serve
	own    atomic.Pointer[string] // its address

	accepted chan net.Conn
	serves   chan struct{} // closed when we serve
	crowd    crowd
	lobby    tunnel.Lobby
	life     context.Context
	end      context.CancelFunc
	work     sync.WaitGroup
}

// Join returns when this hub is the one that serves, or ctx is done. Until then the connections of public are
// forwarded. Close closes public; Leave makes room for another.
func Join(ctx context.Context, public net.Listener, cfg Config) (*Member, error) {
	if u, ok := public.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // a successor may have it by then
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

// wait waits until the place of the one who serves is free, and takes it.
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
			m.cfg.Log.Info("another replica serves; forwarding to it until it is gone")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockTime):
		}
	}
}

// lead tells the others where we are.
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

// settings are those of both ends, which have the same key.
func (l leader) settings() (*tls.Config, error) {
	pin, err := tunnel.Pin(l.Cert)
	if err != nil {
		return nil, err
	}
	return tunnel.Configure(l.Cert, l.Key, pin)
}

// accept calls f with every connection, until the listener is closed.
func (m *Member) accept(l net.Listener, f func(net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, or so
			select {
			case <-m.life.Done():
			case <-time.After(retryTime):
			}
			continue
		}
		m.work.Go(func() { f(c) })
	}
}

// handleOne handles a connection unless there are too many.
func (m *Member) handleOne(c net.Conn) {
	leave, ok := m.crowd.enter(c.RemoteAddr())
	if !ok {
		c.Close()
		return
	}
	defer leave()
	m.handle(c)
}

// handle serves a connection, or forwards it to who does.
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
	m.cfg.Log.Warn("nobody serves; closing a connection")
	c.Close()
}

// deliver hands a connection to our own server.
func (m *Member) deliver(c net.Conn) {
	select {
	case m.accepted <- c:
	case <-m.life.Done():
		c.Close()
	}
}

// maxAddress bounds the text of an address.
const maxAddress = 64

// errOwn says that the one who serves is this replica.
var errOwn = errors.New("this replica is about to serve")

// dial connects to who serves, and says on whose behalf. It returns errOwn once that is us: who has connected to us may be local here,
// which nobody is who was forwarded.
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
		_, err = io.ReadFull(c, make([]byte, 1)) // it is alive, and knows our key
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
		return nil, errors.New("the address is too long")
	}
	text = text[:text[0]]
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	from, err := netip.ParseAddrPort(string(text))
	if err != nil || from.Addr().Unmap().IsLoopback() {
		// Who is local there is not local here, and has no rights for that.
		from = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	return net.TCPAddrFromAddrPort(from), nil
}

// forwarded is a connection to another replica.
type forwarded struct {
	*tls.Conn
	from net.Addr
}

// RemoteAddr is the client's.
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

// Leave lets another replica serve. Everything that uses the folder must be closed by then.
func (m *Member) Leave() { m.lock.Close() }
