package templatestore

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestReopen: records survive, each for its owner; a running build has failed.
func TestReopen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	_, err := s.ChangeTemplate("ann", "t", func(t *Template, exists bool) error {
		t.ID, t.Tags["default"] = "id", "b1"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, status := range map[string]Status{"b1": Ready, "b2": Building, "b3": Waiting} {
		s.Append("ann", id, Entry{Level: "info", Text: "line of " + id})
		if err := s.PutBuild(Build{ID: id, Owner: "ann", Template: "t", Tags: []string{"default"}, Status: status, Layer: "l" + id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PutLayer("ann", Layer{ID: "l1", Key: "k", Size: 7}); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(filepath.Dir(s.path("ann", "x")), tempPrefix+"1")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	if got, ok := s.Template("ann", "id"); !ok || got.Name != "t" || got.Tags["default"] != "b1" {
		t.Errorf("got %+v", got)
	}
	if b, _ := s.Build("ann", "b2"); b.Status != Failed || b.Reason.Message != ErrInterrupted {
		t.Errorf("got %+v, want a failed build", b)
	}
	if b, _ := s.Build("ann", "b3"); b.Status != Waiting {
		t.Errorf("got %+v, want a waiting build", b)
	}
	if l, ok := s.FindLayer("ann", "k"); !ok || l.ID != "l1" || l.Size != 7 || !s.Knows("ann", "l1") || !s.Knows("ann", "lb1") {
		t.Errorf("got %+v", l)
	}
	if list, more := s.Entries("ann", "b1", 0, 10); len(list) != 1 || list[0].Text != "line of b1" || more != nil {
		t.Errorf("log: got %+v", list)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("an unfinished upload is left")
	}
	_, template := s.Template("bob", "t")
	_, build := s.Build("bob", "b1")
	_, layer := s.FindLayer("bob", "k")
	if template || build || layer || s.Knows("bob", "l1") {
		t.Error("another owner sees a record")
	}
	// A record that cannot be read is ignored, and the store says so.
	if err := os.WriteFile(s.path("ann", "t-t.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s = open(t, dir); s.Complete() {
		t.Error("the store is complete, want a missing record")
	}
	// A record in the folder of another owner is not used.
	b, err := os.ReadFile(s.path("ann", "l-l1.json"))
	if err == nil {
		err = os.MkdirAll(s.path("bob", ""), 0o700)
	}
	if err == nil {
		err = os.WriteFile(s.path("bob", "l-l1.json"), bytes.Replace(b, []byte(`"owner":"ann"`), []byte(`"owner":"eve"`), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s = open(t, dir); s.Knows("eve", "l1") || s.Knows("bob", "l1") {
		t.Error("a record of another folder is used")
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	if err := s.PutBuild(Build{ID: "b", Owner: "ann", Status: Building}); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		s.Append("ann", "b", Entry{Level: "info", Text: strings.Repeat("x", 100<<10)})
	}
	s.Append("ann", "b", Entry{Level: "error", Text: "the reason"})
	list, more := s.Entries("ann", "b", 0, 1<<30)
	if n := len(list); n > maxLog/maxText+10 || list[n-1].Text != "the reason" || list[n-2].Text != "the output is truncated" || more == nil {
		t.Errorf("got %d lines that end with %.40q", n, list[n-1].Text)
	}
	if err := s.PutBuild(Build{ID: "b", Owner: "ann", Status: Failed}); err != nil {
		t.Fatal(err)
	}
	if again, more := s.Entries("ann", "b", 0, 1<<30); len(again) != len(list) || more != nil {
		t.Errorf("after the end: got %d lines, want %d", len(again), len(list))
	}
}

func archiveOf(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "a", Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFiles: the content decides the digest, not the client; a refused upload leaves nothing.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	hash := strings.Repeat("ab", 32)
	free := func(int64) error { return nil }
	one, err := s.Receive(t.Context(), "ann", hash, bytes.NewReader(archiveOf(t, "one")), free)
	if err != nil || one.Size == 0 {
		t.Fatalf("got %+v, %v", one, err)
	}
	two, err := s.Receive(t.Context(), "ann", hash, bytes.NewReader(archiveOf(t, "two")), free)
	if err != nil || two.Digest == one.Digest {
		t.Errorf("another content has the same digest (%v)", err)
	}
	if _, err := s.OpenFile("ann", hash, one.Digest); err == nil {
		t.Error("a replaced file was opened")
	}
	f, err := s.OpenFile("ann", hash, two.Digest)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, ok := s.File("bob", hash); ok {
		t.Error("another owner sees a file")
	}
	full := errors.New("no quota")
	for name, err := range map[string]error{
		"quota": func() error {
			_, err := s.Receive(t.Context(), "ann", hash, bytes.NewReader(archiveOf(t, "x")), func(int64) error { return full })
			return err
		}(),
		"text": func() error {
			_, err := s.Receive(t.Context(), "ann", hash, strings.NewReader(strings.Repeat("text", 1000)), free)
			return err
		}(),
	} {
		if err == nil || name == "quota" && !errors.Is(err, full) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", tempPrefix+"*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	if got, ok := open(t, dir).File("ann", hash); !ok || got.Digest != two.Digest {
		t.Errorf("after a restart: got %+v", got)
	}
	if gone, err := s.SweepFiles(time.Now().Add(time.Hour)); err != nil || len(gone) != 1 {
		t.Errorf("sweep: got %v, %v, want one", gone, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) != 0 {
		t.Errorf("left after the sweep: %q", left)
	}
}

// TestUnused: layers of tagged and recent builds are kept.
func TestUnused(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for i := range 15 {
		id := fmt.Sprintf("b%02d", i)
		b := Build{ID: id, Owner: "ann", Template: "t", Tags: []string{"v" + id}, Status: Ready, Layer: "l" + id, Created: time.Unix(int64(i), 0)}
		if err := errors.Join(s.PutBuild(b), s.PutLayer("ann", Layer{ID: "l" + id, Key: id})); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.ChangeTemplate("ann", "t", func(t *Template, _ bool) error {
		t.Tags["stable"] = "b01"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	unused := s.Unused(time.Now().Add(time.Hour))["ann"]
	if len(unused) != 4 || strings.Contains(strings.Join(unused, " "), "lb01") {
		t.Errorf("unused: got %q, want b00 and b02 to b04", unused)
	}
	if unused := s.Unused(time.Now().Add(-time.Hour)); len(unused) != 0 {
		t.Errorf("recently used layers are unused: %v", unused)
	}
}
