// Package unixsocket creates and connects to unix sockets in folders that untrusted programs
// can write to. The sockets reveal nothing of the host's network.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/thread"
)

// Dial connects to the unix socket called name in dir. It refuses links and
// everything else that is not a socket, so a program that can write to the folder cannot
// redirect the connection to another server of the host. The path may have any length.
func Dial(ctx context.Context, dir *os.File, name string) (*net.UnixConn, error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var opened error
	if err := raw.Control(func(d uintptr) {
		fd, opened = unix.Openat2(int(d), name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	}); err != nil {
		return nil, err
	}
	if opened != nil {
		return nil, fmt.Errorf("open socket %s: %w", name, opened)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("open socket %s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("open socket %s: not a socket", name)
	}
	var c net.Conn
	thread.WithoutNetwork(func() {
		var d net.Dialer
		c, err = d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	})
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Listen creates a unix socket called name in dir. It replaces an existing file.
func Listen(dir *os.File, name string, mode os.FileMode) (*net.UnixListener, error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	var l *net.UnixListener
	var failed error
	err = raw.Control(func(d uintptr) {
		if err := unix.Unlinkat(int(d), name, 0); err != nil && err != unix.ENOENT {
			failed = err
			return
		}
		path := fmt.Sprintf("/proc/self/fd/%d/%s", d, name)
		thread.WithoutNetwork(func() { l, failed = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}) })
		if failed == nil {
			l.SetUnlinkOnClose(false)
			failed = os.Chmod(path, mode)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		if l != nil {
			l.Close()
		}
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	return l, nil
}
