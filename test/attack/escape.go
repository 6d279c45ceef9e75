// Package attack holds what is tried against every kind of sandbox: to get out of it, and to
// get in without credentials.
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
)

// EscapeProgram is the package of the program that tries to get out, from the module's root:
// "try" as who it is, "nested" as root of a user namespace.
const EscapeProgram = "internal/system/isolate/testdata/helper"

// OtherKernel is a line that the program prints where it was told that it does not run on the host's kernel.
const OtherKernel = "another kernel"

// Outside puts things outside that an escape would find, and names them as arguments
// of the program that tries.
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
	abstract := fmt.Sprintf("cove-test-%d-%08x", os.Getpid(), crc32.ChecksumIEEE([]byte(dir))) // short, and one for each test
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
		"tcp=" + tcp.Addr().String(), "pid=" + strconv.Itoa(os.Getpid())}
}

// Minimum numbers of attempts: on the host's kernel, and on one of their own, where what the kernel emulates says nothing.
const (
	minAttempts      = 450
	minOtherAttempts = 300
)

// CheckEscape reads the output of the program that tries, and fails for each attempt that was
// not held and is not in may, which lists what is allowed and harmless.
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
			t.Errorf("not held: %s", name)
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
