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

// Sockets is a folder with a folder of sockets for each sandbox; see package socket. It is a tmpfs, so that the folders
// that sandboxes see are not on the filesystem of their disks.
type Sockets struct {
	dir string

	// mu is held while a folder is removed, or written by a call that has not acquired the sandbox.
	mu sync.Mutex

	// inits are the PIDs of the inits of running sandboxes, by ID.
	inits sync.Map
}

// socketSpace limits the size of the folder, to which only the hub writes.
const socketSpace = "64m"

// openSockets creates the folder, and mounts a tmpfs on it if the next hub will find the mount: a mount in another mount
// namespace ends with this process, while sandboxes continue to run.
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

// inMainNamespace reports whether this process has the mounts of the machine's init.
func inMainNamespace() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	main, err1 := os.Readlink("/proc/1/ns/mnt")
	return err == nil && err1 == nil && own == main
}

// close unmounts the folder, unless running sandboxes have sockets there.
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

// Dir returns the folder with the sockets of a sandbox.
func (s *Sockets) Dir(id string) string { return filepath.Join(s.dir, id) }

// ListenEgress creates the socket for outgoing connections of a sandbox.
func (s *Sockets) ListenEgress(id string) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := socket.ListenEgress(s.Dir(id), func() int {
		pid, _ := s.inits.Load(id)
		n, _ := pid.(int)
		return n
	})
	if errors.Is(err, fs.ErrNotExist) { // it was deleted
		return nil, fmt.Errorf("%w: %q", sandbox.ErrNotFound, id)
	}
	return l, err
}

// setInit sets the PID of the init of a sandbox, which passes connections of programs to the egress proxy.
func (s *Sockets) setInit(id string, pid int) { s.inits.Store(id, pid) }

// makeFolders creates the folders of a sandbox.
func (s *Sockets) makeFolders(id string) error { return socket.MakeFolders(s.Dir(id)) }

// remove removes the folder of a sandbox's sockets.
func (s *Sockets) remove(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inits.Delete(filepath.Base(dir))
	return tree.Remove(dir)
}

// removeOthers removes the folders of unknown sandboxes.
func (s *Sockets) removeOthers(known []string) error {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			err = errors.Join(err, s.remove(s.Dir(e.Name())))
		}
	}
	return err
}
