package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// socketsName is a folder with a folder of sockets for each sandbox; see package socket.
// It is in memory: what sandboxes see of it is then no part of a filesystem with their
// disks, and sockets need not survive the machine.
const socketsName = "sockets"

// socketSpace bounds the folder. Only we write to it.
const socketSpace = "64m"

// mountSockets creates the folder, and puts it into memory where that is possible and
// the next hub will find it: a mount in a mount namespace of our own ends with us, while
// sandboxes go on.
func mountSockets(state string) error {
	dir := filepath.Join(state, socketsName)
	if err := tree.MakePrivate(dir); err != nil || rootless() || !inMainNamespace() {
		return err
	}
	if at, err := isMount(dir); err != nil || at { // a killed hub leaves it mounted
		return err
	}
	if err := unix.Mount("cove", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size="+socketSpace); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// inMainNamespace reports whether our mounts are those of the machine's init.
func inMainNamespace() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	main, err1 := os.Readlink("/proc/1/ns/mnt")
	return err == nil && err1 == nil && own == main
}

// unmountSockets unmounts the folder, unless sandboxes that go on have sockets there.
func unmountSockets(state string) error {
	dir := filepath.Join(state, socketsName)
	at, err := isMount(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !at {
		return nil
	}
	left, err1 := os.ReadDir(dir)
	if err := errors.Join(err, err1); err != nil || len(left) > 0 {
		return err
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}

// SocketDir is the folder of a sandbox's sockets.
func (r *Runner) SocketDir(id string) string { return filepath.Join(r.cfg.Dir, socketsName, id) }

// removeSockets removes the folders of sandboxes other than those that are known.
func removeSockets(state string, known []string) error {
	dir := filepath.Join(state, socketsName)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			err = errors.Join(err, tree.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
