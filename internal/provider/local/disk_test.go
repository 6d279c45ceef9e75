package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestDisk(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	k := newKit(t)
	for _, c := range []struct {
		name string
		run  func(*hub)
	}{
		{"fork while a process writes", testForkWriting}, {"twenty forks", testTwentyForks}, {"deep stack", testDeepStack},
		{"diff", testDiffTrees}, {"copied file by file", testPlain}, {"rollback to a bad disk", testBadRollback},
		{"lost layer", testLostLayer}, {"snapshot left frozen", testLeftFrozen},
		{"unreadable snapshot", testUnreadableSnapshot}, {"killed at any moment", testKilledDisks},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := k.config(t)
			h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
			t.Cleanup(h.clean)
			c.run(h)
		})
	}
}

func (h *hub) snap(id, name string) {
	h.t.Helper()
	if _, err := h.Snapshot(h.t.Context(), id, name); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) fork(id string, n int) []sandbox.Sandbox {
	h.t.Helper()
	forks, err := h.Fork(h.t.Context(), id, make([]sandbox.Spec, n))
	if err != nil {
		h.t.Fatal(err)
	}
	return forks
}

// writer appends each number to one file and then to another, in place and endlessly.
const writer = `python3 -uc '
a, b = open("a", "w"), open("b", "w")
n = 0
while True:
    n += 1
    a.write("%d\n" % n); a.flush()
    b.write("%d\n" % n); b.flush()
' >/dev/null 2>&1 &`

// write starts the writer.
func (h *hub) write(id string) {
	h.t.Helper()
	h.sh(id, writer)
	if !testenv.Eventually(func() bool { return h.sh(id, "test -s b && echo yes") == "yes\n" }) {
		h.t.Fatal("no data is written")
	}
}

// testForkWriting: a fork has a consistent state of its origin, and no later changes.
func testForkWriting(h *hub) {
	sb := h.create(sandbox.Spec{})
	h.write(sb.ID)
	lines := func(id, file string) []string { return strings.Split(h.sh(id, "tail -c 200 "+file), "\n") }
	last := func(id, file string) (n int) {
		l := lines(id, file)
		fmt.Sscan(l[max(0, len(l)-2)], &n)
		return n
	}
	for range 3 {
		before := last(sb.ID, "b")
		fork := h.fork(sb.ID, 1)[0]
		a, b := last(fork.ID, "a"), last(fork.ID, "b")
		if a < before || a != b && a != b+1 {
			h.t.Errorf("the fork, taken after %d, contains %d and %d", before, a, b)
		}
		if out := h.sh(fork.ID, "seq "+fmt.Sprint(a)+" | cmp - a && seq "+fmt.Sprint(b)+" | cmp - b && echo same"); out != "same\n" {
			h.t.Errorf("the files of the fork are damaged: %q", out)
		}
		if !testenv.Eventually(func() bool { return last(sb.ID, "b") > b }) {
			h.t.Error("the origin does not continue")
		}
		h.sh(fork.ID, "echo fork > a; rm b; echo new > c")
		if out := h.sh(sb.ID, "grep -c fork a; ls c 2>&1 | wc -l"); out != "0\n1\n" || last(fork.ID, "a") != 0 {
			h.t.Errorf("origin and fork are not independent: %q", out)
		}
		if err := h.Delete(h.t.Context(), fork.ID); err != nil {
			h.t.Fatal(err)
		}
	}
	if out := h.sh(sb.ID, "pkill python3; while pgrep python3 >/dev/null; do :; done; seq $(tail -n 1 b) | cmp - b "+
		"&& echo same"); !strings.HasSuffix(out, "same\n") {
		h.t.Errorf("the file of the origin is damaged: %q", out)
	}
}

// used returns the used space of the filesystem of the disks after a sync.
func (h *hub) used() int64 {
	h.t.Helper()
	dir, err := os.Open(filepath.Join(h.cfg.Dir, "disk"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer dir.Close()
	var fs unix.Statfs_t
	if err := errors.Join(unix.Syncfs(int(dir.Fd())), unix.Fstatfs(int(dir.Fd()), &fs)); err != nil {
		h.t.Fatal(err)
	}
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize
}

// testTwentyForks: twenty forks use the disk space of one. They can be deleted in any order without data loss, and finally
// all space is free.
func testTwentyForks(h *hub) {
	if why := strings.Join(h.Abilities().Missing, "; "); strings.Contains(why, "file by file") {
		testenv.Lack(h.t, why)
	}
	size := int64(testenv.Times(64, 1024)) << 20
	empty := h.used()
	sb := h.create(sandbox.Spec{})
	if out := h.sh(sb.ID, fmt.Sprintf("head -c %d /dev/urandom > big; mkdir many; for i in $(seq 500); do echo $i "+
		"> many/$i; done", size)); out != "" {
		h.t.Fatal(out)
	}
	sum := h.sh(sb.ID, "tail -c 1M big | sha256sum")
	one := h.used()
	if one-empty < size {
		h.t.Fatalf("%d bytes use %d bytes", size, one-empty)
	}
	began := time.Now()
	kept, err := h.Snapshot(h.t.Context(), sb.ID, "kept")
	if err != nil || kept.Size < size || kept.Size > size+size/4 {
		h.t.Fatalf("snapshot of %d bytes: got size %d, %v", size, kept.Size, err)
	}
	h.t.Logf("snapshot: %v", time.Since(began))
	began = time.Now()
	forks := append(h.fork(sb.ID, 19), sb)
	h.t.Logf("19 forks: %v", time.Since(began))
	forks = append(forks, h.fork(forks[0].ID, 1)...)
	began = time.Now()
	if err := h.Rollback(h.t.Context(), forks[1].ID, "kept"); err != nil {
		h.t.Fatal(err)
	}
	h.t.Logf("rollback: %v", time.Since(began))
	if all := h.used(); all-one > size/10 {
		h.t.Errorf("forks use %d bytes more than the %d of one", all-one, one)
	}
	for i, f := range forks {
		h.sh(f.ID, fmt.Sprintf("echo %d > mine", i))
	}
	// In mixed order: the origin, forks, the snapshot, the fork of a fork.
	for i := range forks {
		at := (i*8 + 19) % len(forks)
		if out := h.sh(forks[at].ID, "cat mine; tail -c 1M big | sha256sum; ls many | wc -l"); out != fmt.Sprintf("%d\n%s500\n", at, sum) {
			h.t.Errorf("sandbox %d: got %q, want %q", at, out, fmt.Sprintf("%d\n%s500\n", at, sum))
		}
		if err := h.Delete(h.t.Context(), forks[at].ID); err != nil {
			h.t.Fatal(err)
		}
		if i == 10 {
			if err := h.DeleteSnapshot(h.t.Context(), "", "kept"); err != nil {
				h.t.Fatal(err)
			}
		}
	}
	if !testenv.Eventually(func() bool { return h.used()-empty < size/50 }) {
		h.t.Errorf("after all deletions, %d bytes are still used", h.used()-empty)
	}
}

// testDeepStack: the number of layers is large but limited.
func testDeepStack(h *hub) {
	sb := h.create(sandbox.Spec{})
	var err error
	depth := 0
	for ; depth < 100 && err == nil; depth++ {
		h.sh(sb.ID, fmt.Sprintf("echo %d >> log", depth))
		name := fmt.Sprintf("s%d", depth)
		if _, err = h.Snapshot(h.t.Context(), sb.ID, name); err == nil {
			err = h.Rollback(h.t.Context(), sb.ID, name)
		}
	}
	if !errors.Is(err, sandbox.ErrExhausted) || depth < 20 {
		h.t.Errorf("at depth %d: %v, want %v", depth, err, sandbox.ErrExhausted)
	}
	if out := h.sh(sb.ID, "wc -l < log"); out != fmt.Sprintln(depth) {
		h.t.Errorf("lines: got %q, want %d", out, depth)
	}
}

// testDiffTrees: every kind of change is reported, also in folders of the host, and links are not followed.
func testDiffTrees(h *hub) {
	origin := h.create(sandbox.Spec{})
	h.sh(origin.ID, "mkdir -p d/sub r; touch d/f d/sub/g r/x kept; ln -s /etc/passwd link")
	h.snap(origin.ID, "first")
	sb := h.create(sandbox.Spec{Snapshot: "first", Volumes: []sandbox.Volume{{Name: "v", Target: "/home/gem/v"}}})
	h.sh(sb.ID, `touch v/inside; rm -r d; mkdir d; touch d/new; rm -r r; touch r; rm link; ln -s / link; mkdir -p `+
		`n/deep; ln -s /etc n/etc; mkfifo p; rm -f kept; touch kept; touch /tmp/t`)
	d, err := h.Diff(h.t.Context(), sb.ID, 100)
	if err != nil || d.Truncated {
		h.t.Fatalf("diff: got %+v, %v, want all changes", d, err)
	}
	var got []string
	for _, c := range d.Changes {
		got = append(got, string(c.Kind)+" "+strings.TrimPrefix(c.Path, "/home/gem/"))
	}
	want := []string{"added d/new", "deleted d/f", "deleted d/sub", "modified kept", "modified link", "added n", "added n/deep", "added n/etc",
		"added p", "modified r", "added /tmp/t"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.t.Errorf("\n got %q\nwant %q", got, want)
	}
	if err := h.Delete(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
}

// testPlain: without atomic copies of folders, everything works, but slower.
func testPlain(h *hub) {
	h.Close()
	if err := os.Remove(filepath.Join(h.cfg.Dir, "disk.img")); err != nil {
		h.t.Fatal(err)
	}
	h.cfg.NoImage = true
	h.Provider = h.k.open(h.t, h.cfg)
	if a := h.Abilities(); !strings.Contains(strings.Join(a.Missing, "\n"), "file by file") {
		h.t.Errorf("missing abilities: got %q, want one about copying file by file", a.Missing)
	}
	origin := h.create(sandbox.Spec{})
	h.sh(origin.ID, "mkdir d; echo a > d/a; ln d/a d/b; ln -s d/a l; mkfifo p; chmod 751 d; chmod 400 d/a; "+
		"truncate -s 1G hole; echo end >> hole; rm -rf ~/.bashrc; touch -d @1000000000 d/a")
	h.write(origin.ID)
	fork := h.fork(origin.ID, 1)[0]
	if out := h.sh(fork.ID, "cat d/b l; stat -c '%a %h %U %Y' d/a; stat -c %a d; stat -c %F p; tail -c 4 hole; "+
		"test $(du -k hole | cut -f1) -lt 1000 && echo sparse"); out != "a\na\n400 2 gem 1000000000\n751\nfifo\nend\nsparse\n" {
		h.t.Errorf("the fork: got %q, want all attributes as in the origin", out)
	}
	if out := h.sh(fork.ID, "n=$(tail -n 1 b); seq $n | cmp - b && echo same"); out != "same\n" {
		h.t.Errorf("the file of the fork is damaged: %q", out)
	}
	h.snap(fork.ID, "s")
	h.sh(fork.ID, "rm -r d")
	if err := h.Rollback(h.t.Context(), fork.ID, "s"); err != nil {
		h.t.Fatal(err)
	}
	if out := h.sh(fork.ID, "cat d/a"); out != "a\n" {
		h.t.Errorf("after the rollback: got %q, want %q", out, "a\n")
	}
}

// testBadRollback: after a rollback to a disk on which the server does not start, another rollback works.
func testBadRollback(h *hub) {
	sb := h.create(sandbox.Spec{Command: []string{"sh", "-c", "test -e bad && exit 3; exec /run/payload"}})
	h.snap(sb.ID, "good")
	h.sh(sb.ID, "touch bad")
	h.snap(sb.ID, "bad")
	ctx := h.t.Context()
	if err := h.Rollback(ctx, sb.ID, "bad"); !errors.Is(err, sandbox.ErrNotReady) {
		h.t.Errorf("got %v, want %v", err, sandbox.ErrNotReady)
	}
	if got, err := h.Get(ctx, sb.ID); err != nil || got.State != sandbox.Stopped {
		h.t.Errorf("got %+v, %v, want it stopped", got, err)
	}
	h.Close()
	h.Provider = h.k.open(h.t, h.cfg)
	if err := h.Start(ctx, sb.ID); !errors.Is(err, sandbox.ErrNotReady) {
		h.t.Errorf("start on the bad disk: got %v, want %v", err, sandbox.ErrNotReady)
	}
	if err := h.Rollback(ctx, sb.ID, "good"); err != nil {
		h.t.Fatal(err)
	}
	if out := h.sh(sb.ID, "ls"); out != "workspace\n" {
		h.t.Errorf("files on the good disk: got %q, want %q", out, "workspace\n")
	}
}

// testLostLayer: a missing disk is reported, and does not affect other sandboxes.
func testLostLayer(h *hub) {
	good, bad := h.create(sandbox.Spec{}), h.create(sandbox.Spec{})
	if err := h.Stop(h.t.Context(), bad.ID); err != nil {
		h.t.Fatal(err)
	}
	h.editJSON(bad.ID, func(rec map[string]any) { rec["layers"] = []string{"0123456789abcdef"} })
	if got, err := h.Get(h.t.Context(), bad.ID); err != nil || got.State != sandbox.Failed || !strings.Contains(got.Message, "lost") {
		h.t.Errorf("got %+v, %v, want it failed, with a lost disk", got, err)
	}
	if h.Start(h.t.Context(), bad.ID) == nil {
		h.t.Error("it was started without a disk")
	}
	if _, err := h.try(good.ID, http.MethodGet, "/readyz", ""); err != nil {
		h.t.Error(err)
	}
}

// testLeftFrozen: after a hub is killed during a snapshot, no sandbox remains frozen.
func testLeftFrozen(h *hub) {
	sb := h.create(sandbox.Spec{})
	if err := h.Pause(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.editJSON(sb.ID, func(rec map[string]any) { rec["sandbox"].(map[string]any)["state"] = "running" })
	if got, err := h.Get(h.t.Context(), sb.ID); err != nil || got.State != sandbox.Running {
		h.t.Errorf("got %+v, %v, want it running", got, err)
	}
	if _, err := h.try(sb.ID, http.MethodGet, "/readyz", ""); err != nil {
		h.t.Error(err)
	}
}

// testUnreadableSnapshot: the layers of a snapshot with an unreadable record are kept.
func testUnreadableSnapshot(h *hub) {
	sb := h.create(sandbox.Spec{})
	h.sh(sb.ID, "echo kept > file")
	h.snap(sb.ID, "first")
	if err := h.Delete(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.Close()
	files, _ := filepath.Glob(filepath.Join(h.cfg.Dir, "snapshots", "*", "first.json"))
	if len(files) != 1 {
		h.t.Fatalf("records: %q", files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil || !json.Valid(data) {
		h.t.Fatal(err)
	}
	for _, content := range [][]byte{data[:len(data)/2], data} {
		if err := os.WriteFile(files[0], content, 0o600); err != nil {
			h.t.Fatal(err)
		}
		h.Provider = h.k.open(h.t, h.cfg)
		if _, err := h.Get(h.t.Context(), sb.ID); !errors.Is(err, sandbox.ErrNotFound) {
			h.t.Error(err)
		}
		if len(content) < len(data) {
			h.Close()
		}
	}
	if out := h.sh(h.create(sandbox.Spec{Snapshot: "first"}).ID, "cat file"); out != "kept\n" {
		h.t.Errorf("got %q, want %q", out, "kept\n")
	}
}

// testKilledDisks: after a hub is killed during any operation on disks, the next one has complete snapshots and running
// sandboxes.
func testKilledDisks(h *hub) {
	h.Close()
	ctx := context.Background()
	for round := range 10 {
		other, out := h.k.dying(h.t, h.cfg, nil, "disks")
		if line, err := out.ReadString('\n'); line != "created\n" {
			h.t.Errorf("the other hub printed %q, %v", line, err)
		}
		waitForSteps(h.t, out, 3*round)
		kill9(h.t, other, out)
		h.Provider = h.k.open(h.t, h.cfg)
		snaps, err := h.Snapshots(ctx, "")
		if err != nil {
			h.t.Fatal(err)
		}
		for _, s := range snaps {
			sb := h.create(sandbox.Spec{Snapshot: s.Name})
			if out := h.sh(sb.ID, "cat mark"); out != s.Name+"\n" {
				h.t.Errorf("round %d: snapshot %s contains %q", round, s.Name, out)
			}
			if err := h.DeleteSnapshot(ctx, "", s.Name); err != nil {
				h.t.Error(err)
			}
		}
		all, err := h.List(ctx, sandbox.Filter{})
		if err != nil {
			h.t.Fatal(err)
		}
		states := ""
		for _, sb := range all {
			states += " " + string(sb.State)
			if sb.State != sandbox.Running {
				err = h.Start(ctx, sb.ID)
			}
			if err == nil {
				_, err = h.try(sb.ID, http.MethodGet, "/readyz", "")
			}
			if err == nil {
				err = h.Delete(ctx, sb.ID)
			}
			if err != nil {
				h.t.Errorf("round %d: a sandbox that was %s: %v", round, sb.State, err)
			}
		}
		h.t.Logf("round %d: %d snapshots,%s", round, len(snaps), states)
		if left := h.k.left(h.cfg); len(left) != 0 {
			h.t.Errorf("round %d left %q", round, left)
		}
		h.Close()
	}
}
