package isolate

import (
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestKilledWhileItOpensOwners: a program that is killed while it creates a namespace leaves no
// process. Such a process would remain stopped, because its tracer would be the host's init.
func TestKilledWhileItOpensOwners(t *testing.T) {
	testenv.NeedRoot(t)
	if os.Getenv("OPEN_OWNERS") != "" {
		exe, err := openExe("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		for first := true; ; first = false {
			ns, err := openOwners(exe, IDs{Base: 1 << 20, Count: 1 << 16})
			if err != nil {
				t.Fatal(err)
			}
			ns.Close()
			if first {
				os.Stdout.WriteString("!")
			}
		}
	}
	for range 100 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledWhileItOpensOwners$")
		cmd.Env = []string{"OPEN_OWNERS=1"}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		time.AfterFunc(rand.N(3*time.Millisecond), func() { cmd.Process.Kill() }) // at any point
		cmd.Wait()
	}
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "no process is left", func() bool {
		left := 0
		all, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range all {
			if to, _ := os.Readlink(link); to == own {
				left++
			}
		}
		return left == 1 // this process
	})
}
