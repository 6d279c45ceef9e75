package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// nodes are the devices of the host that are visible inside. None has state that one user can leave for another.
var nodes = []string{"null", "zero", "full", "random", "urandom", "tty"}

func (b *Builder) makeDev() (err error) {
	if b.devDir, b.dev, err = b.mountNew("tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=256k"); err != nil {
		return err
	}
	for _, n := range nodes {
		node, err := clone(unix.AT_FDCWD, "/dev/"+n, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return err
		}
		at := path.Join(b.devDir, n)
		if err := unix.Mknod(at, unix.S_IFREG|0o666, 0); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		if err := unix.MoveMount(node, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		unix.Close(node)
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, path.Join(b.devDir, name)); err != nil {
			return err
		}
	}
	pts := "newinstance,ptmxmode=0666,mode=0620"
	if !b.Rootless {
		pts += ",gid=5" // tty, which is not mapped without root
	}
	return b.mountDev("pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, pts)
}

func (b *Builder) mountDev(name, kind string, flags uintptr, data string) error {
	at := path.Join(b.devDir, name)
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, at, kind, flags, data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (b *Builder) attachDev() error {
	shm := "mode=1777"
	if b.ShmSize > 0 {
		shm += fmt.Sprintf(",size=%d", b.ShmSize)
	}
	if err := b.mountDev("shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, shm); err != nil {
		return err
	}
	return b.attach(b.dev, "/dev")
}

// masked lists the hidden parts of /proc: the kernel's memory, keys, logs, timers, locks
// and statistics, and what drivers reveal of the machine.
var masked = []string{
	"kcore", "kmsg", "keys", "key-users", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup", "cmdline", "config.gz", "modules",
	"timer_list", "timer_stats", "sched_debug", "latency_stats", "sysrq-trigger", "interrupts", "iomem", "ioports", "vmallocinfo",
	"slabinfo", "swaps", "partitions", "diskstats", "acpi", "asound", "scsi", "driver", "dynamic_debug", "pressure",
	"locks", "vmstat", "zoneinfo", "buddyinfo", "pagetypeinfo", "softirqs", "schedstat", "mdstat", "misc", "mtrr", "dma", "consoles",
}

// readOnly lists the parts of /proc that not even root inside can write.
var readOnly = []string{"bus", "fs", "irq", "sys"}

// sysctls are opened before they become read-only, and set at the end. The first lets
// an unprivileged server use port 80, and init the port of DNS. The others refuse the namespaces that the filter
// of system calls refuses, too, and limit those that it permits: their cost is the host's.
var sysctls = []struct{ name, value string }{
	{"net/ipv4/ip_unprivileged_port_start", "0"},
	{"user/max_mnt_namespaces", "0"},
	{"user/max_ipc_namespaces", "0"},
	{"user/max_uts_namespaces", "0"},
	{"user/max_time_namespaces", "0"},
	{"user/max_user_namespaces", "256"},
	{"user/max_pid_namespaces", "256"},
	{"user/max_net_namespaces", "64"},
}

func (b *Builder) makeProc() (err error) {
	if _, b.proc, err = b.mountNew("proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("%w; a container that masks parts of /proc cannot mount it again", err)
	}
	own := sysctls
	if b.runtime {
		own = sysctls[:1] // it creates namespaces
	}
	for _, s := range own {
		fd, err := Open(b.proc, "sys/"+s.name, unix.O_WRONLY)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("open %s: %w", s.name, err)
		}
		b.sysctls = append(b.sysctls, fd)
	}
	if b.runtime {
		return nil // the kernel lets a runtime mount /proc only if nothing in it is covered
	}
	const harmless = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	for _, name := range readOnly {
		fd, err := clone(b.proc, name, unix.MOUNT_ATTR_RDONLY|harmless)
		if err != nil {
			return err
		}
		if err := b.cover(name, fd); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, empty, err := b.mountNew("tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k")
	if err != nil {
		return err
	}
	defer unix.Close(empty)
	for _, name := range masked {
		if err := b.mask(name, empty); err != nil {
			return fmt.Errorf("hide /proc/%s: %w", name, err)
		}
	}
	return b.coverFiles()
}

// setSysctls is the last step: the kernel temporarily counts each detached mount as a mount namespace.
func (b *Builder) setSysctls() error {
	for i, fd := range b.sysctls {
		if s := sysctls[i]; fd >= 0 {
			if _, err := unix.Write(fd, []byte(s.value)); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			unix.Close(fd)
		}
	}
	return nil
}

// mask covers a folder of /proc with an empty one, or a file with /dev/null.
func (b *Builder) mask(name string, empty int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(b.proc, name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return err
	}
	from, node := empty, ""
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		from, node = b.dev, "null"
	}
	cover, err := unix.OpenTree(from, node, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	return b.cover(name, cover)
}

// cover moves a mount over a part of /proc and closes its descriptor.
func (b *Builder) cover(name string, fd int) error {
	defer unix.Close(fd)
	return unix.MoveMount(fd, "", b.proc, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// makeSys shows only the processors, which language runtimes read.
func (b *Builder) makeSys() error {
	name, fd, err := b.mountNew("tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k")
	if err != nil {
		return err
	}
	const cpu = "devices/system/cpu"
	if _, err := os.Lstat("/sys/" + cpu); err == nil {
		if err := os.MkdirAll(path.Join(name, cpu), 0o755); err != nil {
			return err
		}
		tree, err := clone(unix.AT_FDCWD, "/sys/"+cpu, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(tree)
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, path.Join(name, cpu), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return err
		}
	}
	b.sys = fd
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// loopback enables the only network interface.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
