package inotify

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestWatcher(t *testing.T) {
	t.Parallel()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	wd, err := w.Add(dir, unix.IN_CREATE|unix.IN_MOVE)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Read(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no events: got %v, want os.ErrDeadlineExceeded", err)
	}
	odd := filepath.Join(dir, "a\xff b\n")
	if err := os.WriteFile(odd, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(odd, filepath.Join(dir, "new")); err != nil {
		t.Fatal(err)
	}
	var got []Event
	for len(got) < 3 {
		events, err := w.Read(time.Now().Add(-time.Hour)) // they are there already
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, events...)
	}
	if got[0].Mask != unix.IN_CREATE || got[0].Name != "a\xff b\n" || got[0].WD != wd ||
		got[1].Mask != unix.IN_MOVED_FROM || got[2].Mask != unix.IN_MOVED_TO || got[2].Name != "new" || got[1].Cookie != got[2].Cookie {
		t.Errorf("%+v", got)
	}
	if _, err := w.Add(dir+"/none", unix.IN_CREATE); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: got %v, want os.ErrNotExist", err)
	}
	w.Remove(wd)
	w.Remove(wd)
	read := make(chan error)
	go func() {
		for {
			if _, err := w.Read(time.Time{}); err != nil {
				read <- err
				return
			}
		}
	}()
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: got %v, want os.ErrClosed", err)
	}
	if _, err := w.Add(dir, unix.IN_CREATE); !errors.Is(err, os.ErrClosed) {
		t.Errorf("add after close: got %v, want os.ErrClosed", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(make([]byte, 17))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range parse(b) {
			if len(e.Name) > len(b) {
				t.Errorf("got %+v from %d bytes, want at most %d bytes of name", e, len(b), len(b))
			}
		}
	})
}
