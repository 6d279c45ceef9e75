// Command helper is the program that the tests start: as init, as the program
// inside, and as a hub without root.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/initprocess"
)

func main() {
	runtime.LockOSThread()
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "isolate-init":
		initprocess.Main()
	case "isolate-init-ignoring":
		signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP)
		var blocked unix.Sigset_t
		blocked.Val[0] = 1<<(unix.SIGHUP-1) | 1<<(unix.SIGTERM-1)
		fail(unix.PthreadSigmask(unix.SIG_SETMASK, &blocked, nil))
		initprocess.Main()
	case "try":
		try(args)
	case "nested":
		nested(args)
	case "listen":
		listen(args[0])
	case "rootless":
		rootless(args[0], args[1:])
	case "forks":
		forks()
	case "eat":
		eat()
	case "files":
		files()
	case "orphans":
		orphans()
	case "patient":
		patient()
	case "addresses":
		list, err := net.InterfaceAddrs()
		fail(err)
		fmt.Println(list)
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "unknown use")
	os.Exit(2)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// nested tries in a new user namespace, with every capability there.
func nested(args []string) {
	cmd := exec.Command("/proc/self/exe", append([]string{"try"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	fail(cmd.Run())
	os.Exit(0)
}

// listen serves one connection on a port and prints a line when it is ready.
func listen(addr string) {
	l, err := net.Listen("tcp", addr)
	fail(err)
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		fail(err)
		fmt.Fprint(c, "hello")
		c.Close()
	}
}

// forks starts processes until that fails, and prints their number.
func forks() {
	n := 0
	for ; n < 2000; n++ {
		if err := exec.Command("sleep", "1000").Start(); err != nil {
			break
		}
	}
	fmt.Println("forks", n)
	os.Exit(0)
}

// eat allocates memory in a child until the child is killed.
func eat() {
	if len(os.Args) > 2 {
		for hog := [][]byte{}; ; {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			hog = append(hog, b)
		}
	}
	err := exec.Command("/proc/self/exe", "eat", "all").Run()
	fmt.Println("child:", err)
	os.Exit(0)
}

// files opens files until that fails.
func files() {
	n := 0
	for {
		if _, err := os.Open("/dev/null"); err != nil {
			fmt.Println("files", n, err)
			os.Exit(0)
		}
		n++
	}
}

// orphans leaves many ended grandchildren to init, and prints whether one stays a zombie.
func orphans() {
	for range 50 {
		fail(exec.Command("sh", "-c", "sleep 0.01 & exit").Run())
	}
	fmt.Println("ready")
	time.Sleep(time.Minute)
}

// patient ends with status 9 after SIGTERM.
func patient() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	fmt.Println("ready")
	select {
	case <-c:
		os.Exit(9)
	case <-time.After(time.Minute):
		os.Exit(1)
	}
}
