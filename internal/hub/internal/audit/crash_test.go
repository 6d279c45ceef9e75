package audit

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// crash is the child process: it appends from several goroutines and prints each
// acknowledged entry until it is killed.
func crash(dir string) {
	l, err := Open(Config{Dir: dir, MaxBytes: 50000, Keep: 10000, Key: []byte("key"), Patience: time.Minute})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var out sync.Mutex
	for w := range 4 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				if err := l.Append(Entry{Op: "x", Sandbox: id}); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				out.Lock()
				fmt.Println(id)
				out.Unlock()
			}
		}()
	}
	testenv.Hang()
}

func TestKillLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	acked := map[string]bool{}
	for range 20 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "COVE_TEST_AUDIT="+dir)
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(pipe)
		for n, stop := 0, rnd.IntN(400); ; n++ {
			if n == stop {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			line, err := in.ReadString('\n')
			if err != nil {
				break // a truncated line was not acknowledged completely
			}
			if len(line) > 5 && line[:5] == "error" {
				t.Errorf("got %q from the child, want the id of an entry", line)
			}
			acked[line[:len(line)-1]] = true
		}
		_ = cmd.Wait()
		if r := verify(t, Check{Dir: dir, Key: []byte("key")}); r.Problem != nil {
			t.Fatalf("after kill: got %v, want no problem", r.Problem)
		}
	}
	l := open(t, Config{Dir: dir, Key: []byte("key"), Keep: 10000})
	shut(t, l)
	r := sound(t, Check{Dir: dir, Key: []byte("key")})
	t.Logf("%d lines in %d files, %d torn, %d acknowledged", r.Lines, r.Files, len(r.Torn), len(acked))
	if r.Synced != r.Last.Seq {
		t.Errorf("got %+v, want all lines synced", r)
	}
	for _, l := range lines(t, dir, Filter{}) {
		delete(acked, l.Sandbox)
	}
	if len(acked) > 0 {
		t.Errorf("got %d acknowledged entries that are not in the log, want none", len(acked))
	}
}
