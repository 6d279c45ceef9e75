package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// exceeded waits for an event about a limit.
func (h *hub) exceeded(events <-chan sandbox.Event, want string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 3*time.Minute)
	defer cancel()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				h.t.Fatalf("the watch ended, want an event with %q", want)
			}
			if strings.Contains(e.Message, want) {
				return
			}
		case <-ctx.Done():
			h.t.Fatalf("got no event with %q", want)
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
		h.t.Errorf("got %.100q, want the shell to survive", out)
	}
	h.exceeded(events, "out of memory")
	if st, err := h.Stats(h.t.Context(), sb.ID); err != nil || st.OOMKills < 1 {
		h.t.Errorf("stats: got %+v, %v, want an OOM kill", st, err)
	}
	if !testenv.Eventually(func() bool {
		now, err := h.Get(h.t.Context(), sb.ID)
		return err == nil && now.State == sandbox.Running && strings.Contains(now.Message, "out of memory")
	}) {
		h.t.Error("the sandbox does not say that it ran out of memory")
	}
	for _, id := range []string{sb.ID, other.ID} {
		if _, err := h.try(id, http.MethodGet, "/readyz", ""); err != nil {
			h.t.Errorf("after the kill: %v", err)
		}
	}
	// If the kill ends the program, the error contains the reason.
	_, err := h.Create(h.t.Context(), sandbox.Spec{Command: []string{"sh", "-c", "head -c 200M /dev/zero | tail; exit 1"},
		Resources: sandbox.Resources{MemoryLimit: 64 << 20}})
	if !errors.Is(err, sandbox.ErrNotReady) || !strings.Contains(err.Error(), "out of memory") {
		h.t.Errorf("got %v, want %v", err, sandbox.ErrNotReady)
	}
}

// withoutQuota continues on a filesystem without quotas.
func (h *hub) withoutQuota() {
	h.t.Helper()
	h.Close()
	h.cfg.Dir, h.cfg.NoImage = h.t.TempDir(), true
	h.Provider = h.k.open(h.t, h.cfg)
}

// needQuota skips the test on a filesystem without quotas.
func (h *hub) needQuota() {
	h.t.Helper()
	for _, m := range h.Abilities().Missing {
		if strings.Contains(m, "instead of limited by the filesystem") {
			testenv.Lack(h.t, m)
		}
	}
}

// held runs a command that fills the disk, and fails if the command succeeds or the server of the sandbox is killed.
func (h *hub) held(id, what, command string) {
	h.t.Helper()
	out := h.sh(id, command)
	if !strings.Contains(out, "Disk quota exceeded") && !strings.Contains(out, "exit status") {
		h.t.Errorf("%s: got %q, want the limit to hold", what, out)
	}
	h.t.Logf("%s: %.200q", what, out)
}

// testQuota: no kind of data can exceed the limit, other sandboxes have space, and deletions free space.
func testQuota(h *hub) {
	h.needQuota()
	const limit = 64 << 20
	events := h.watch()
	sb := h.create(sandbox.Spec{Owner: "ann", Resources: sandbox.Resources{Disk: limit}})
	other := h.create(sandbox.Spec{Owner: "bob", Resources: sandbox.Resources{Disk: limit}})
	whole := func() int64 {
		h.t.Helper()
		if out := h.sh(other.ID, "sync"); out != "" {
			h.t.Errorf("sync: %q", out)
		}
		st, err := h.Stats(h.t.Context(), sb.ID)
		if err != nil {
			h.t.Fatal(err)
		}
		return st.Disk
	}
	h.held(sb.ID, "a file that is deleted but open", `python3 -c '
import os
files, total = [], 0
try:
    while total < 400 << 20:
        f = open("deleted", "wb", 0); os.unlink("deleted"); files.append(f)
        for i in range(16):
            f.write(os.urandom(1 << 20)); total += 1 << 20
        os.fsync(f)
except OSError as e:
    print(e.strerror, total >> 20)
    raise SystemExit(1 if total < 80 << 20 else 0)
' 2>&1`)
	h.held(sb.ID, "many files", "for i in $(seq 200); do head -c 1M /dev/urandom > f$i || exit 1; done 2>&1")
	h.held(sb.ID, "a folder outside the home", "head -c 200M /dev/urandom > /tmp/big 2>&1")
	if used := whole(); used > limit+limit/4 {
		h.t.Errorf("disk: got %d bytes, want at most the limit of %d", used, limit)
	}
	h.exceeded(events, "its disk is full")
	if out := h.sh(other.ID, "head -c 20M /dev/urandom > mine && wc -c < mine"); out != "20971520\n" {
		h.t.Errorf("the neighbour: got %q, want 20971520", out)
	}
	if out := h.sh(sb.ID, "rm -f f* /tmp/big && sync && head -c 20M /dev/urandom > mine && wc -c < mine"); out != "20971520\n" {
		h.t.Errorf("after a deletion: got %q, want 20971520", out)
	}
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Resources.Disk = 4 * limit; return nil }); err != nil {
		h.t.Fatal(err)
	}
	if out := h.sh(sb.ID, "head -c 120M /dev/urandom > more && wc -c < more"); out != "125829120\n" {
		h.t.Errorf("with a higher limit: got %q, want 125829120", out)
	}
}

// testVolumeQuota: a volume has a separate limit.
func testVolumeQuota(h *hub) {
	h.needQuota()
	h.Close()
	h.cfg.VolumeSize = 32 << 20
	h.Provider = h.k.open(h.t, h.cfg)
	sb := h.create(sandbox.Spec{Owner: "ann", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}}})
	h.held(sb.ID, "a volume", "head -c 301M /dev/urandom > /data/big 2>&1")
	if out := h.sh(sb.ID, "head -c 20M /dev/urandom > mine && wc -c < mine"); out != "20971520\n" {
		h.t.Errorf("its disk: got %q, want 20971520", out)
	}
	list, err := h.Volumes(h.t.Context(), "ann")
	if err != nil || len(list) != 1 || list[0].Limit != 32<<20 || list[0].Size > 40<<20 {
		h.t.Errorf("volumes: got %+v, %v, want one of at most 32 MiB", list, err)
	}
	if err := errors.Join(h.Delete(h.t.Context(), sb.ID), h.DeleteVolume(h.t.Context(), "ann", "data")); err != nil {
		h.t.Error(err)
	}
}

// testVolumeWithoutQuota: without quotas, the watcher enforces the limit.
func testVolumeWithoutQuota(h *hub) {
	h.cfg.VolumeSize = 8 << 20
	h.withoutQuota()
	events := h.watch()
	sb := h.create(sandbox.Spec{Owner: "ann", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}},
		Resources: sandbox.Resources{Disk: 32 << 20}})
	go h.try(sb.ID, http.MethodPost, "/run", "head -c 20M /dev/zero > /data/big; sleep 1000")
	h.exceeded(events, "its volume \"data\" exceeds its limit")
	if err := errors.Join(h.Delete(h.t.Context(), sb.ID), h.DeleteVolume(h.t.Context(), "ann", "data")); err != nil {
		h.t.Error(err)
	}
}

// testStuck: a sandbox that cannot be removed does not affect others or the start of the hub, and is removed when possible.
func testStuck(h *hub) {
	h.cfg.Log = slog.New(slog.NewTextHandler(h.t.Output(), nil))
	h.withoutQuota() // its mounts remain while the hub is closed
	stuck, other := h.create(sandbox.Spec{}), h.create(sandbox.Spec{})
	at := filepath.Join(boxes(h.cfg.Dir), stuck.ID, "stuck")
	if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("tmpfs", at, "tmpfs", 0, "size=64k")); err != nil {
		h.t.Fatal(err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				h.t.Error(err)
			}
		}
	}
	defer unmount()
	if err := h.Delete(h.t.Context(), stuck.ID); err == nil {
		h.t.Error("an impossible deletion succeeded")
	}
	if out := h.sh(other.ID, "echo hello"); out != "hello\n" {
		h.t.Errorf("the other: got %q, want hello", out)
	}
	if got, err := h.Get(h.t.Context(), stuck.ID); err != nil || got.State != sandbox.Deleting || got.Message == "" {
		h.t.Errorf("it is %+v, %v, want it deleting, with a message", got, err)
	}
	h.Close()
	h.Provider = h.k.open(h.t, h.cfg)
	if out := h.sh(other.ID, "echo hello"); out != "hello\n" {
		h.t.Errorf("the other after a restart of the hub: got %q, want hello", out)
	}
	unmount()
	if !testenv.Eventually(func() bool { _, err := os.Stat(filepath.Dir(at)); return errors.Is(err, fs.ErrNotExist) }) {
		h.t.Error("it was not removed later")
	}
}

func testDisk(h *hub) {
	h.withoutQuota()
	one := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 8 << 20}})
	h.sh(one.ID, "head -c 20M /dev/zero > big")
	// At the limit, a command may be killed once.
	var out string
	if !testenv.Eventually(func() bool { out = h.sh(one.ID, "stat -c %s big"); return strings.Contains(out, "8388608\n") }) {
		h.t.Errorf("size of one file: got %q, want 8388608", out)
	}
	if err := h.Delete(h.t.Context(), one.ID); err != nil {
		h.t.Error(err)
	}
	events := h.watch()
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 8 << 20}})
	// Many files: the writer is killed, the server is not. Above twice the limit it would be.
	go h.try(sb.ID, http.MethodPost, "/run", "for i in $(seq 1 12); do head -c 1M /dev/zero > f$i; done; sleep 1000")
	h.exceeded(events, "more than its limit")
	h.sh(sb.ID, "rm -f f*")
	// Killed processes end asynchronously.
	testenv.Poll(h.t, "the writers have ended", func() bool { return strings.HasPrefix(h.sh(sb.ID, "pgrep -c sleep"), "0\n") })
	if !testenv.Eventually(func() bool { st, err := h.Stats(h.t.Context(), sb.ID); return err == nil && st.Disk < 2<<20 }) {
		h.t.Error("deleted files still count")
	}
	// If the disk still grows, the sandbox is stopped and keeps its disk. A start far above the limit fails until the
	// limit is raised.
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
	stopped := testenv.Eventually(func() bool {
		got, err := h.Get(h.t.Context(), sb.ID)
		return err == nil && got.State == sandbox.Stopped && strings.Contains(got.Message, "limit")
	})
	close(stop)
	if !stopped {
		h.t.Fatal("it was not stopped")
	}
	if err := h.Start(h.t.Context(), sb.ID); !errors.Is(err, sandbox.ErrExhausted) {
		h.t.Errorf("start above the limit: %v, want %v", err, sandbox.ErrExhausted)
	}
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Resources.Disk = 1 << 30; return nil }); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Errorf("start with a higher limit: %v", err)
	}
}

func testManyFiles(h *hub) {
	h.withoutQuota()
	events := h.watch()
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{Disk: 4 << 20}})
	go h.try(sb.ID, http.MethodPost, "/run", "mkdir many; cd many; i=0; while :; do i=$((i+1)); : > $i; done")
	h.exceeded(events, "files, more than its limit")
}

// testDeepFolders: deeply nested folders are reported and do not affect the hub.
func testDeepFolders(h *hub) {
	h.withoutQuota()
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
		h.t.Errorf("processes: got %d, want at most 30", n)
	}
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error {
		s.Resources = sandbox.Resources{Pids: 300, MemoryLimit: 128 << 20, CPULimit: 1000}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	h.sh(sb.ID, spawn)
	if !testenv.Eventually(func() bool { return count() >= 60 }) {
		h.t.Errorf("%d processes after the limit was raised", count())
	}
}
