package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
	"github.com/cove-sandbox/cove/internal/system/seccomp"
)

// setup converts the config to the message to init, and its folders to detached
// mounts, which init can attach without access to their paths.
func (s *starter) setup(pid int) (protocol.Setup, error) {
	set := protocol.Setup{Version: protocol.Version, Hostname: s.cfg.Hostname, Tmpfs: s.cfg.Tmpfs, Alias: s.cfg.Alias, ShmSize: s.cfg.ShmSize,
		Process: s.cfg.Process, Limits: s.cfg.Limits, LogSize: s.cfg.LogSize, Rootless: s.cfg.IDs.Count == 0, Listens: s.cfg.Listen != nil,
		Setuid: s.cfg.Setuid && s.cfg.IDs.Count > 0, Egress: s.cfg.Egress}
	var err error
	if set.Filter, err = seccomp.Program(); err != nil {
		return set, fmt.Errorf("isolate: %w", err)
	}
	switch {
	case !s.cfg.Runtime:
		set.Notify, err = seccomp.Notifications(set.Egress != "")
	case set.Egress != "":
		set.Notify, err = seccomp.RuntimeNotifications()
	}
	if err != nil {
		return set, fmt.Errorf("isolate: %w", err)
	}
	m := mapper{starter: s}
	if !set.Rootless {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		if errors.Is(err, os.ErrNotExist) {
			return set, s.explainEnd(unix.EPIPE) // init has ended
		}
		if err != nil {
			return set, fmt.Errorf("isolate: open the user namespace: %w", err)
		}
		defer ns.Close()
		m.userns = ns
	}
	uppers := map[Dir]protocol.Source{} // overlays with the same upper share its mount
	for _, o := range s.cfg.Root {
		upper, ok := uppers[o.Upper]
		if !ok {
			upper = m.source(o.Upper, unix.MOUNT_ATTR_NOSUID)
			uppers[o.Upper] = upper
		}
		to := protocol.Overlay{Target: o.Target, Data: o.Data, Work: o.Work, Upper: upper}
		for _, l := range o.Lower {
			to.Lower = append(to.Lower, m.source(l, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID))
		}
		set.Root = append(set.Root, to)
	}
	for _, b := range s.cfg.Binds {
		var attr uint64
		if b.ReadOnly {
			attr = unix.MOUNT_ATTR_RDONLY
		}
		setuid := b.Setuid && set.Setuid
		if !setuid {
			attr |= unix.MOUNT_ATTR_NOSUID
		}
		to := protocol.Bind{Target: b.Target, ReadOnly: b.ReadOnly, Setuid: setuid, Hidden: b.Hidden && !s.cfg.Runtime}
		if to.Hidden {
			b.Source.Path, to.File = splitFile(b.Source.Path)
		}
		to.Source = m.source(b.Source, attr)
		set.Binds = append(set.Binds, to)
	}
	if m.err == nil && len(s.trees) > protocol.MaxFDs-len(s.cfg.filesForSpare()) {
		m.err = fmt.Errorf("isolate: %d folders exceed the limit of %d", len(s.trees), protocol.MaxFDs)
	}
	return set, m.err
}

// splitFile returns the folder of a file and its name in it, or a folder and no name.
func splitFile(name string) (dir, file string) {
	if info, err := os.Stat(name); err != nil || info.IsDir() {
		return name, ""
	}
	return path.Dir(name), path.Base(name)
}

// mapper creates detached mounts until one fails.
type mapper struct {
	*starter
	userns *os.File // nil without root: init then opens the paths itself
	err    error
}

func (m *mapper) source(d Dir, attr uint64) protocol.Source {
	if m.err != nil || m.userns == nil {
		return protocol.Source{Path: d.Path, FD: -1}
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, d.Path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		m.err = fmt.Errorf("isolate: open %s: %w", d.Path, err)
		return protocol.Source{}
	}
	m.trees = append(m.trees, fd)
	set := unix.MountAttr{Attr_set: attr | unix.MOUNT_ATTR_NODEV}
	set.Attr_clr = unix.MOUNT_ATTR_NOSUID &^ attr
	if d.Mapped {
		owners, err := m.ownersOf(d)
		if err != nil {
			m.err = err
			return protocol.Source{}
		}
		set.Attr_set |= unix.MOUNT_ATTR_IDMAP
		set.Userns_fd = uint64(owners.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &set); err != nil {
		m.err = fmt.Errorf("isolate: prepare mount of %s: %w", d.Path, err)
		if d.Mapped && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
			m.err = fmt.Errorf("%w: %w", ErrNoIDMap, m.err)
		}
	}
	return protocol.Source{Path: d.Path, FD: len(m.trees) - 1}
}

// ownersOf returns the user namespace that translates the owners in a folder.
func (m *mapper) ownersOf(d Dir) (*os.File, error) {
	if !d.OfHost {
		return m.userns, nil
	}
	return m.hostOwners()
}

// hostOwners returns the namespace for files of the host. A spare has opened it.
func (s *starter) hostOwners() (_ *os.File, err error) {
	if s.owners == nil {
		exe, err := openExe(s.cfg.Argv[0])
		if err != nil {
			return nil, err
		}
		defer exe.Close()
		if s.owners, err = openOwners(exe, s.cfg.IDs); err != nil {
			return nil, err
		}
	}
	return s.owners, nil
}

// ErrNoIDMap means that a filesystem cannot translate owners.
var ErrNoIDMap = errors.New("the filesystem does not support idmapped mounts")
