// Command takeover tries, from inside a sandbox, everything that would let it answer in the
// place of another process: take its sockets, read its memory, trace it.
//
// It prints a line for each attempt: its name, and "succeeded" or the error.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread() // a tracer is a thread
	pid := find(os.Args[1])
	for _, a := range attempts(pid) {
		err := a.try()
		result := "succeeded"
		if err != nil {
			result = err.Error()
		}
		fmt.Printf("%s: %s\n", a.name, result)
	}
}

// find returns the process with this ID or name.
func find(who string) int {
	if pid, err := strconv.Atoi(who); err == nil {
		return pid
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, _ := os.ReadFile(d + "/cmdline")
		if name, _, _ := strings.Cut(string(line), "\x00"); filepath.Base(name) == who {
			pid, _ := strconv.Atoi(filepath.Base(d))
			return pid
		}
	}
	fmt.Println("not found:", who)
	os.Exit(1)
	return 0
}

type attempt struct {
	name string
	try  func() error
}

func attempts(pid int) []attempt {
	open := func(name string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", pid, name), flags, 0)
			unix.Close(fd)
			return err
		}
	}
	return []attempt{
		{"pidfd_getfd", func() error { return takeFile(pid) }},
		{"see a file", func() error { _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid)); return err }},
		{"open a file", open("fd/0", unix.O_RDONLY)},
		{"read memory", open("mem", unix.O_RDONLY)},
		{"write memory", open("mem", unix.O_RDWR)},
		{"read environment", open("environ", unix.O_RDONLY)},
		{"copy memory", func() error { return copyMemory(pid) }},
		{"seize", func() error { return seize(pid) }},
		{"attach", func() error { return attach(pid) }},
	}
}

// takeFile takes the first socket among the files of a process.
func takeFile(pid int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(process)
	for fd := range 64 {
		var own int
		if own, err = unix.PidfdGetfd(process, fd, 0); err == nil {
			unix.Close(own)
			return nil
		}
		if err != unix.EBADF {
			return err
		}
	}
	return err
}

func copyMemory(pid int) error {
	b := make([]byte, 16)
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: len(b)}}, 0)
	if err == unix.EFAULT { // allowed, but nothing is there
		return nil
	}
	return err
}

func seize(pid int) error {
	if err := unix.PtraceSeize(pid); err != nil {
		return err
	}
	unix.PtraceInterrupt(pid)
	unix.Wait4(pid, nil, unix.WALL, nil)
	return unix.PtraceDetach(pid)
}

func attach(pid int) error {
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	unix.Wait4(pid, nil, unix.WALL, nil)
	return unix.PtraceDetach(pid)
}
