// Package sudo is the sandbox's sudo: it runs a command as root inside, or as another
// user, without a password.
//
// It is a setuid program: cove-init under the name sudo. Root inside is an
// unprivileged user outside, with few capabilities, under the same system call filter,
// limits and egress as all other processes. Only the sandbox's user may run it, so a daemon
// with another user cannot become root. It refuses to run outside a sandbox, where
// root is the machine's.
//
// It replaces itself with the command, which therefore has the caller's terminal, process
// group, signals and exit code.
package sudo

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Name is the name that the program must be called by.
const Name = "sudo"

// user is the ID of the sandbox's user, which may become root.
const user = 1000

// Main runs the command line of sudo and does not return.
func Main(args []string) {
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "sudo:", err)
	}
	os.Exit(1)
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	switch {
	case o.help:
		fmt.Println(usage)
		os.Exit(0)
	case o.version:
		fmt.Println("sudo of Cove: root inside the sandbox, without a password")
		os.Exit(0)
	}
	if err := checkCaller(); err != nil {
		return err
	}
	if o.list && len(o.command) == 0 {
		fmt.Println("The user of this sandbox may run the following commands:\n    (ALL : ALL) NOPASSWD: ALL")
		os.Exit(0)
	}
	if len(o.command) == 0 && !o.login && !o.shell {
		if o.nothing {
			os.Exit(0)
		}
		return errors.New("a command is required\n" + usage)
	}
	if o.background && os.Getenv(detached) == "" {
		return detach()
	}
	return execute(o)
}

// checkCaller returns an error if the caller may not become root.
func checkCaller() error {
	inside, one := mapping()
	switch uid := os.Getuid(); {
	case !inside:
		return errors.New("this program works only in a sandbox")
	case uid == 0:
		return nil
	case uid != user:
		return fmt.Errorf("user %d may not run sudo; only the sandbox's user may", uid)
	case os.Geteuid() == 0:
		return nil
	case one:
		return errors.New("this sandbox has no root user: its hub runs without root and has a single user ID; " +
			"run the hub as root (sudo cove hub), or install without sudo: pip, npm, pipx and uv use your home directory")
	default:
		return errors.New(`this sandbox does not allow root; ask its operator for an environment whose "sudo" is ` +
			`not false, or install without sudo: pip, npm, pipx and uv use your home directory`)
	}
}

// mapping reports whether this process is in a user namespace, and whether that has a single user.
func mapping() (inside, one bool) {
	text, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(text))
	if err != nil || len(f) < 3 {
		return false, false
	}
	return f[0] != f[1] || f[2] != "4294967295" || isInstalled(), len(f) == 3 && f[2] == "1"
}

// installed is the path of this program in sandboxes. gVisor's kernel shows no user namespace,
// and outside a sandbox only the machine's root can install a program there.
const installed = "/run/bin/sudo"

func isInstalled() bool {
	own, err := os.Stat("/proc/self/exe")
	file, err1 := os.Stat(installed)
	return err == nil && err1 == nil && os.SameFile(own, file)
}

// execute replaces this program with the command.
func execute(o options) error {
	target, err := findUser(o.user)
	if err != nil {
		return err
	}
	gid, groups := target.gid, groupsOf(target)
	if o.group != "" {
		if gid, err = findGroup(o.group); err != nil {
			return err
		}
		groups = append(groups, gid)
	}
	env := environment(o, target)
	argv, path, err := program(o, target, lookup(env, "PATH"))
	if err != nil {
		return err
	}
	if o.list {
		fmt.Println(path)
		os.Exit(0)
	}
	env = append(env, "SUDO_COMMAND="+strings.Join(append([]string{path}, argv[1:]...), " "))
	old := unix.Umask(0)
	unix.Umask(old | 0o022)
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	if o.chroot != "" {
		if err := unix.Chroot(o.chroot); err != nil {
			return fmt.Errorf("chroot to %q: %w", o.chroot, err)
		}
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(gid, gid, gid),
		syscall.Setresuid(target.uid, target.uid, target.uid)); err != nil {
		return fmt.Errorf("become %s: %w", target.name, err)
	}
	dir := o.dir
	if o.login && dir == "" {
		dir = target.home
	}
	if dir != "" {
		if err := os.Chdir(dir); err != nil {
			return err
		}
	}
	err = syscall.Exec(path, argv, env)
	if errors.Is(err, unix.ENOEXEC) { // a script without an interpreter
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), env)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// detached marks the process that -b has started.
const detached = "SUDO_DETACHED"

// detach starts this program again in the background. A process with threads cannot fork.
func detach() error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	_, err = syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env: append(os.Environ(), detached+"=1"), Files: []uintptr{null.Fd(), 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return fmt.Errorf("run in the background: %w", err)
	}
	os.Exit(0)
	return nil
}

// program returns the command's arguments and path.
func program(o options, target account, search string) (argv []string, path string, err error) {
	if !o.login && !o.shell {
		path, err = find(o.command[0], search)
		return o.command, path, err
	}
	shell := os.Getenv("SHELL")
	if o.login || shell == "" {
		shell = target.shell
	}
	argv = []string{shell}
	if o.login {
		argv[0] = "-" + filepath.Base(shell)
	}
	if len(o.command) > 0 {
		argv = append(argv, "-c", quote(o.command))
	}
	path, err = find(shell, search)
	return argv, path, err
}

// find finds a program in the search path.
func find(name, search string) (string, error) {
	list := []string{""}
	if !strings.Contains(name, "/") {
		list = filepath.SplitList(search)
	}
	for _, dir := range list {
		path := filepath.Join(dir, name)
		if dir == "" {
			path = name
		}
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: command not found", name)
}

// quote joins arguments for a shell. As in other implementations of sudo, $ is not quoted.
func quote(args []string) string {
	var b strings.Builder
	for i, a := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		for _, c := range []byte(a) {
			plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-$", c) >= 0 || c >= 0x80
			if !plain {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
	}
	return b.String()
}

// account is an entry of /etc/passwd.
type account struct {
	name, home, shell string
	uid, gid          int
}

// findUser finds a user by name, or by number after #.
func findUser(name string) (account, error) {
	number, byNumber := strings.CutPrefix(name, "#")
	var found *account
	eachLine("/etc/passwd", 7, func(f []string) bool {
		if byNumber && f[2] != number || !byNumber && f[0] != name {
			return true
		}
		uid, err := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err != nil || err2 != nil {
			return true
		}
		found = &account{name: f[0], home: f[5], shell: f[6], uid: uid, gid: gid}
		return false
	})
	switch uid, err := strconv.Atoi(number); {
	case found != nil:
		if found.shell == "" {
			found.shell = "/bin/sh"
		}
		return *found, nil
	case name == "root":
		return account{name: name, home: "/root", shell: "/bin/sh"}, nil // the image has no /etc/passwd
	case byNumber && err == nil && uid >= 0:
		return account{name: number, home: "/", shell: "/bin/sh", uid: uid, gid: uid}, nil
	}
	return account{}, fmt.Errorf("unknown user %s", name)
}

// findGroup finds a group by name, or by number after #.
func findGroup(name string) (int, error) {
	number, byNumber := strings.CutPrefix(name, "#")
	gid, err := strconv.Atoi(number)
	if byNumber && err == nil && gid >= 0 {
		return gid, nil
	}
	gid = -1
	eachLine("/etc/group", 4, func(f []string) bool {
		if f[0] == name {
			gid, err = strconv.Atoi(f[2])
		}
		return gid < 0
	})
	if gid < 0 || err != nil {
		return 0, fmt.Errorf("unknown group %s", name)
	}
	return gid, nil
}

// groupsOf returns all groups of a user.
func groupsOf(a account) []int {
	groups := []int{a.gid}
	eachLine("/etc/group", 4, func(f []string) bool {
		for _, member := range strings.Split(f[3], ",") {
			if gid, err := strconv.Atoi(f[2]); member == a.name && err == nil && gid != a.gid {
				groups = append(groups, gid)
			}
		}
		return len(groups) < 1000
	})
	return groups
}

// eachLine calls do with the fields of each line of a file until do returns false.
func eachLine(path string, fields int, do func([]string) bool) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if list := strings.Split(s.Text(), ":"); len(list) == fields && !do(list) {
			return
		}
	}
}
