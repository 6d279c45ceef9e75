// Package attack contains the attacks on every kind of sandbox: to escape from it, and to
// enter it without credentials.
package attack

import (
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// EscapeProgram is the package of the program that tries to escape, from the module's root:
// "try" as its user, "nested" as root of a user namespace.
const EscapeProgram = "internal/system/isolate/testdata/helper"

// OtherKernel is the line that the program prints if its arguments say that it does not run on the host's kernel.
const OtherKernel = "another kernel"

// Outside creates objects outside that an escape would find, and returns their names as
// arguments of the program that tries.
func Outside(t *testing.T, dir string) []string {
	t.Helper()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	listen := func(network, addr string) net.Listener {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	abstract := fmt.Sprintf("cove-test-%d-%08x", os.Getpid(), crc32.ChecksumIEEE([]byte(dir))) // short and unique for each test
	listen("unix", "@"+abstract)
	tcp := listen("tcp", "127.0.0.1:0")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	total, _, _ := strings.Cut(string(mem), "\n")
	return []string{"boot=" + string(boot), "memory=" + total, "secret=" + secret,
		"socket=" + filepath.Join(dir, "control"), "abstract=" + abstract,
		"tcp=" + tcp.Addr().String(), "pid=" + strconv.Itoa(testenv.ProcessWithHighPID(t))}
}

// Minimum numbers of attempts: on the host's kernel, and on another kernel, where emulated interfaces are not tried.
const (
	minAttempts      = 450
	minOtherAttempts = 300
)

// CheckEscape reads the output of the program that tries, and fails for each successful attempt
// that is not in may, which lists harmless attempts.
func CheckEscape(t *testing.T, out string, may []string) {
	t.Helper()
	attempts, rest, ended := strings.Cut(out, "\ndone\n")
	if !ended {
		t.Fatalf("the attempts did not end: %s", out)
	}
	n := 0
	for l := range strings.Lines(attempts) {
		name, escaped := strings.CutPrefix(strings.TrimSpace(l), "ESCAPED\t")
		switch {
		case escaped && !slices.Contains(may, name):
			t.Errorf("escaped: %s", name)
		case !escaped && !strings.HasPrefix(l, "held\t"):
			t.Log(l)
			continue
		}
		n++
	}
	want := minAttempts
	if strings.Contains(out, OtherKernel) {
		want = minOtherAttempts
	}
	if t.Logf("%d attempts, %s", n, rest); n < want {
		t.Errorf("%d attempts, want at least %d", n, want)
	}
	if testing.Verbose() {
		t.Log(out)
	}
}
