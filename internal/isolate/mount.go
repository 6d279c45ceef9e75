package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// builder assembles the sandbox's filesystem inside init. Everything is mounted
// in numbered folders of a scratch tmpfs and then moved to its target, which is
// found below the new root by the kernel: what a sandbox left on its disk in an
// earlier run, symlinks above all, cannot lead anywhere else.
type builder struct {
	setup
	fds  []int // detached mounts, sent along
	root int   // the new root
	next int   // the next scratch folder
	// dev, proc and sys are what ahead mounted, and devDir where the first is.
	dev, proc, sys int
	devDir         string
	// sysctls are open files, one for each of the list, -1 where there is none.
	sysctls []int
}

// step is part of building.
type step struct {
	what string
	do   func() error
}

func follow(steps ...step) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// ahead mounts what is the same in every sandbox, in scratch folders: init can do
// that before it knows what it shall be.
func (b *builder) ahead() error {
	return follow(
		step{"make the scratch folder", b.scratch},
		step{"mount /dev", b.makeDev},
		step{"mount /proc", b.makeProc},
		step{"mount /sys", b.makeSys},
		step{"bring up the loopback", loopback},
	)
}

// build makes the new root, except for the step into it.
func (b *builder) build() error {
	return follow(
		step{"mount the root overlays", b.overlays},
		step{"mount /dev", b.attachDev},
		step{"mount /proc", func() error { return b.attach(b.proc, "/proc") }},
		step{"mount /sys", func() error { return b.attach(b.sys, "/sys") }},
		step{"mount tmpfs", b.tmpfs},
		step{"mount folders", b.binds},
		step{"set sysctls", b.tune},
	)
}

// scratch covers /proc, which surely exists and is not needed any more, in this
// mount namespace. All mounts are made private first, so that none spreads.
func (b *builder) scratch() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/proc", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return err
	}
	return os.Chdir("/proc")
}

// slot makes the next scratch folder.
func (b *builder) slot() (string, error) {
	name := strconv.Itoa(b.next)
	b.next++
	return name, os.Mkdir(name, 0o755)
}

// fresh mounts a new filesystem in a scratch folder.
func (b *builder) fresh(kind string, flags uintptr, data string) (name string, fd int, err error) {
	name, err = b.slot()
	if err != nil {
		return "", -1, err
	}
	if err := unix.Mount(kind, name, kind, flags, data); err != nil {
		return "", -1, fmt.Errorf("%s: %w", kind, err)
	}
	fd, err = unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLOEXEC)
	return name, fd, err
}

// tree returns the detached mount of a source.
func (b *builder) tree(s source, attr uint64) (int, error) {
	if s.FD >= 0 {
		if s.FD >= len(b.fds) {
			return -1, fmt.Errorf("descriptor %d was not sent", s.FD)
		}
		return b.fds[s.FD], nil
	}
	return clone(unix.AT_FDCWD, s.Path, attr|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// clone makes a detached copy of what is mounted at a path, with more restrictions.
func clone(dirfd int, name string, attr uint64) (int, error) {
	fd, err := unix.OpenTree(dirfd, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", name, err)
	}
	if attr != 0 {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr}); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("%s: %w", name, err)
		}
	}
	return fd, nil
}

// drop moves a source into a scratch folder and returns the folder.
func (b *builder) drop(s source, attr uint64) (string, error) {
	fd, err := b.tree(s, attr)
	if err != nil {
		return "", err
	}
	name, err := b.slot()
	if err != nil {
		return "", err
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", fmt.Errorf("attach: %w", err)
	}
	unix.Close(fd)
	return name, nil
}

// overlays mounts the root and the trees in it. Names in the options are those
// of scratch folders: short, free of separators, and they tell nothing of the
// host to whoever reads mountinfo inside.
func (b *builder) overlays() error {
	for i, o := range b.Root {
		var lower []string
		for _, l := range o.Lower {
			name, err := b.drop(l, unix.MOUNT_ATTR_RDONLY)
			if err != nil {
				return fmt.Errorf("lower of %s: %w", o.Target, err)
			}
			lower = append(lower, name)
		}
		upper, err := b.drop(o.Upper, 0)
		if err != nil {
			return fmt.Errorf("upper of %s: %w", o.Target, err)
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s/%s,workdir=%s/%s,userxattr", strings.Join(lower, ":"), upper, o.Data, upper, o.Work)
		_, fd, err := b.fresh("overlay", unix.MS_NOSUID|unix.MS_NODEV, options)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Target, err)
		}
		if i == 0 {
			b.root = fd
			continue
		}
		if err := b.attach(fd, o.Target); err != nil {
			return err
		}
	}
	return nil
}

// attach moves a mount to its target and closes the descriptor.
func (b *builder) attach(fd int, target string) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	dir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	at, err := b.target(target, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	defer unix.Close(at)
	if err := unix.Fstat(at, &st); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	if dir != (st.Mode&unix.S_IFMT == unix.S_IFDIR) {
		return fmt.Errorf("%s: a folder goes on a folder and a file on a file", target)
	}
	if err := put(fd, at); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	return nil
}

// put moves a mount, with all that is mounted in it, onto another place.
func put(fd, at int) error {
	return unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// resolve opens a path as it is seen where root is the root.
func resolve(root int, name string, flags int) (int, error) {
	return unix.Openat2(root, strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
}

// target opens a mount point inside and makes it, and what leads to it, if it
// does not exist.
func (b *builder) target(name string, dir bool) (int, error) {
	fd, err := resolve(b.root, name, unix.O_PATH)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	parent := b.root
	if up := path.Dir(name); up != "/" {
		if parent, err = b.target(up, true); err != nil {
			return -1, err
		}
		defer unix.Close(parent)
	}
	base := path.Base(name)
	if dir {
		err = unix.Mkdirat(parent, base, 0o755)
	} else {
		var f int
		if f, err = unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644); err == nil {
			unix.Close(f)
		}
	}
	if err != nil {
		return -1, err
	}
	return resolve(b.root, name, unix.O_PATH)
}

func (b *builder) tmpfs() error {
	for _, t := range b.Tmpfs {
		data := fmt.Sprintf("mode=%#o", t.Mode)
		if t.Size > 0 {
			data += fmt.Sprintf(",size=%d", t.Size)
		}
		if t.UID != 0 || t.GID != 0 {
			data += fmt.Sprintf(",uid=%d,gid=%d", t.UID, t.GID)
		}
		_, fd, err := b.fresh("tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Target, err)
		}
		if err := b.attach(fd, t.Target); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) binds() error {
	for _, m := range b.Binds {
		var attr uint64
		if m.ReadOnly {
			attr = unix.MOUNT_ATTR_RDONLY
		}
		fd, err := b.tree(m.Source, attr)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Target, err)
		}
		if err := b.attach(fd, m.Target); err != nil {
			return err
		}
	}
	return nil
}

// enter makes the new root the root and lets go of the old one.
func (b *builder) enter() error {
	if err := unix.Fchdir(b.root); err != nil {
		return err
	}
	// With both names the same the old root ends up on top of the new one.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	unix.Close(b.root)
	return os.Chdir("/")
}
