package rootfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
)

// findAlias removes the alias from the setup if it would hide something that is on the disk, or if its folder does not exist.
func (b *Builder) findAlias() error {
	if b.Alias.Path == "" || b.runtime {
		b.Alias = protocol.Alias{}
		return nil
	}
	fd, err := Open(b.root, b.Alias.Target, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		b.Alias = protocol.Alias{}
		return nil
	}
	unix.Close(fd)
	fd, err = Open(b.root, b.Alias.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		b.Alias = protocol.Alias{}
		return nil // it is a file or a link of the sandbox
	}
	dir := os.NewFile(uintptr(fd), b.Alias.Path)
	defer dir.Close()
	if names, _ := dir.Readdirnames(1); len(names) > 0 {
		b.Alias = protocol.Alias{}
	}
	return nil
}

// mountAlias mounts a folder of the sandbox, with all mounts in it, at its second path.
func (b *Builder) mountAlias() error {
	if b.Alias.Path == "" {
		return nil
	}
	dir, err := Open(b.root, b.Alias.Target, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("%s: %w", b.Alias.Target, err)
	}
	defer unix.Close(dir)
	fd, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("%s: %w", b.Alias.Target, err)
	}
	return b.attach(fd, b.Alias.Path)
}
