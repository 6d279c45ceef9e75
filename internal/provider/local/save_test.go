package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestPauseToDiskGVisor: a sandbox that is paused to disk uses no memory and resumes with its processes and open files, also
// after a restart of the hub. If the pause fails, it continues to run.
func TestPauseToDiskGVisor(t *testing.T) {
	testenv.NeedRoot(t)
	runsc := testenv.GVisor(t)
	t.Parallel()
	k := newKit(t)
	for _, c := range []struct {
		name string
		run  func(*hub)
	}{
		{"and back", testSaved}, {"killed hub", testSavingKilled}, {"replaced programs", testSavedPrograms}, {"not possible", testNotSaved},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := k.config(t)
			cfg.Runsc = runsc
			h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
			t.Cleanup(h.clean)
			c.run(h)
		})
	}
}

// savable returns the spec of a sandbox that can be saved: it serves TCP.
func savable(name string) sandbox.Spec {
	return sandbox.Spec{Name: name, Isolation: "gvisor", Server: sandbox.Server{Port: 9000}}
}

// begin starts a process with a file; remains checks that it runs and continues to write.
func (h *hub) begin(id string) {
	h.t.Helper()
	h.sh(id, "(i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done) > ~/count 2>/dev/null </dev/null & echo $! "+
		"> ~/pid; while ! [ -s ~/count ]; do sleep 0.01; done")
}

func (h *hub) remains(id, when string) {
	h.t.Helper()
	out := h.sh(id, "n=$(wc -l < ~/count); for i in $(seq 600); do [ $(wc -l < ~/count) -gt $n ] && break; sleep "+
		"0.05; done; kill -0 $(cat ~/pid) && ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q /count && head -n 1 ~/count")
	if strings.TrimSpace(out) != "1" {
		h.t.Errorf("%s: the process and its file: got %q, want 1, the first line of a running process", when, out)
	}
}

func (h *hub) state(id string) sandbox.State {
	h.t.Helper()
	sb, err := h.Get(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb.State
}

// saved lists the files of saved sandboxes.
func (h *hub) saved() []string {
	list, _ := filepath.Glob(filepath.Join(boxes(h.cfg.Dir), "*", "saved"))
	return list
}

func testSaved(h *hub) {
	ctx := h.t.Context()
	if a := h.Abilities(); !a.PauseToDisk {
		h.t.Errorf("abilities: got %+v, want pause_to_disk", a)
	}
	sb := h.create(savable("a"))
	h.begin(sb.ID)
	for range 2 { // the second finds it done
		if err := h.PauseToDisk(ctx, sb.ID); err != nil {
			h.t.Fatal(err)
		}
	}
	if got := h.state(sb.ID); got != sandbox.Paused {
		h.t.Errorf("state: got %s, want %s", got, sandbox.Paused)
	}
	if s, err := h.Stats(ctx, sb.ID); err != nil || s.Memory > 0 || s.Pids > 0 {
		h.t.Errorf("a sandbox on disk: got %+v, %v, want no memory and no processes", s, err)
	}
	if err := h.Close(); err != nil {
		h.t.Error(err)
	}
	h.Provider = h.k.open(h.t, h.cfg)
	if got := h.state(sb.ID); got != sandbox.Paused {
		h.t.Errorf("state after a restart: got %s, want %s", got, sandbox.Paused)
	}
	if err := h.Resume(ctx, sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.remains(sb.ID, "resumed")
	if left := h.saved(); len(left) > 0 {
		h.t.Errorf("left on disk after resuming: %q, want nothing", left)
	}
	// A sandbox that is paused in memory can be paused to disk.
	if err := errors.Join(h.Pause(ctx, sb.ID), h.PauseToDisk(ctx, sb.ID), h.Resume(ctx, sb.ID)); err != nil {
		h.t.Fatal(err)
	}
	h.remains(sb.ID, "resumed again")
	// Stopping it discards the memory.
	if err := errors.Join(h.PauseToDisk(ctx, sb.ID), h.Stop(ctx, sb.ID)); err != nil {
		h.t.Fatal(err)
	}
	if left := h.saved(); len(left) > 0 {
		h.t.Errorf("left on disk after a stop: %q, want nothing", left)
	}
	if err := h.Start(ctx, sb.ID); err != nil {
		h.t.Fatal(err)
	}
	// Its PID may have been reused.
	if out := h.sh(sb.ID, "ls -l /proc/[0-9]*/fd 2>/dev/null | grep /count || echo gone; head -n 1 ~/count"); out != "gone\n1\n" {
		h.t.Errorf("started after a stop: got %q, want no process and its file", out)
	}
}

// testSavingKilled: a hub that is killed while it saves a sandbox does not lose data.
func testSavingKilled(h *hub) {
	ctx := h.t.Context()
	sb := h.create(savable("saving"))
	h.begin(sb.ID)
	for round := range 5 {
		h.Close()
		other, out := h.k.dying(h.t, h.cfg, nil, "save "+sb.ID)
		if line, err := out.ReadString('\n'); line != "created\n" {
			h.t.Fatalf("the other hub printed %q, %v", line, err)
		}
		// Each round kills it at a later point: gVisor writes pages_meta.img first and checkpoint.img last.
		if point := []string{"", "spec.json", "image/pages_meta.img", "image/pages.img", "image/checkpoint.img"}[round]; point != "" {
			testenv.Poll(h.t, point+" is written", func() bool {
				written, _ := filepath.Glob(filepath.Join(boxes(h.cfg.Dir), "*", "saved", point))
				return len(written) > 0
			})
		}
		kill9(h.t, other, out)
		h.Provider = h.k.open(h.t, h.cfg)
		h.t.Logf("round %d: %s", round, h.state(sb.ID))
		// It continues to run, or ends after it was saved and becomes Paused.
		if !testenv.Eventually(func() bool {
			_, err := h.try(sb.ID, "POST", "/run", "true")
			return err == nil || h.state(sb.ID) == sandbox.Paused
		}) {
			h.t.Fatalf("round %d: the sandbox is %s and does not answer, want it running or paused", round, h.state(sb.ID))
		}
		if h.state(sb.ID) == sandbox.Paused {
			if err := h.Resume(ctx, sb.ID); err != nil {
				h.t.Fatal(err)
			}
		}
		h.remains(sb.ID, "after the hub was killed")
	}
	h.Close()
	reapInits()
}

// reapInits reaps inits that another hub has ended although they are children of this process.
func reapInits() {
	list, _ := filepath.Glob("/proc/self/task/*/children")
	for _, name := range list {
		children, _ := os.ReadFile(name)
		for _, child := range strings.Fields(string(children)) {
			stat, _ := os.ReadFile("/proc/" + child + "/stat")
			if pid, err := strconv.Atoi(child); err == nil && strings.Contains(string(stat), "(init) Z") {
				unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}

// testSavedPrograms: a new version of the hub's programs does not change the programs of saved processes. Changed packages of
// the host are detected.
func testSavedPrograms(h *hub) {
	ctx := h.t.Context()
	sb := h.create(savable("a"))
	h.begin(sb.ID)
	if err := errors.Join(h.PauseToDisk(ctx, sb.ID), h.Close()); err != nil {
		h.t.Fatal(err)
	}
	newer := filepath.Join(h.t.TempDir(), "payload")
	if err := os.WriteFile(newer, []byte("#!/bin/false\n"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	cfg := h.cfg
	cfg.Binds = []local.Bind{{Source: newer, Target: "/run/payload"}}
	h.Provider = h.k.open(h.t, cfg)
	if err := h.Resume(ctx, sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.remains(sb.ID, "resumed under another version")
	h.Close()
	h.Provider = h.k.open(h.t, h.cfg)
	if err := h.PauseToDisk(ctx, sb.ID); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.saved()[0], "host"), []byte("other packages"), 0o600); err != nil {
		h.t.Fatal(err)
	}
	err := h.Resume(ctx, sb.ID)
	if !errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), "stop and start it") || h.state(sb.ID) != sandbox.Paused {
		h.t.Errorf("resume after packages have changed: got %v and %s, want an error with advice, and a "+
			"paused sandbox", err, h.state(sb.ID))
	}
	if err := errors.Join(h.Stop(ctx, sb.ID), h.Start(ctx, sb.ID)); err != nil {
		h.t.Error(err)
	}
}

// testNotSaved: sandboxes that cannot be saved continue to run.
func testNotSaved(h *hub) {
	ctx := h.t.Context()
	for _, c := range []struct {
		spec sandbox.Spec
		want error
		text string
	}{
		{sandbox.Spec{}, sandbox.ErrUnsupported, "isolation gvisor"},
		{sandbox.Spec{Isolation: "gvisor"}, sandbox.ErrState, "bound host socket"}, // creates its own socket
	} {
		sb := h.create(c.spec)
		h.begin(sb.ID)
		if err := h.PauseToDisk(ctx, sb.ID); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			h.t.Errorf("%+v: got %v, want %v and %q", c.spec, err, c.want, c.text)
		}
		if got := h.state(sb.ID); got != sandbox.Running {
			h.t.Errorf("%+v: state: got %s, want %s", c.spec, got, sandbox.Running)
		}
		h.remains(sb.ID, "not saved")
	}
	if err := h.PauseToDisk(ctx, "none"); !errors.Is(err, sandbox.ErrNotFound) {
		h.t.Errorf("no such sandbox: got %v, want %v", err, sandbox.ErrNotFound)
	}
	if left := h.saved(); len(left) > 0 {
		h.t.Errorf("left on disk: %q, want nothing", left)
	}
}
