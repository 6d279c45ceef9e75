package referee

import (
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newSocket returns a program's socket.
func newSocket(t *testing.T, domain int, flags int) *socket {
	t.Helper()
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{fd: fd, modes: new(sync.Mutex)}
	t.Cleanup(s.close)
	if err := s.inspect(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestHeldEnd(t *testing.T) {
	for name, c := range map[string]struct {
		domain, flags int
		to            string
	}{
		"IPv4": {unix.AF_INET, 0, "192.0.2.1"}, "IPv6": {unix.AF_INET6, unix.SOCK_NONBLOCK, "2001:db8::1"},
		"mapped": {unix.AF_INET6, unix.SOCK_NONBLOCK, "::ffff:192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			to := netip.MustParseAddr(c.to)
			hold := func() (*socket, *end, netip.AddrPort) {
				s := newSocket(t, c.domain, c.flags)
				e, from, err := s.hold(to)
				if err != nil {
					t.Fatal(err)
				}
				if err := wait(s.fd, unix.POLLOUT, 0); err != unix.ETIMEDOUT {
					t.Fatalf("got %v, want a socket that is still connecting", err)
				}
				return s, e, from
			}
			s, e, from := hold()
			fd, err := e.meet(from)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			e.close()
			if err := unix.Connect(s.fd, sockaddr(e.addr, c.domain)); err != nil && err != unix.EISCONN {
				t.Errorf("a connected socket: got %v, want success", err)
			}
			unix.Write(s.fd, []byte("out"))
			buf := make([]byte, 8)
			wait(fd, unix.POLLIN, localTimeout)
			if n, err := unix.Read(fd, buf); err != nil || string(buf[:n]) != "out" {
				t.Errorf("got %q, %v, want %q", buf, err, "out")
			}

			s, e, _ = hold()
			e.close()
			s.abort(e)
			if err := wait(s.fd, unix.POLLERR, localTimeout); err != nil {
				t.Error(err)
			}
			if code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); unix.Errno(code) != unix.ECONNREFUSED {
				t.Errorf("after abort: got %v, %v, want %v", unix.Errno(code), err, unix.ECONNREFUSED)
			}
		})
	}
}
