package local_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// exceeded waits for an event that tells of a limit.
func (h *hub) exceeded(events <-chan sandbox.Event, want string) {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				h.t.Fatal("the watch ended")
			}
			if strings.Contains(e.Message, want) {
				return
			}
		case <-deadline:
			h.t.Fatalf("no event tells of %q", want)
		}
	}
}

func (h *hub) watch() <-chan sandbox.Event {
	h.t.Helper()
	events, err := h.Watch(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return events
}

func testMemory(h *hub) {
	events := h.watch()
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{MemoryLimit: 64 << 20}})
	other := h.create(sandbox.Spec{})
	if out := h.sh(sb.ID, "head -c 200M /dev/zero | tail; echo over"); !strings.HasSuffix(out, "over\n") {
		h.t.Errorf("got %.100q", out)
	}
	h.exceeded(events, "out of memory")
	if st, err := h.Stats(h.t.Context(), sb.ID); err != nil || st.OOMKills < 1 {
		h.t.Errorf("stats %+v, %v", st, err)
	}
	for _, id := range []string{sb.ID, other.ID} {
		if _, err := h.try(id, http.MethodGet, "/readyz", ""); err != nil {
			h.t.Errorf("after the kill: %v", err)
		}
	}
	// If it ends the program the reason is told.
	_, err := h.Create(h.t.Context(), sandbox.Spec{Command: []string{"sh", "-c", "head -c 200M /dev/zero | tail; exit 1"},
		Resources: sandbox.Resources{MemoryLimit: 64 << 20}})
	if !errors.Is(err, sandbox.ErrNotReady) || !strings.Contains(err.Error(), "out of memory") {
		h.t.Errorf("got %v", err)
	}
}

func testDisk(h *hub) {
	one := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 8 << 20}})
	h.sh(one.ID, "head -c 20M /dev/zero > big") // it is at the limit then, and may be killed for it
	if out := h.sh(one.ID, "stat -c %s big"); !strings.Contains(out, "8388608\n") {
		h.t.Errorf("one file: %q", out)
	}
	if err := h.Delete(h.t.Context(), one.ID); err != nil {
		h.t.Error(err)
	}
	events := h.watch()
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 8 << 20}})
	// Many files: the writer dies, the server lives.
	go h.try(sb.ID, http.MethodPost, "/run", "for i in $(seq 1 100); do head -c 1M /dev/zero > f$i; done; sleep 1000")
	h.exceeded(events, "more than its limit")
	if out := h.sh(sb.ID, "rm -f f*; pgrep -c sleep"); !strings.HasPrefix(out, "0\n") {
		h.t.Errorf("the writer lives on: %q", out)
	}
	if !eventually(func() bool { st, err := h.Stats(h.t.Context(), sb.ID); return err == nil && st.Disk < 2<<20 }) {
		h.t.Error("deleted files still count")
	}
	// One that goes on is stopped, its disk kept. A start far above the limit is
	// refused until the limit is raised.
	stop := make(chan struct{})
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				h.try(sb.ID, http.MethodPost, "/run", fmt.Sprintf("head -c 6M /dev/zero > g%d", i))
			}
		}
	}()
	stopped := eventually(func() bool {
		got, err := h.Get(h.t.Context(), sb.ID)
		return err == nil && got.State == sandbox.Stopped && strings.Contains(got.Message, "limit")
	})
	close(stop)
	if !stopped {
		h.t.Fatal("it was not stopped")
	}
	if err := h.Start(h.t.Context(), sb.ID); !errors.Is(err, sandbox.ErrExhausted) {
		h.t.Errorf("start above the limit: %v", err)
	}
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Resources.Disk = 1 << 30; return nil }); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Errorf("start with a higher limit: %v", err)
	}
}

func testManyFiles(h *hub) {
	events := h.watch()
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 4 << 20}})
	go h.try(sb.ID, http.MethodPost, "/run", "mkdir many; cd many; i=0; while :; do i=$((i+1)); : > $i; done")
	h.exceeded(events, "files, more than its limit")
}

// testDeepFolders: folders nested by the thousand neither stop the hub nor hide.
func testDeepFolders(h *hub) {
	events := h.watch()
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 64 << 20}})
	h.sh(sb.ID, `python3 -c '
import os
for i in range(5000):
    os.mkdir("d"); os.chdir("d")
'`) // which may be killed on the way
	h.exceeded(events, "nested deeper")
	if err := h.Delete(h.t.Context(), sb.ID); err != nil {
		h.t.Error(err)
	}
}

func testLiveLimits(h *hub) {
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{Pids: 30, MemoryLimit: 64 << 20, CPULimit: 500}})
	const spawn = "for i in $(seq 1 60); do sleep 1000 >/dev/null 2>&1 & done"
	count := func() int64 {
		st, err := h.Stats(h.t.Context(), sb.ID)
		if err != nil {
			h.t.Fatal(err)
		}
		return st.Pids
	}
	h.try(sb.ID, http.MethodPost, "/run", spawn) // it may not even start
	if n := count(); n > 30 {
		h.t.Errorf("%d processes with a limit of 30", n)
	}
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error {
		s.Resources = sandbox.Resources{Pids: 300, MemoryLimit: 128 << 20, CPULimit: 1000}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	h.sh(sb.ID, spawn)
	if !eventually(func() bool { return count() >= 60 }) {
		h.t.Errorf("%d processes after the limit was raised", count())
	}
}
