package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt tries to escape. It returns nil if that had an effect.
type attempt struct {
	name string
	do   func() error
}

// otherKernel: the program does not run on the host's kernel.
var otherKernel bool

// errHeld means that an attempt was permitted but had no effect.
var errHeld = errors.New("led nowhere")

// try runs all attempts, each on a separate thread that ends with it, and
// prints one line for each.
func try(args []string) {
	what := targets{}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		what[k] = v
	}
	if otherKernel = what["kernel"] != ""; otherKernel {
		fmt.Println("another kernel")
	}
	for _, list := range [][]attempt{what.files(), what.mounts(), what.processes(), what.networks(), what.disks(),
		what.privacy(), what.kernel(), what.surfaces()} {
		for _, a := range list {
			result := make(chan error)
			go func() { runtime.LockOSThread(); result <- a.do() }()
			if err := <-result; err != nil {
				fmt.Printf("held\t%s\t%v\n", a.name, err)
			} else {
				fmt.Printf("ESCAPED\t%s\n", a.name)
			}
		}
	}
	fmt.Println("done")
	os.Exit(0)
}

// targets names objects outside, which the test has created.
type targets map[string]string

func open(path string, flags int) error {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if flags == os.O_RDONLY {
		if n, err := f.Read(make([]byte, 64)); n == 0 {
			return fmt.Errorf("empty: %v", err)
		}
	}
	return nil
}

func (t targets) files() []attempt {
	read := func(path string) attempt {
		return attempt{"read " + path, func() error { return open(path, os.O_RDONLY) }}
	}
	write := func(path string) attempt {
		return attempt{"write " + path, func() error { return open(path, os.O_WRONLY) }}
	}
	list := []attempt{
		{"no descriptor but the usual", func() error {
			// 3 and up belong to the Go runtime's poller, which is closed on exec.
			for fd := 3; fd < 256; fd++ {
				link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				if err == nil && !strings.HasPrefix(link, "anon_inode:") && !strings.HasPrefix(link, "/proc/") {
					fmt.Printf("descriptor %d is %s\n", fd, link)
					return nil
				}
			}
			return errHeld
		}},
		{"environment of the host", func() error {
			for _, kv := range os.Environ() {
				if !strings.HasPrefix(kv, "PATH=") && !strings.HasPrefix(kv, "HOME=") {
					return nil
				}
			}
			return errHeld
		}},
		{"fd of the parent folder", func() error {
			// Climb above the root.
			if err := unix.Chdir(strings.Repeat("../", 40)); err != nil {
				return err
			}
			if _, err := os.Stat("." + t["secret"]); err != nil {
				return err
			}
			return nil
		}},
		{"list home folders", func() error {
			e, err := os.ReadDir("/home")
			if err == nil && slices.ContainsFunc(e, func(e os.DirEntry) bool { return e.Name() != "gem" && e.Name() != "user" }) {
				return nil
			}
			return errHeld
		}},
		{"device nodes", func() error {
			e, _ := os.ReadDir("/dev")
			for _, d := range e {
				if !strings.Contains(" null zero full random urandom tty fd stdin stdout stderr ptmx pts shm ", " "+d.Name()+" ") {
					return nil
				}
			}
			return errHeld
		}},
		read(t["secret"]), password("/etc/shadow"), password("/etc/gshadow"), read("/etc/ssh/ssh_config"), read("/etc/machine-id"),
		read("/proc/1/environ"), read("/proc/1/mem"), read("/proc/1/maps"), read("/proc/1/root/etc/passwd"), read("/proc/1/cwd/etc/passwd"),
		read("/proc/1/fd/3"), read("/proc/1/exe"), read("/proc/1/task/1/mem"), read("/proc/kcore"), read("/proc/kmsg"), read("/proc/keys"),
		read("/proc/timer_list"), read("/proc/cmdline"), read("/proc/acpi"), read("/sys/kernel/security"), read("/sys/firmware/dmi/tables/DMI"),
		read("/proc/sched_debug"), read("/dev/mem"), read("/dev/vda"), read("/dev/kmsg"), read("/proc/pressure/cpu"),
		write("/proc/sysrq-trigger"), write("/proc/sys/kernel/core_pattern"), write("/proc/sys/kernel/modprobe"),
		write("/proc/sys/vm/panic_on_oom"),
		write("/proc/sys/net/ipv4/ip_unprivileged_port_start"), write("/proc/sys/user/max_mnt_namespaces"), write("/proc/sys/kernel/ns_last_pid"),
		write("/proc/1/oom_score_adj"), write("/proc/1/clear_refs"), write("/sys/devices/system/cpu/cpu1/online"), write("/proc/bus/pci/devices"),
		write("/proc/irq/default_smp_affinity"), write("/sys/fs/cgroup/cgroup.procs"), write("/dev/full"),
	}
	list[len(list)-1] = attempt{"fill /dev/full", func() error {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write([]byte("x"))
		return err
	}}
	return append(list,
		attempt{"read host folders", func() error {
			for _, d := range []string{"/work", "/boot", "/lost+found", "/root/.ssh", filepath.Dir(t["secret"])} {
				if e, err := os.ReadDir(d); err == nil && len(e) > 0 {
					return nil
				}
			}
			return errHeld
		}},
		attempt{"write over the helper", func() error { return open("/run/helper", os.O_RDWR) }},
		attempt{"make a device", func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))) }},
		attempt{"make a block device", func() error { return unix.Mknod("/tmp/vda", unix.S_IFBLK|0o666, int(unix.Mkdev(254, 0))) }},
		attempt{"make a whiteout", func() error { return unix.Mknod("/tmp/wh", unix.S_IFCHR, 0) }},
		attempt{"mark a folder opaque", func() error { return unix.Setxattr("/tmp", "trusted.overlay.opaque", []byte("y"), 0) }},
		attempt{"forge a redirect", func() error {
			os.Mkdir("/tmp/redirect", 0o755)
			if err := unix.Setxattr("/tmp/redirect", "user.overlay.redirect", []byte("/root"), 0); err != nil {
				return err
			}
			// Newer kernels keep it as a name without a meaning.
			if e, _ := os.ReadDir("/tmp/redirect"); len(e) > 0 {
				return nil
			}
			return errHeld
		}},
		attempt{"open by handle", func() error {
			h := unix.NewFileHandle(1, make([]byte, 8))
			_, err := unix.OpenByHandleAt(unix.AT_FDCWD, h, unix.O_RDONLY)
			return err
		}},
	)
}

func sys(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

func str(s string) uintptr {
	p, _ := unix.BytePtrFromString(s)
	return uintptr(unsafe.Pointer(p))
}

func (t targets) mounts() []attempt {
	mount := func(kind, at string, flags uintptr) func() error {
		return func() error { return unix.Mount(kind, at, kind, flags, "") }
	}
	// inUser tries inside a new user namespace, where it has every
	// capability. Threads cannot create one, so a child does.
	list := []attempt{
		{"mount tmpfs", mount("tmpfs", "/tmp", 0)},
		{"mount proc", mount("proc", "/tmp", 0)},
		{"mount sysfs", mount("sysfs", "/tmp", 0)},
		{"mount cgroup2", mount("cgroup2", "/tmp", 0)},
		{"bind mount", mount("/", "/tmp", unix.MS_BIND)},
		{"remount /proc/sys", mount("", "/proc/sys", unix.MS_REMOUNT|unix.MS_BIND)},
		{"unmount /proc/sys", func() error { return unix.Unmount("/proc/sys", 0) }},
		{"unmount /proc/kcore", func() error { return unix.Unmount("/proc/kcore", unix.MNT_DETACH) }},
		{"open_tree", func() error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err }},
		{"fsopen", func() error { _, err := unix.Fsopen("tmpfs", 0); return err }},
		{"move_mount", func() error { return unix.MoveMount(unix.AT_FDCWD, "/dev", unix.AT_FDCWD, "/tmp", 0) }},
		{"mount_setattr", func() error {
			return unix.MountSetattr(unix.AT_FDCWD, "/sys", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		}},
		{"pivot_root", func() error { return unix.PivotRoot("/", "/tmp") }},
		{"chroot and climb", func() error {
			d, err := os.Open("/")
			if err != nil {
				return err
			}
			defer d.Close()
			os.Mkdir("/tmp/jail", 0o755)
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Chroot("/tmp/jail"); err != nil {
				return err
			}
			unix.Fchdir(int(d.Fd()))
			unix.Chdir(strings.Repeat("../", 40))
			if _, err := os.Stat("." + t["secret"]); err != nil {
				return err
			}
			return nil
		}},
	}
	for _, ns := range []struct {
		name string
		flag int
	}{{"mount", unix.CLONE_NEWNS}, {"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC},
		{"cgroup", unix.CLONE_NEWCGROUP}, {"time", unix.CLONE_NEWTIME},
		{"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET}, {"user and mount", unix.CLONE_NEWUSER | unix.CLONE_NEWNS}} {
		list = append(list, attempt{"unshare " + ns.name, func() error { return unix.Unshare(ns.flag) }})
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		list = append(list, attempt{"join " + ns + " of init", func() error {
			f, err := os.Open("/proc/1/ns/" + ns)
			if err != nil {
				return err
			}
			defer f.Close()
			return unix.Setns(int(f.Fd()), 0)
		}})
	}
	list = append(list, attempt{"join by pidfd", func() error {
		fd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		return unix.Setns(fd, unix.CLONE_NEWNS)
	}}, attempt{"clone3", func() error {
		args := [11]uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNS}
		return sys(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	}})
	return list
}

func (t targets) processes() []attempt {
	return []attempt{
		{"kill init", func() error {
			if otherKernel {
				return errHeld // this process is PID 1
			}
			if err := unix.Kill(1, unix.SIGKILL); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
			return errHeld // this process still runs
		}},
		{"kill a host process", func() error { return unix.Kill(atoi(t["pid"]), 0) }},
		{"see a host process", func() error { _, err := os.Stat("/proc/" + t["pid"]); return err }},
		{"trace init", func() error { return unix.PtraceAttach(1) }},
		{"seize init", func() error { return unix.PtraceSeize(1) }},
		{"read init's memory", func() error {
			b := make([]byte, 8)
			_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &b[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
			return err
		}},
		{"take init's descriptor", func() error {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return err
			}
			_, err = unix.PidfdGetfd(fd, 4, 0)
			return err
		}},
		{"become realtime", func() error {
			prio := int32(1)
			return sys(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&prio)))
		}},
		{"become nicer than others", becomeNicer},
		{"lower the oom score", func() error {
			return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
		}},
		{"raise the file limit", func() error {
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
		}},
		{"raise capabilities", func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
			return unix.Capset(&hdr, &data[0])
		}},
		{"unset no_new_privs", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) }},
		lack("the filter", "Seccomp:\t2"), lack("no_new_privs", "NoNewPrivs:\t1"),
	}
}

// becomeNicer raises the priority above that at the start, which may be above the default.
func becomeNicer() error {
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less the niceness
	if err != nil {
		return err
	}
	return unix.Setpriority(unix.PRIO_PROCESS, 0, 20-now-5)
}

func atoi(s string) (n int) { fmt.Sscan(s, &n); return n }

// disks tries the controls of the filesystem of disks and volumes, in every
// writable folder.
func (t targets) disks() (list []attempt) {
	for _, dir := range []string{"/", "/tmp", "/home/gem", "/run", "/run/aio", "/data"} {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		for name, call := range map[string]uintptr{
			"create a subvolume": 0x5000940e, "create a snapshot": 0x50009417, "search the trees": 0xd0009411, "list subvolumes": 0xd0009412,
			"describe the filesystem": 0x8400941f, "list the devices": 0xd000941e, "list the space": 0xc0109414, "delete a subvolume": 0x5000940f,
			"make it read-only": 0x4008941a, "limit a quota": 0x8030942b, "turn quotas off": 0xc0109428, "balance": 0xc4009420,
		} {
			list = append(list, attempt{"btrfs in " + dir + ": " + name, func() error {
				d, err := os.Open(dir)
				if err != nil {
					return err
				}
				defer d.Close()
				var arg [4096]byte
				copy(arg[8:], "planted")
				return refusedByFilter(sys(unix.SYS_IOCTL, d.Fd(), call, uintptr(unsafe.Pointer(&arg))))
			}})
		}
	}
	return append(list, attempt{"a raw filesystem of the host", func() error {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, " - btrfs ") {
				fmt.Print(line)
				return nil
			}
		}
		return errHeld
	}})
}

// privacy reads what /proc reveals of the whole machine.
func (t targets) privacy() (list []attempt) {
	see := func(what, path string, isHosts func(text string) bool) {
		list = append(list, attempt{"see the host's " + what, func() error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if isHosts(string(data)) {
				return nil
			}
			return errHeld
		}})
	}
	see("boot", "/proc/sys/kernel/random/boot_id", func(text string) bool { return text == t["boot"] })
	see("memory", "/proc/meminfo", func(text string) bool { return t["memory"] != "" && strings.Contains(text, t["memory"]) })
	see("load", "/proc/loadavg", func(text string) bool { return !strings.HasPrefix(text, "0.00 0.00 0.00 1/1") })
	see("work", "/proc/stat", func(text string) bool { return !strings.HasPrefix(text, "cpu  0 0 0 0") })
	for _, path := range []string{"locks", "vmstat", "zoneinfo", "buddyinfo", "softirqs", "schedstat"} {
		see(path, "/proc/"+path, func(text string) bool { return text != "" })
	}
	return list
}

func (t targets) kernel() []attempt {
	list := []attempt{
		{"type into a terminal", func() error {
			f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			c := byte('x')
			return sys(unix.SYS_IOCTL, f.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
		}},
		{"type with high bits", func() error {
			f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			c := byte('x')
			return sys(unix.SYS_IOCTL, f.Fd(), 1<<32|unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
		}},
		{"load a line discipline", func() error {
			f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			n := int32(21)
			return sys(unix.SYS_IOCTL, f.Fd(), unix.TIOCSETD, uintptr(unsafe.Pointer(&n)))
		}},
		{"read implies exec", func() error { return sys(unix.SYS_PERSONALITY, 0x0400000) }},
		{"unknown call", func() error { return sys(9999) }},
		{"x32 call", func() error { return sys(0x40000000 | unix.SYS_GETPID) }},
		{"new call", func() error { return sys(unix.SYS_REMOVEXATTRAT + 1) }},
		{"keyctl", func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true); return err }},
		{"add_key", func() error {
			_, err := unix.AddKey("user", "cove", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		}},
		{"request_key", func() error { return sys(unix.SYS_REQUEST_KEY, str("user"), str("cove"), 0, 0) }},
		{"swapon", func() error { return sys(unix.SYS_SWAPON, str("/tmp/x"), 0) }},
		{"acct", func() error { return unix.Acct("/tmp/acct") }},
		{"read the kernel log", func() error { _, err := unix.Klogctl(3, make([]byte, 64)); return err }},
		{"set the time", func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) }},
		{"set the clock", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1}) }},
		{"set the hostname", func() error { return unix.Sethostname([]byte("x")) }},
		{"reboot", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) }},
	}
	for name, nr := range map[string]uintptr{
		"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "kexec_load": unix.SYS_KEXEC_LOAD, "init_module": unix.SYS_INIT_MODULE,
		"finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE, "userfaultfd": unix.SYS_USERFAULTFD,
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
		"quotactl": unix.SYS_QUOTACTL, "fanotify_init": unix.SYS_FANOTIFY_INIT, "vhangup": unix.SYS_VHANGUP,
		"lookup_dcookie": unix.SYS_LOOKUP_DCOOKIE,
	} {
		list = append(list, attempt{name, func() error {
			// A filter decides before the kernel checks the arguments.
			err := sys(nr)
			if err == unix.EPERM || err == unix.ENOSYS || otherKernel && err != nil {
				return err
			}
			return nil
		}})
	}
	return list
}

// password finds a password in a file of the sandbox, which has none.
func password(path string) attempt {
	return attempt{"find a password in " + path, func() error {
		text, err := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(line, ":"); len(f) < 2 || f[1] != "*" {
				return nil
			}
		}
		if err == nil {
			err = errHeld
		}
		return err
	}}
}

// lack succeeds if a line is missing in the status of this thread.
func lack(what, line string) attempt {
	return attempt{"live without " + what, func() error {
		status, err := os.ReadFile("/proc/thread-self/status")
		if err == nil && strings.Contains(string(status), line) {
			err = errHeld
		}
		return err
	}}
}
