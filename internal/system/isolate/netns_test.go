package isolate

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// addressed asks a socket how many interfaces with an address its namespace has.
func addressed(t *testing.T, c syscall.Conn) int {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var list [4096]byte
	var req [16]byte // struct ifconf
	binary.NativeEndian.PutUint32(req[:], uint32(len(list)))
	binary.NativeEndian.PutUint64(req[8:], uint64(uintptr(unsafe.Pointer(&list[0]))))
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(unix.SYS_IOCTL, fd, unix.SIOCGIFCONF, uintptr(unsafe.Pointer(&req[0])))
	}); err != nil || errno != 0 {
		t.Fatal(err, errno)
	}
	return int(binary.NativeEndian.Uint32(req[:])) / 40
}

// Neither a socket that is handed in nor one that is accepted there tells of the
// host, and the threads that made them are back where they were.
func TestSocketsTellNothingOfTheHost(t *testing.T) {
	testenv.NeedRoot(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := ListenUnix(dir, "s", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n := addressed(t, l); n != 0 {
		t.Errorf("through the listener %d interfaces show", n)
	}
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			c, err := DialUnix(context.Background(), dir, "s")
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			own, err := net.Listen("tcp", "127.0.0.1:0") // not to be had without a loopback
			if err != nil {
				t.Error(err)
				return
			}
			defer own.Close()
			if n := addressed(t, own.(*net.TCPListener)); n == 0 {
				t.Error("a socket of our own was made elsewhere")
			}
		})
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if n := addressed(t, c); n != 0 {
			t.Errorf("through a connection %d interfaces show", n)
		}
		c.Close()
	}
	wait.Wait()
}
