package bash

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestClosedWhileStarting: closing a session ends a command that is being started.
func TestClosedWhileStarting(t *testing.T) {
	t.Parallel()
	s := newService(t)
	c, start, _, err := s.register("x", "", "sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	if i := c.info(); i.Status != pending {
		t.Errorf("got %+v, want status %q", i, pending)
	}
	for _, err := range []error{
		second(s.Kill(t.Context(), KillIn{SessionID: "x", Signal: "TERM"})),
		second(s.Write(t.Context(), WriteIn{SessionID: "x", Input: "x"})),
	} {
		wantError(t, err, op.Conflict, "still starting")
	}
	if got, err := s.CloseSession(t.Context(), CloseSessionIn{"x"}); err != nil || got.Killed != 1 {
		t.Errorf("got %+v %v, want killed 1", got, err)
	}
	if err := s.start(c, start, true); err != nil {
		t.Fatal(err)
	}
	if err := s.await(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.result(t.Context(), 0); got.Status != killed {
		t.Errorf("got %+v, want status %q", got, killed)
	}
	s.release(c)
}

func second[T any](_ T, err error) error { return err }

// TestEverythingAtOnce reaches all limits concurrently: every reply is correct, and all
// resources are released.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions, c.Idle = 8, 20*time.Millisecond })
	s.store.memory.max, s.store.inline = 20_000, 3000
	s.store.disk.max, s.store.piece, s.store.file = 64<<10, 8<<10, 32<<10
	var ran atomic.Int32
	var wait sync.WaitGroup
	for worker := range uint64(8) {
		wait.Go(func() {
			rnd := rand.New(rand.NewPCG(worker, 1))
			for range 12 {
				session := fmt.Sprint("s", rnd.IntN(3))
				n := rnd.IntN(60_000)
				in := ExecIn{Command: fmt.Sprintf("printf '%%0%dd' 7; echo e >&2", n), MaxOutputLength: 100_000}
				if rnd.IntN(2) == 0 {
					in.SessionID = &session
				}
				switch rnd.IntN(5) {
				case 0:
					in.AsyncMode, in.Command = true, in.Command+"; sleep 1000"
				case 1:
					in.HardTimeout = new(0.02)
				case 2:
					s.CloseSession(t.Context(), CloseSessionIn{session})
				case 3:
					s.Kill(t.Context(), KillIn{SessionID: session, Signal: "KILL"})
				}
				out, err := s.Exec(t.Context(), in)
				if err != nil {
					if _, ok := op.AsError(err); !ok {
						t.Error(err)
					}
					continue
				}
				ran.Add(1)
				if out.Status == completed && op.Value(out.Stderr) != "e\n" ||
					strings.Trim(*out.Stdout, "0") != "7" && out.Status == completed && n <= 3000 {
					t.Errorf(`got %s with stdout %.100q and stderr %q, want zeros around a 7 and "e\n" if it `+
						`completed`, out.Status, *out.Stdout, op.Value(out.Stderr))
				}
				got, err := s.Output(t.Context(), OutputIn{SessionID: out.SessionID, CommandID: &out.CommandID, Wait: true, WaitTimeout: 0.02})
				if err == nil && got.Offset < got.Dropped {
					t.Errorf("got %+v, want an offset of at least the dropped bytes", got)
				}
				if in.AsyncMode {
					s.Kill(t.Context(), KillIn{SessionID: out.SessionID, CommandID: &out.CommandID, Signal: "KILL"})
				}
			}
		})
	}
	wait.Wait()
	if n := ran.Load(); n < 40 {
		t.Errorf("only %d commands ran, want at least 40", n)
	}
	testenv.Poll(t, "all sessions expire", func() bool {
		all, _ := s.Sessions(t.Context(), op.None{})
		return len(all) == 0
	})
	s.Close()
	if living := s.Runner.Living(); len(living) != 0 {
		t.Errorf("processes remain: %v, want none", living)
	}
}
