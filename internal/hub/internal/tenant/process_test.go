package tenant

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// asWriter turns this program into a process that changes the keys file at this path.
const asWriter = "COVE_TEST_TENANT_WRITER"

const each = 25

// writer adds keys and shares, and revokes every second one. It prints the remaining
// secrets and tokens.
func writer(path string) int {
	s, err := Open(Config{Path: path})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for i := range each {
		secret, key, err := s.Add("acme", RoleUser, fmt.Sprint(os.Getpid()), time.Time{})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		token, _, err := s.Sign(Share{Sandbox: "sb-1", Tenant: "acme", KeyID: key.ID, Expires: time.Now().Add(time.Hour)})
		if err == nil && i%2 == 1 {
			err = s.Revoke(key.ID)
		} else if err == nil {
			fmt.Println("lives", secret, token)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return 0
}

func start(t *testing.T, path string, out *lockedBuffer) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = []string{asWriter + "=" + path, "TMPDIR=" + t.TempDir()}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	return cmd
}

// Several processes change the files concurrently, while the hub reads them. No change is lost.
func TestProcessesWriteAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.json")
	r := openRig(t, path)
	secret, _ := r.add("acme", RoleUser)
	var out [2]lockedBuffer
	done := make(chan error, len(out))
	for i := range out {
		cmd := start(t, path, &out[i])
		go func() { done <- cmd.Wait() }()
	}
	for left := len(out); left > 0; {
		select {
		case err := <-done:
			if left--; err != nil {
				t.Errorf("%v: %s %s", err, out[0].String(), out[1].String())
			}
		case <-time.After(3 * time.Millisecond): // release the lock so that others can take it
			// The hub both reads and writes.
			r.soon()
			if !r.knows(secret) || r.Fault() != nil {
				t.Fatalf("got fault %v and known %v, want no fault and a known key", r.Fault(), r.knows(secret))
			}
			_, key := r.add("acme", RoleViewer)
			must(t, r.Revoke(key.ID))
		}
	}
	lives, ended := 0, 0
	for _, k := range r.List() {
		switch {
		case k.Role != RoleUser || k.Name == "":
		case k.Revoked.IsZero():
			lives++
		default:
			ended++
		}
	}
	if lives != len(out)*((each+1)/2) || ended != len(out)*(each/2) || len(r.Shares(nil)) != lives {
		t.Errorf("%d keys live, %d ended, %d shares", lives, ended, len(r.Shares(nil)))
	}
	for i := range out {
		for line := range strings.Lines(out[i].String()) {
			f := strings.Fields(line)
			if len(f) != 3 || !r.knows(f[1]) {
				t.Errorf("got %s, want 3 fields with a known key", line)
			} else if _, err := r.Verify(f[2]); err != nil {
				t.Errorf("lost: %s", line)
			}
		}
	}
}

// A process that is killed while it writes leaves a valid file and no lock.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.json")
	r := openRig(t, path)
	for round := range 5 {
		var out lockedBuffer
		cmd := start(t, path, &out)
		testenv.Poll(t, "write", func() bool { return strings.Count(out.String(), "lives") > round })
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		r.soon()
		if r.Fault() != nil {
			t.Fatalf("got %v, want no fault", r.Fault())
		}
		text := out.String()
		for line := range strings.Lines(text[:strings.LastIndexByte(text, '\n')+1]) {
			if f := strings.Fields(line); len(f) != 3 || !r.knows(f[1]) {
				t.Errorf("got %s, want 3 fields with a known key", line)
			}
		}
		r.add("acme", RoleUser)
	}
}
