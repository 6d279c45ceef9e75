package observe

import (
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestProcessesCanBeEnded: the list shows a busy process with its command line, and a signal ends it.
func TestProcessesCanBeEnded(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	cmd := burner(t)
	pid := cmd.Process.Pid
	find := func() (Running, bool) {
		list, err := s.List(t.Context(), op.None{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(r Running) bool { return r.PID == pid })
		if i < 0 {
			return Running{}, false
		}
		return list[i], true
	}
	testenv.Poll(t, "the process is busy", func() bool { r, _ := find(); return r.CPU > 0.1 })
	busy, _ := find()
	if busy.Server || busy.Memory < 64<<20 || busy.Parent != os.Getpid() || busy.Command == "" || len(busy.Command) > maxCommand+len("…") {
		t.Errorf("got %+v, want the process with its memory, parent and command", busy)
	}
	for name, in := range map[string]SignalIn{
		"another process with its PID": {PID: pid, Signal: "KILL", Started: busy.Started + "1"},
		"no process":                   {PID: 1 << 22, Signal: "KILL"},
	} {
		if _, err := s.Signal(t.Context(), in); !hasCode(err, op.NotFound) {
			t.Errorf("%s: got %v, want not found", name, err)
		}
	}
	for _, own := range []int{1, os.Getpid(), os.Getppid()} {
		if _, err := s.Signal(t.Context(), SignalIn{PID: own, Signal: "CONT"}); !hasCode(err, op.Conflict) {
			t.Errorf("process %s: got %v, want conflict", strconv.Itoa(own), err)
		}
	}
	if _, alive := find(); !alive {
		t.Fatal("a refused signal ended the process")
	}
	got, err := s.Signal(t.Context(), SignalIn{PID: pid, Signal: "KILL", Started: busy.Started})
	if err != nil || got.PID != pid {
		t.Fatalf("got %+v, %v, want process %d", got, err, pid)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("got %v, want killed", err)
	}
}

func hasCode(err error, code op.Code) bool {
	e, ok := op.AsError(err)
	return ok && e.Code == code
}
