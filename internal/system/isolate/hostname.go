package isolate

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/rootfs"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/thread"
)

// HostFiles returns the files below /etc that contain a sandbox's host name, by name.
func HostFiles(host string) map[string]string {
	return map[string]string{
		"hostname": host + "\n",
		"hosts":    "127.0.0.1 localhost " + host + "\n::1 localhost ip6-localhost ip6-loopback\n",
	}
}

// ResolverFile is the /etc/resolv.conf of every sandbox: init answers there, see package outbound.
const ResolverFile = "nameserver 127.0.0.53\n"

// SetHostname changes the host name of a running sandbox. It needs root.
func (h *Handle) SetHostname(before, host string) error {
	err := errors.New("the thread did not run")
	thread.Run(func() { err = h.enterHostname(host) })
	if err != nil {
		return fmt.Errorf("isolate: change the host name: %w", err)
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", h.rec.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("isolate: change the host name: %w", err)
	}
	defer unix.Close(root)
	old := HostFiles(before)
	for name, text := range HostFiles(host) {
		if err := replaceText(root, "etc/"+name, old[name], text); err != nil {
			return fmt.Errorf("isolate: change /etc/%s: %w", name, err)
		}
	}
	return nil
}

// replaceText replaces the content of a file inside if the sandbox has not changed it. It
// writes in place: a new file would belong to a user that does not exist inside.
func replaceText(root int, name, before, text string) error {
	fd, err := rootfs.Open(root, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) {
		return nil // the sandbox has changed it
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(before)) {
		return err
	}
	if got, err := io.ReadAll(io.LimitReader(f, int64(len(before)))); err != nil || string(got) != before {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), 0)
	return err
}

// enterHostname leaves the calling thread in the sandbox's UTS namespace.
func (h *Handle) enterHostname(host string) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/uts", h.rec.PID))
	if err != nil {
		return err
	}
	defer ns.Close()
	select {
	case <-h.done:
		return ErrGone
	default:
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWUTS); err != nil {
		return err
	}
	return unix.Sethostname([]byte(host))
}
