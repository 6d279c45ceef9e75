//go:build linux

package cove

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// openTerminal returns a terminal and the side that a person uses.
func openTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return person, terminal
}

// runLine runs a command line against the hub of the rig. A nil stream is empty.
func (r *rig) runLine(std host.Streams, args ...string) (string, int) {
	r.t.Helper()
	if r.admin == "" {
		r.key("acme", "user") // reads the key of the administrator
	}
	r.t.Setenv("COVE_API_KEY", r.admin)
	r.t.Setenv("HOME", r.t.TempDir())
	var out bytes.Buffer
	if std.In == nil {
		std.In = strings.NewReader("")
	}
	if std.Out == nil {
		std.Out = &out
	}
	if std.Err == nil {
		std.Err = &out
	}
	cmd, err := Command("0", append(args, "--hub-url", r.server.URL), std)
	if err == nil {
		err = cmd.ExecuteContext(r.t.Context())
	}
	if err != nil && err.Error() != "" {
		fmt.Fprintln(&out, err)
	}
	return out.String(), cli.Code(err)
}

// TestRemoveAllConfirms: a redirected output does not skip the confirmation, and without a terminal nothing is deleted.
func TestRemoveAllConfirms(t *testing.T) {
	r := newRig(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		if out, code := r.runLine(host.Streams{}, "create", name, "--label", "for=test"); code != 0 {
			t.Fatalf("create: got %d %s, want 0", code, out)
		}
	}
	person, terminal := openTerminal(t)
	for _, answer := range []string{"n\n", "\n"} {
		io.WriteString(person, answer)
		var redirected bytes.Buffer
		if out, code := r.runLine(host.Streams{In: terminal, Out: &redirected, Err: terminal}, "rm", "--all"); code != cli.ExitFailed ||
			!strings.Contains(out, "nothing was deleted") || redirected.Len() > 0 {
			t.Errorf("answer %q: got %d %s, want a refusal", answer, code, out)
		}
	}
	for _, args := range [][]string{{"rm", "--all"}, {"rm", "-l", "for=test"}} {
		if out, code := r.runLine(host.Streams{}, args...); code != cli.ExitUsage || !strings.Contains(out, "--yes") {
			t.Errorf("%v without a terminal: got %d %s, want %d and --yes", args, code, out, cli.ExitUsage)
		}
	}
	if out, _ := r.runLine(host.Streams{}, "list", "-q"); out != "a\nb\nc\n" {
		t.Errorf("got sandboxes %q, want a, b and c", out)
	}
	if out, code := r.runLine(host.Streams{}, "rm", "-f", "a", "missing"); code != 0 || out != "a\n" {
		t.Errorf("rm -f: got %d %s, want the name of the one that existed", code, out)
	}
	if out, code := r.runLine(host.Streams{}, "rm", "missing"); code != cli.ExitNotFound {
		t.Errorf("rm of a missing sandbox: got %d %s, want %d", code, out, cli.ExitNotFound)
	}
	if out, code := r.runLine(host.Streams{}, "rm", "-l", "for=other", "-f"); code != 0 || out != "" {
		t.Errorf("rm of another label: got %d %s, want nothing", code, out)
	}
	io.WriteString(person, "y\n")
	if out, code := r.runLine(host.Streams{In: terminal, Err: terminal}, "rm", "--all"); code != 0 || out != "b\nc\n" {
		t.Errorf("confirmed: got %d %s, want two names", code, out)
	}
}
