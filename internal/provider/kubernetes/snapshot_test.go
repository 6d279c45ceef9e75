//go:build linux

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/test/cluster"
)

// store is an S3-compatible store.
type store struct {
	*cluster.Store
	t testing.TB
}

func startStore(t testing.TB) store {
	t.Helper()
	return store{cluster.StartStore(t, "../../../.tools"), t}
}

func (s store) config() kubernetes.Store {
	return kubernetes.Store{Endpoint: s.Endpoint, Bucket: s.Bucket, AccessKey: s.AccessKey, SecretKey: s.SecretKey}
}

// objects lists the objects of the store, including leftovers of uploads, except the one with the ID of the hub.
func (s store) objects() (all []string) {
	s.t.Helper()
	err := filepath.WalkDir(filepath.Join(s.Dir, s.Bucket), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != "hub" {
			name, _ := filepath.Rel(s.Dir, path)
			all = append(all, name)
		}
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			err = nil
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
	return all
}

// behind is a store behind a proxy that can reject requests. A held request waits until release.
type behind struct {
	store
	fault atomic.Pointer[func(*http.Request) int]
}

func newBehind(t *testing.T) *behind {
	b := &behind{store: startStore(t)}
	server := httptest.NewServer(b.Proxy(func(r *http.Request) int {
		if f := b.fault.Load(); f != nil {
			return (*f)(r)
		}
		return 0
	}))
	t.Cleanup(server.Close)
	b.Store = &cluster.Store{Endpoint: server.URL, Bucket: b.Bucket, AccessKey: b.AccessKey, SecretKey: b.SecretKey, Dir: b.Dir}
	return b
}

func (b *behind) fail(f func(*http.Request) int) { b.fault.Store(&f) }
func (b *behind) heal()                          { b.fault.Store(nil) }

// snapshotHub is a hub with a store.
func snapshotHub(t *testing.T, c *apiServer, s store, change func(*kubernetes.Config)) *hub {
	t.Helper()
	return newHub(t, c, func(cfg *kubernetes.Config) {
		cfg.Snapshots = s.config()
		if change != nil {
			change(cfg)
		}
	})
}

func (h *hub) snapshot(id, name string) sandbox.Snapshot {
	h.t.Helper()
	got, err := h.Snapshot(h.t.Context(), id, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return got
}

func (h *hub) wantSnapshots(want ...string) {
	h.t.Helper()
	all, err := h.Snapshots(h.t.Context(), "")
	got := []string{}
	for _, s := range all {
		got = append(got, s.Name)
	}
	if err != nil || !slices.Equal(got, want) {
		h.t.Errorf("got snapshots %q, %v, want %q", got, err, want)
	}
}

// testSnapshots runs the tests about copies of disks that the suite cannot contain.
func testSnapshots(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *apiServer){
		"running": testRunningCopy, "root": testRootCopy, "refusing store": testRefusingStore,
		"killed while copying": testKilledCopy, "killed while restoring": testKilledRollback,
		"too large": testLargeCopy, "another hub": testForeignPrefix, "store away": testStoreUnreachable,
		"deleted while used": testDeletedWhileUsed, "no store": testNoStore, "failed": testFailedCopy,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t, newCluster(t)) })
	}
}

// counting writes the same number into many files, one after the other, endlessly. Between them is a file that is slow to copy.
const counting = `mkdir n; head -c 20000000 /dev/urandom >n/200-large; setsid sh -c 'n=1; while :; do for i in ` +
	`$(seq 100 299); do echo $n >n/$i; done; n=$((n+1)); done' >/dev/null 2>&1 & echo started`

// testRunningCopy: programs are stopped while their disk is copied, and then continue; programs that were stopped before stay
// stopped.
func testRunningCopy(t *testing.T, c *apiServer) {
	h := snapshotHub(t, c, startStore(t), nil)
	sb := h.create(sandbox.Spec{Name: "busy"})
	h.wantOutput(sb.ID, "cd /home/gem; "+counting, "started\n")
	h.wantOutput(sb.ID, `exec >/dev/null 2>&1; setsid sleep 1000 & echo $! >/home/gem/pid; kill -STOP $!; echo odd `+
		`>"/home/gem/$(printf 'a\nb')"; mkdir /home/gem/closed; echo in >/home/gem/closed/in; chmod 0 `+
		`/home/gem/closed; echo scratch >/tmp/scratch`, "")
	testenv.Poll(t, "all files are there", func() bool { out, _ := h.sh(sb.ID, "ls /home/gem/n | wc -l"); return out == "201\n" })
	h.snapshot(sb.ID, "first")
	h.wantState(sb.ID, sandbox.Running)
	h.wantOutput(sb.ID, `cut -d' ' -f3 /proc/$(cat /home/gem/pid)/stat`, "T\n")
	h.wantOutput(sb.ID, "stat -c %a /home/gem/closed", "0\n")
	last, _ := h.sh(sb.ID, "cat /home/gem/n/100")
	testenv.Poll(t, "the program resumes", func() bool { now, _ := h.sh(sb.ID, "cat /home/gem/n/100"); return now != last && now != "" })

	again := h.create(sandbox.Spec{Name: "again", Snapshot: "first"})
	out, err := h.sh(again.ID, "cat /home/gem/n/???")
	numbers := strings.Fields(out)
	if err != nil || len(numbers) != 200 && len(numbers) != 199 { // a file may have been empty for a moment
		t.Fatalf("got %d files, %v, want 200", len(numbers), err)
	}
	if odd := slices.Compact(numbers); len(odd) > 2 {
		t.Errorf("got the numbers %q, want at most two, because programs are stopped during the copy", odd)
	}
	h.wantOutput(again.ID, `cat /tmp/scratch; ls -q /home/gem/a*; stat -c %a /home/gem/closed; chmod 700 `+
		`/home/gem/closed; cat /home/gem/closed/in; stat -c %u /home/gem/closed/in`, "scratch\n/home/gem/a?b\n0\nin\n1000\n")
}

// testRootCopy: if the first process is root, a copy preserves owners.
func testRootCopy(t *testing.T, c *apiServer) {
	h := snapshotHub(t, c, startStore(t), func(cfg *kubernetes.Config) { cfg.Root = true })
	sb := h.create(sandbox.Spec{Name: "root"})
	h.wantOutput(sb.ID, "id -u; echo mine >/home/gem/file; chmod 600 /home/gem/file; touch /tmp/x", "1000\n")
	h.snapshot(sb.ID, "first")
	again := h.create(sandbox.Spec{Name: "again", Snapshot: "first"})
	h.wantOutput(again.ID, "cat /home/gem/file; stat -c '%u %a' /home/gem/file /tmp/x", "mine\n1000 600\n1000 644\n")
	plain := h.create(sandbox.Spec{Name: "plain", Snapshot: "first", NoRoot: true})
	h.wantOutput(plain.ID, "cat /home/gem/file", "mine\n")
}

// fillHome writes more data into a home than fits into one part of an upload.
func (h *hub) fillHome(id string) {
	h.t.Helper()
	h.wantOutput(id, "cd /home/gem; "+counting, "started\n")
}

// wantAlive fails unless the programs of a sandbox run.
func (h *hub) wantAlive(id string) {
	h.t.Helper()
	last, _ := h.sh(id, "cat /home/gem/n/100")
	testenv.Poll(h.t, "the program resumes", func() bool { now, _ := h.sh(id, "cat /home/gem/n/100"); return now != last && now != "" })
}

// statusWhen answers requests of the store with a status if a condition is true.
func statusWhen(code int, when func(*http.Request) bool) func(*http.Request) int {
	return func(r *http.Request) int {
		if when(r) {
			return code
		}
		return 0
	}
}

// isSecondPart reports whether a request uploads the second part of an archive.
func isSecondPart(r *http.Request) bool { return r.URL.Query().Get("partNumber") == "2" }

// isNote reports whether a request writes the note of a snapshot.
func isNote(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/snapshots/")
}

// testRefusingStore: after every error of the store, the returned error is correct, nothing is left behind, and the sandbox
// continues.
func testRefusingStore(t *testing.T, c *apiServer) {
	b := newBehind(t)
	h := snapshotHub(t, c, b.store, nil)
	sb := h.create(sandbox.Spec{Name: "a", Owner: "ann"})
	h.fillHome(sb.ID)
	h.wantSnapshots()
	for what, f := range map[string]struct {
		fault func(*http.Request) int
		want  error
		text  string
	}{
		"full": {statusWhen(http.StatusInsufficientStorage, isSecondPart), sandbox.ErrExhausted, "full"},
		"denied": {statusWhen(http.StatusForbidden,
			func(r *http.Request) bool { return r.Method == http.MethodPost }), sandbox.ErrUnavailable, "403"},
		"denied at its end": {statusWhen(http.StatusForbidden, func(r *http.Request) bool {
			return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
		}), sandbox.ErrUnavailable, "403"},
		"denied the note":     {statusWhen(http.StatusForbidden, isNote), sandbox.ErrUnavailable, "403"},
		"broken for too long": {statusWhen(http.StatusBadGateway, isSecondPart), sandbox.ErrUnavailable, "502"},
		"cut": {func(r *http.Request) int {
			if isSecondPart(r) {
				panic(http.ErrAbortHandler)
			}
			return 0
		}, sandbox.ErrUnavailable, "does not answer"},
	} {
		b.fail(f.fault)
		_, err := h.Snapshot(t.Context(), sb.ID, "first")
		if !errors.Is(err, f.want) || !strings.Contains(err.Error(), f.text) || strings.Contains(err.Error(), b.SecretKey) {
			t.Errorf("%s: got %v, want %v", what, err, f.want)
		}
		if _, err := h.Fork(t.Context(), sb.ID, []sandbox.Spec{{Name: "fork"}}); err == nil && what != "denied the note" {
			t.Errorf("%s: fork succeeded without a copy", what)
		} else if err == nil {
			forks, _ := h.List(t.Context(), sandbox.Filter{Name: "fork"})
			if err := h.Delete(t.Context(), forks[0].ID); err != nil {
				t.Error(err)
			}
		}
		b.heal()
		if left := b.objects(); len(left) != 0 {
			t.Errorf("%s: %q are left in the store", what, left)
		}
		h.wantAlive(sb.ID)
		h.wantSnapshots()
	}
	testCanceledSnapshot(t, b, h, sb.ID)
	testUnreadableSnapshot(t, b, h, sb.ID)
}

// testCanceledSnapshot cancels the snapshot of a sandbox during the upload.
func testCanceledSnapshot(t *testing.T, b *behind, h *hub, id string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b.fail(func(r *http.Request) int {
		if isSecondPart(r) {
			cancel()
		}
		return 0
	})
	if _, err := h.Snapshot(ctx, id, "first"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	b.heal()
	if left := b.objects(); len(left) != 0 {
		t.Errorf("canceled: %q are left in the store", left)
	}
	h.wantAlive(id)
}

// testUnreadableSnapshot creates a sandbox from a snapshot while the store rejects the download.
func testUnreadableSnapshot(t *testing.T, b *behind, h *hub, id string) {
	t.Helper()
	h.snapshot(id, "first")
	b.fail(statusWhen(http.StatusForbidden, func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/archives/")
	}))
	if _, err := h.Create(t.Context(), sandbox.Spec{Name: "copy", Owner: "ann", Snapshot: "first"}); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("got %v, want an unavailable store", err)
	}
	b.heal()
	if all, _ := h.List(t.Context(), sandbox.Filter{}); len(all) != 1 {
		t.Errorf("got %d sandboxes, want one", len(all))
	}
	if err := h.DeleteSnapshot(t.Context(), "ann", "first"); err != nil {
		t.Error(err)
	}
	if left := b.objects(); len(left) != 0 {
		t.Errorf("%q are left in the store", left)
	}
}

// testKilledCopy: after kill -9 of a hub during a copy, the sandbox continues, and nothing is left in the store.
func testKilledCopy(t *testing.T, c *apiServer) {
	b := newBehind(t)
	h := snapshotHub(t, c, b.store, nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.fillHome(sb.ID)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	held, release := make(chan struct{}, 10), make(chan struct{})
	b.fail(func(r *http.Request) int {
		if r.URL.Query().Get("partNumber") == "2" {
			held <- struct{}{}
			<-release
			return http.StatusForbidden
		}
		return 0
	})
	_, kill := startDying(t, plan{Config: h.cfg, Snapshot: sb.ID})
	defer kill()
	<-held
	kill()
	close(release)
	b.heal()
	if len(b.objects()) == 0 {
		t.Error("no part was uploaded, so the test has no effect")
	}
	h.open()
	h.wantSnapshots()
	h.wantAlive(sb.ID)
	if left := b.objects(); len(left) != 0 {
		t.Errorf("%q are left in the store", left)
	}
	h.snapshot(sb.ID, "next")
}

// testKilledRollback: a hub that is killed while it restores a disk leaves a stopped sandbox, which starts from the disk of the
// snapshot, even if the snapshot was deleted.
func testKilledRollback(t *testing.T, c *apiServer) {
	for _, keep := range []bool{true, false} {
		b := newBehind(t)
		h := snapshotHub(t, c, b.store, func(cfg *kubernetes.Config) { cfg.Persistent = keep })
		sb := h.create(sandbox.Spec{Name: "a"})
		h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
		h.snapshot(sb.ID, "first")
		h.wantOutput(sb.ID, "echo two >/home/gem/file; echo more >/home/gem/more", "")
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		held, release := make(chan struct{}, 10), make(chan struct{})
		b.fail(func(r *http.Request) int {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/archives/") {
				held <- struct{}{}
				<-release
				return http.StatusForbidden
			}
			return 0
		})
		_, kill := startDying(t, plan{Config: h.cfg, Rollback: sb.ID, Snapshot: "first"})
		<-held
		kill()
		close(release)
		h.open()
		h.wantState(sb.ID, sandbox.Stopped)
		if _, err := h.Snapshot(t.Context(), sb.ID, "second"); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("got %v, want an error about the unfinished rollback", err)
		}
		if err := h.Start(t.Context(), sb.ID); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("got %v, want an unavailable store", err)
		}
		h.wantState(sb.ID, sandbox.Stopped)
		b.heal()
		h.finishRollback(sb.ID)
		if left := b.objects(); len(left) != 0 {
			t.Errorf("%q are left in the store", left)
		}
	}
}

// finishRollback deletes the snapshot of an unfinished rollback, and completes it with another hub.
func (h *hub) finishRollback(id string) {
	h.t.Helper()
	if err := h.DeleteSnapshot(h.t.Context(), "", "first"); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.open()
	h.wantSnapshots()
	if err := h.Start(h.t.Context(), id); err != nil {
		h.t.Fatal(err)
	}
	h.wantOutput(id, "cat /home/gem/*", "one\n")
}

// testLargeCopy: a copy cannot exceed the disk limit of the sandbox.
func testLargeCopy(t *testing.T, c *apiServer) {
	s := startStore(t)
	h := snapshotHub(t, c, s, nil)
	sb := h.create(sandbox.Spec{Name: "a", Resources: sandbox.Resources{Disk: 1 << 20}})
	h.wantOutput(sb.ID, "head -c 80000000 /dev/urandom >/home/gem/large", "") // which a real node does not allow
	if _, err := h.Snapshot(t.Context(), sb.ID, "first"); !errors.Is(err, sandbox.ErrExhausted) ||
		!strings.Contains(err.Error(), "exceeds the disk limit") {
		t.Errorf("got %v, want one about its size", err)
	}
	if left := s.objects(); len(left) != 0 {
		t.Errorf("%q are left in the store", left)
	}
	// Holes do not count.
	h.wantOutput(sb.ID, "rm /home/gem/large; truncate -s 500G /home/gem/hole; echo end >>/home/gem/hole; echo ok", "ok\n")
	if got := h.snapshot(sb.ID, "first"); got.Size > 1<<20 {
		t.Errorf("got %d bytes, want few", got.Size)
	}
	again := h.create(sandbox.Spec{Name: "again", Snapshot: "first"})
	h.wantOutput(again.ID, "tail -c 4 /home/gem/hole; stat -c %s /home/gem/hole", fmt.Sprintf("end\n%d\n", 500<<30+4))
}

// testForeignPrefix: hubs do not change snapshots of other hubs.
func testForeignPrefix(t *testing.T, c *apiServer) {
	s := startStore(t)
	mine := func(cfg *kubernetes.Config) { cfg.Snapshots.Prefix = "/shared/" }
	a := snapshotHub(t, c, s, mine)
	sb := a.create(sandbox.Spec{Name: "a"})
	a.snapshot(sb.ID, "first")
	before := s.objects()
	b := snapshotHub(t, c, s, mine)
	if _, err := b.Snapshots(t.Context(), ""); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "another hub") {
		t.Errorf("got %v, want an error about the other hub", err)
	}
	other := b.create(sandbox.Spec{Name: "b"})
	if _, err := b.Snapshot(t.Context(), other.ID, "first"); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("got %v, want an error about the other hub", err)
	}
	own := snapshotHub(t, c, s, nil)
	own.wantSnapshots()
	if after := s.objects(); !slices.Equal(before, after) {
		t.Errorf("got %q, want %q", after, before)
	}
	a.wantSnapshots("first")
}

// testStoreUnreachable: a hub starts while its store is unreachable, and uses it later.
func testStoreUnreachable(t *testing.T, c *apiServer) {
	b := newBehind(t)
	b.fail(func(*http.Request) int { return http.StatusForbidden })
	h := snapshotHub(t, c, b.store, nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.wantOutput(sb.ID, "echo hello", "hello\n")
	if _, err := h.Snapshots(t.Context(), ""); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("got %v, want an unavailable store", err)
	}
	b.heal()
	h.wantSnapshots()
	h.snapshot(sb.ID, "first")
	h.wantSnapshots("first")
}

// testDeletedWhileUsed: a create from a snapshot succeeds if the snapshot is deleted concurrently.
func testDeletedWhileUsed(t *testing.T, c *apiServer) {
	b := newBehind(t)
	h := snapshotHub(t, c, b.store, nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
	h.snapshot(sb.ID, "first")
	held, release := make(chan struct{}, 1), make(chan struct{})
	b.fail(func(r *http.Request) int {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/archives/") {
			held <- struct{}{}
			<-release
		}
		return 0
	})
	made := make(chan error, 1)
	go func() {
		_, err := h.Create(t.Context(), sandbox.Spec{Name: "copy", Snapshot: "first"})
		made <- err
	}()
	<-held
	if err := h.DeleteSnapshot(t.Context(), "", "first"); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	all, err := h.List(t.Context(), sandbox.Filter{Name: "copy"})
	if err != nil || len(all) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	h.wantOutput(all[0].ID, "cat /home/gem/file", "one\n")
	testenv.Poll(t, "nothing is left in the store", func() bool { return len(b.objects()) == 0 })
}

// testFailedCopy: the persistent home of a sandbox whose program has ended can be copied. Its logs and state do not change.
func testFailedCopy(t *testing.T, c *apiServer) {
	s := startStore(t)
	for _, keep := range []bool{true, false} {
		h := snapshotHub(t, c, s, func(cfg *kubernetes.Config) { cfg.Persistent = keep })
		sb := h.create(sandbox.Spec{Name: "a", Command: []string{"/bin/sh", "-c", "echo said; exec /run/bin/payload"}})
		h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
		c.kubelet.fail(sb.ID)
		h.wantState(sb.ID, sandbox.Failed)
		_, err := h.Snapshot(t.Context(), sb.ID, "first")
		if !keep {
			if !errors.Is(err, sandbox.ErrState) {
				t.Errorf("got %v, want an error about the missing disk", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		h.wantState(sb.ID, sandbox.Failed)
		if after, err := h.Logs(t.Context(), sb.ID, 1000); err != nil || string(after) != "said\n" {
			t.Errorf("got %q, %v, want its output", after, err)
		}
		again := h.create(sandbox.Spec{Name: "again", Snapshot: "first"})
		h.wantOutput(again.ID, "cat /home/gem/file", "one\n")
		if err := h.Start(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		h.wantOutput(sb.ID, "cat /home/gem/file", "one\n")
	}
}

// testNoStore: without a store, the hub reports the missing setting.
func testNoStore(t *testing.T, c *apiServer) {
	h := newHub(t, c, nil)
	if a := h.Abilities(); a.Snapshot || a.Fork ||
		!slices.ContainsFunc(a.Missing, func(s string) bool { return strings.Contains(s, "kubernetes_snapshot_endpoint") }) {
		t.Errorf("got %+v, want the missing setting", a)
	}
	_, fork := h.Fork(t.Context(), "x", []sandbox.Spec{{}})
	_, snapshot := h.Snapshot(t.Context(), "x", "first")
	_, list := h.Snapshots(t.Context(), "")
	_, create := h.Create(t.Context(), sandbox.Spec{Name: "a", Snapshot: "first"})
	for _, err := range []error{fork, snapshot, list, create, h.Rollback(t.Context(), "x", "first"),
		h.DeleteSnapshot(t.Context(), "", "first")} {
		if !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("got %v, want ErrUnsupported", err)
		}
	}
	for _, bad := range []kubernetes.Store{{Endpoint: "s3.example.com", Bucket: "b", AccessKey: "a", SecretKey: "s"},
		{Endpoint: "https://x"}, {Bucket: "b"}} {
		cfg := h.cfg
		cfg.Dir, cfg.Snapshots = t.TempDir(), bad
		if p, err := kubernetes.Open(t.Context(), cfg); err == nil {
			t.Errorf("%v: got no error", errors.Join(p.Close()))
		}
	}
}
