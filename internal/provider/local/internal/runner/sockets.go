package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Sockets is a folder with a folder of sockets for each sandbox; see package socket. It
// is in memory: what sandboxes see of it is then no part of a filesystem with their
// disks, and sockets need not survive the machine.
type Sockets struct {
	dir string

	// mu is held while a sandbox's folder is removed, or written to by somebody who does
	// not hold the sandbox's row.
	mu sync.Mutex
}

// socketSpace limits the size of the folder. Only we write to it.
const socketSpace = "64m"

// openSockets creates the folder, and puts it into memory where that is possible and
// the next hub will find it: a mount in a mount namespace of our own ends with us, while
// sandboxes go on.
func openSockets(state string) (*Sockets, error) {
	s := &Sockets{dir: filepath.Join(state, "sockets")}
	if err := tree.MakePrivate(s.dir); err != nil || rootless() || !inMainNamespace() {
		return s, err
	}
	if at, err := isMount(s.dir); err != nil || at { // a killed hub leaves it mounted
		return s, err
	}
	if err := unix.Mount("cove", s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size="+socketSpace); err != nil {
		return nil, fmt.Errorf("mount %s: %w", s.dir, err)
	}
	return s, nil
}

// inMainNamespace reports whether our mounts are those of the machine's init.
func inMainNamespace() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	main, err1 := os.Readlink("/proc/1/ns/mnt")
	return err == nil && err1 == nil && own == main
}

// close unmounts the folder, unless sandboxes that go on have sockets there.
func (s *Sockets) close() error {
	at, err := isMount(s.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !at {
		return nil
	}
	left, err1 := os.ReadDir(s.dir)
	if err := errors.Join(err, err1); err != nil || len(left) > 0 {
		return err
	}
	return unix.Unmount(s.dir, unix.MNT_DETACH)
}

// Dir is the folder of a sandbox's sockets.
func (s *Sockets) Dir(id string) string { return filepath.Join(s.dir, id) }

// ListenEgress creates the socket at which a sandbox's outgoing connections arrive.
func (s *Sockets) ListenEgress(id string) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := socket.ListenEgress(s.Dir(id))
	if errors.Is(err, fs.ErrNotExist) { // it was deleted just now
		return nil, fmt.Errorf("%w: %q", sandbox.ErrNotFound, id)
	}
	return l, err
}

// remove removes the folder of a sandbox's sockets.
func (s *Sockets) remove(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tree.Remove(dir)
}

// removeOthers removes the folders of sandboxes other than those that are known.
func (s *Sockets) removeOthers(known []string) error {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			err = errors.Join(err, s.remove(s.Dir(e.Name())))
		}
	}
	return err
}
