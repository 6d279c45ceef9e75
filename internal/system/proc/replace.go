package proc

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Replace replaces this program by another, which keeps its process ID, its children and the
// file descriptors without close-on-exec. It returns only if that fails.
func Replace(path string, argv, env []string) error {
	return fmt.Errorf("replace this program by %q: %w", path, syscall.Exec(path, argv, env))
}

// ReapInherited returns a function that waits for the children of the program that this
// program has replaced: no other code knows them. It must be called before this program
// starts children.
func ReapInherited() (wait func(), err error) {
	pids, err := children()
	return func() {
		for _, pid := range pids {
			var status syscall.WaitStatus
			for {
				if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
					break
				}
			}
		}
	}, err
}

// children lists the children of all threads of this process.
func children() ([]int, error) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			return nil, err
		}
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}
