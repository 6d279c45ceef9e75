package unixsocket

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// countInterfaces returns the number of interfaces with an address that a socket reveals.
func countInterfaces(t *testing.T, c syscall.Conn) int {
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

// TestSocketsRevealNoInterfaces: neither a socket that is passed to the inside nor one that is
// accepted there reveals interfaces of the host, and the threads that create them return to the host's network.
func TestSocketsRevealNoInterfaces(t *testing.T) {
	testenv.NeedRoot(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := Listen(dir, "s", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n := countInterfaces(t, l); n != 0 {
		t.Errorf("the listener reveals %d interfaces", n)
	}
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			c, err := Dial(context.Background(), dir, "s")
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			own, err := net.Listen("tcp", "127.0.0.1:0") // fails without a loopback
			if err != nil {
				t.Error(err)
				return
			}
			defer own.Close()
			if n := countInterfaces(t, own.(*net.TCPListener)); n == 0 {
				t.Error("a socket of the test was created in another network")
			}
		})
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if n := countInterfaces(t, c); n != 0 {
			t.Errorf("a connection reveals %d interfaces", n)
		}
		c.Close()
	}
	wait.Wait()
}

// TestDialRefusesLinks: a sandbox cannot redirect a connection to another socket.
func TestDialRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "real"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"real": true, "link": false, "file": false, "none": false,
		"../" + filepath.Base(dir) + "/real": false} {
		c, err := Dial(t.Context(), d, name)
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		if c != nil {
			c.Close()
		}
	}
}
