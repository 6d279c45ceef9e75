package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// attemptsOf is how many attempts takeover makes.
const attemptsOf = 9

// TestNoProgramReplacesTheServer: programs of a sandbox, as its user and as root, can neither take over
// the sockets of its server nor trace the server or init. They can do both with their own programs.
func TestNoProgramReplacesTheServer(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "takeover")
	testenv.Build(t, map[string]string{program: "./testdata/takeover"})
	h := serveHub(t)
	checkTakeovers(t, h, program, "namespaces")
	rootless := serveRootless(t)
	rootless.must(t, "create", "a")
	rootless.must(t, "cp", program, "a:/tmp/takeover")
	for _, victim := range []string{"aio", "1"} {
		checkAttempts(t, "without root, against "+victim,
			rootless.must(t, "exec", "a", "--", "chmod 755 /tmp/takeover; /tmp/takeover "+victim), false)
	}
	// The same holds for the hubs.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	checkAttempts(t, "the hub without root", as(t, rootless.cmd.SysProcAttr.Credential.Uid, program,
		fmt.Sprint(rootless.cmd.Process.Pid)), false)
	checkAttempts(t, "the hub", as(t, 0, "setpriv", "--bounding-set", "-all", program, fmt.Sprint(h.cmd.Process.Pid)), false)
}

func TestNoProgramReplacesTheServerGVisor(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	runsc := testenv.GVisor(t)
	program := filepath.Join(t.TempDir(), "takeover")
	testenv.Build(t, map[string]string{program: "./testdata/takeover"})
	checkTakeovers(t, serveHub(t, "--runsc", runsc), program, "gvisor")
}

// checkTakeovers lets programs of a sandbox attack its server.
func checkTakeovers(t *testing.T, h *hub, program, tier string) {
	t.Helper()
	h.must(t, "create", tier, "--isolation", tier)
	h.must(t, "cp", program, tier+":/tmp/takeover")
	run := func(command string) string {
		return h.must(t, "exec", tier, "--", "chmod 755 /tmp/takeover; "+command)
	}
	victims := []string{"aio", "1"}
	if tier == "gvisor" {
		victims = victims[:1] // the server itself is the first process
	}
	for _, victim := range victims {
		for who, command := range map[string]string{"user": "/tmp/takeover ", "root": "sudo /tmp/takeover "} {
			checkAttempts(t, fmt.Sprintf("%s, %s against %s", tier, who, victim), run(command+victim), false)
		}
	}
	if tier != "gvisor" {
		checkAttempts(t, tier+", against a program of the user", run("sleep 1000 & /tmp/takeover $!; kill $!"), true)
	}
}

// TestTheServerOfAMachineCannotBeTraced: this holds with and without credentials.
func TestTheServerOfAMachineCannotBeTraced(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // to run as another user
	home, err := os.MkdirTemp("", "cove-takeover-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(home, "takeover")
	testenv.Build(t, map[string]string{program: "./testdata/takeover"})
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--user", "1000"}} {
		cmd := exec.Command(aio, append([]string{"serve", "--listen", "127.0.0.1:0", "--outlet", "127.0.0.1:0",
			"--log-level", "error"}, args...)...)
		if args == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		}
		s := launchCommand(t, cmd, home, nil)
		t.Cleanup(func() { s.stop(t) })
		body, err := json.Marshal(map[string]string{"command": program + " $PPID; echo; sleep 1000 & " + program + " $!; kill $!"})
		if err != nil {
			t.Fatal(err)
		}
		_, reply := as1000(t, s, string(body))
		server, own, _ := strings.Cut(reply, "\n\n")
		checkAttempts(t, fmt.Sprintf("aio serve %v", args), server, false)
		checkAttempts(t, fmt.Sprintf("aio serve %v, own program", args), own, true)
	}
}

// as1000 runs a command through the API. The caller is root, which may use every server.
func as1000(t *testing.T, s *server, body string) (int, string) {
	t.Helper()
	status, out := s.post(t, "/v1/bash/exec", body)
	var reply struct{ Data struct{ Stdout string } }
	if err := json.Unmarshal([]byte(out), &reply); err != nil {
		t.Fatalf("got %d %s, want JSON: %v", status, out, err)
	}
	return status, reply.Data.Stdout
}

// checkAttempts checks that all attempts succeeded, or none.
func checkAttempts(t *testing.T, what, out string, want bool) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < attemptsOf {
		t.Errorf("%s: got %q, want the results of %d attempts", what, out, attemptsOf)
		return
	}
	for _, line := range lines[:attemptsOf] {
		if strings.HasSuffix(line, ": succeeded") != want {
			t.Errorf("%s: got %q, want success %v", what, line, want)
		}
	}
}
