package testenv

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// lastPID is above the PIDs in the namespace of a sandbox.
const lastPID = 20_000

// ProcessWithHighPID starts a process that runs until the test ends, and returns a PID that no process of a sandbox has. In the
// namespace of test/lane, PIDs are as small as in a sandbox, so it asks the kernel for a large one.
func ProcessWithHighPID(t testing.TB) int {
	t.Helper()
	for range 100 { // others also start processes
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(lastPID)), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill() //nolint:errcheck // it has not ended
			cmd.Wait()         //nolint:errcheck // it was killed
		})
		if cmd.Process.Pid > lastPID {
			return cmd.Process.Pid
		}
	}
	t.Fatalf("got no PID above %d", lastPID)
	return 0
}
