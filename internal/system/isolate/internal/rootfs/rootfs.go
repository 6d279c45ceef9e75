// Package rootfs owns the filesystem of a sandbox: init assembles it from overlays, binds,
// tmpfs, /dev, /proc and /sys, and makes it its root.
package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
)

// Builder assembles the sandbox's filesystem inside init. It mounts everything in
// numbered folders of a scratch tmpfs and then moves it to its target, which the kernel
// resolves below the new root: nothing that a sandbox left on its disk in an earlier
// run, such as a symlink, can redirect a mount.
type Builder struct {
	protocol.Setup
	fds  []int // detached mounts, sent with the setup
	root int   // the new root
	next int   // the next scratch folder
	// dev, proc and sys are what Prepare mounted; devDir is the folder of dev.
	dev, proc, sys int
	devDir         string
	runtime        bool
	coverDir       string // holds the files that cover some of /proc
	// sysctls are open files, one per entry of the list; -1 if it does not exist.
	sysctls []int
}

// New returns a builder. With rootless, the only user inside is the hub's. With runtime,
// /proc hides nothing: the program isolates what it runs, and shows it another /proc.
func New(rootless, runtime bool) *Builder {
	return &Builder{Setup: protocol.Setup{Rootless: rootless}, root: -1, runtime: runtime}
}

// step is one step of building; its name begins the error.
type step struct {
	name string
	do   func() error
}

func runSteps(steps ...step) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// Prepare mounts the filesystems that are equal in every sandbox, in scratch folders. Init can do
// that before it has its setup.
func (b *Builder) Prepare() error {
	return runSteps(
		step{"create the scratch folder", b.scratch},
		step{"mount /dev", b.makeDev},
		step{"mount /proc", b.makeProc},
		step{"mount /sys", b.makeSys},
		step{"bring up the loopback", loopback},
	)
}

// Build creates the new root from a setup and the detached mounts that it refers to.
func (b *Builder) Build(set protocol.Setup, fds []int) error {
	b.Setup, b.fds = set, fds
	return runSteps(
		step{"mount the root overlays", b.overlays},
		step{"mount /dev", b.attachDev},
		step{"cover /proc/meminfo", b.coverMemory},
		step{"mount /proc", func() error { return b.attach(b.proc, "/proc") }},
		step{"mount /sys", func() error { return b.attach(b.sys, "/sys") }},
		step{"mount tmpfs", b.tmpfs},
		step{"find the alias", b.findAlias},
		step{"mount folders", b.binds},
		step{"mount the alias", b.mountAlias},
		step{"set sysctls", b.setSysctls},
	)
}

// scratch covers /proc, which exists on every machine and which init does not need in this
// mount namespace. All mounts are made private first, so that none propagates.
func (b *Builder) scratch() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/proc", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return err
	}
	return os.Chdir("/proc")
}

// scratchDir creates the next scratch folder.
func (b *Builder) scratchDir() (string, error) {
	name := strconv.Itoa(b.next)
	b.next++
	return name, os.Mkdir(name, 0o755)
}

// mountNew mounts a new filesystem in a scratch folder.
func (b *Builder) mountNew(kind string, flags uintptr, data string) (name string, fd int, err error) {
	name, err = b.scratchDir()
	if err != nil {
		return "", -1, err
	}
	if err := unix.Mount(kind, name, kind, flags, data); err != nil {
		return "", -1, fmt.Errorf("%s: %w", kind, err)
	}
	fd, err = unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLOEXEC)
	return name, fd, err
}

// openSource returns the detached mount of a source.
func (b *Builder) openSource(s protocol.Source, attr uint64) (int, error) {
	if s.FD >= 0 {
		if s.FD >= len(b.fds) {
			return -1, fmt.Errorf("descriptor %d was not sent", s.FD)
		}
		return b.fds[s.FD], nil
	}
	return clone(unix.AT_FDCWD, s.Path, attr|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// clone creates a detached copy of a mount, with additional restrictions.
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

// attachScratch attaches a source to a scratch folder and returns the folder.
func (b *Builder) attachScratch(s protocol.Source, attr uint64) (string, error) {
	fd, err := b.openSource(s, attr)
	if err != nil {
		return "", err
	}
	name, err := b.scratchDir()
	if err != nil {
		return "", err
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", fmt.Errorf("attach: %w", err)
	}
	unix.Close(fd)
	return name, nil
}

// overlays mounts the root and the trees in it. The options name scratch folders: their
// names are short, contain no separators, and reveal nothing of the host in mountinfo.
func (b *Builder) overlays() error {
	uppers := map[protocol.Source]string{} // overlays with the same upper share its mount
	for i, o := range b.Root {
		var lower []string
		for _, l := range o.Lower {
			name, err := b.attachScratch(l, unix.MOUNT_ATTR_RDONLY)
			if err != nil {
				return fmt.Errorf("lower of %s: %w", o.Target, err)
			}
			lower = append(lower, name)
		}
		upper, ok := uppers[o.Upper]
		if !ok {
			var err error
			if upper, err = b.attachScratch(o.Upper, 0); err != nil {
				return fmt.Errorf("upper of %s: %w", o.Target, err)
			}
			uppers[o.Upper] = upper
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s/%s,workdir=%s/%s,userxattr", strings.Join(lower, ":"), upper, o.Data, upper, o.Work)
		_, fd, err := b.mountNew("overlay", unix.MS_NOSUID|unix.MS_NODEV, options)
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

// attach moves a mount to its target inside and closes the descriptor.
func (b *Builder) attach(fd int, target string) error {
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
		return fmt.Errorf("%s: cannot mount a folder on a file or a file on a folder", target)
	}
	if err := moveMount(fd, at); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	return nil
}

// moveMount moves a mount, with all mounts in it, to a target.
func moveMount(fd, at int) error {
	return unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// Open opens a path as seen from a process whose root is root.
func Open(root int, name string, flags int) (int, error) {
	return unix.Openat2(root, strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
}

// target opens a mount point inside. It creates a missing mount point with its parents.
func (b *Builder) target(name string, dir bool) (int, error) {
	fd, err := Open(b.root, name, unix.O_PATH)
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
	return Open(b.root, name, unix.O_PATH)
}

func (b *Builder) tmpfs() error {
	for _, t := range b.Tmpfs {
		data := fmt.Sprintf("mode=%#o", t.Mode)
		if t.Size > 0 {
			data += fmt.Sprintf(",size=%d", t.Size)
		}
		if t.UID != 0 || t.GID != 0 {
			data += fmt.Sprintf(",uid=%d,gid=%d", t.UID, t.GID)
		}
		_, fd, err := b.mountNew("tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Target, err)
		}
		if err := b.attach(fd, t.Target); err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) binds() error {
	for _, m := range b.Binds {
		var attr uint64
		if m.ReadOnly {
			attr = unix.MOUNT_ATTR_RDONLY
		}
		var fd int
		var err error
		if m.Hidden {
			fd, err = b.hidden(m)
		} else {
			fd, err = b.openSource(m.Source, attr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.Target, err)
		}
		target := m.Target
		if rest, ok := strings.CutPrefix(target, b.Alias.Path+"/"); ok && b.Alias.Path != "" {
			target = path.Join(b.Alias.Target, rest) // the alias would hide it
		}
		if err := b.attach(fd, target); err != nil {
			return err
		}
	}
	return nil
}

// hidden mounts a source through an overlay. The list of mounts shows the path of every mount
// in its filesystem, and an overlay is a separate filesystem. It has a second, empty layer,
// because an overlay with a single layer must be writable.
func (b *Builder) hidden(m protocol.Bind) (int, error) {
	name, err := b.attachScratch(m.Source, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return -1, err
	}
	empty, err := b.scratchDir()
	if err != nil {
		return -1, err
	}
	flags := uintptr(unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID)
	if m.Setuid {
		flags &^= unix.MS_NOSUID
	}
	at, fd, err := b.mountNew("overlay", flags, fmt.Sprintf("lowerdir=%s:%s,userxattr", name, empty))
	if err != nil || m.File == "" {
		return fd, err
	}
	unix.Close(fd)
	return clone(unix.AT_FDCWD, at+"/"+m.File, 0)
}

// Enter makes the new root the root and detaches the old one.
func (b *Builder) Enter() error {
	if err := unix.Fchdir(b.root); err != nil {
		return err
	}
	// With the same name twice, the old root is mounted on top of the new one.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	unix.Close(b.root)
	return os.Chdir("/")
}
