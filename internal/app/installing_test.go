package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestInstallingIsBounded: the progress is one short line of a regular file that changed recently.
func TestInstallingIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old, pipe := write("old", "packages"), filepath.Join(dir, "pipe")
	past := time.Now().Add(-2 * installingAge)
	if err := errors.Join(os.Chtimes(old, past, past), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		write("line", "packages (45 %)\n"):                  "packages (45 %)",
		write("lines", "a\n\tb\x00\xff\r\n"):                "a b\x00",
		write("long", strings.Repeat("x", 4*maxInstalling)): strings.Repeat("x", maxInstalling),
		old: "", pipe: "", dir: "", filepath.Join(dir, "missing"): "", "": "",
	} {
		if got := installation(path).progress(); got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
}

// TestOnlyUnavailableErrorsAreExplained: an installation does not cause other errors, and later errors do not mention it.
func TestOnlyUnavailableErrorsAreExplained(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "progress")
	if err := os.WriteFile(path, []byte("packages"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing, invalid := op.Errorf(op.Unavailable, "no browser"), op.Errorf(op.Invalid, "no such tab")
	call := func(err error) (error, error) {
		o := installation(path).explain(op.Op{
			Call:   func(context.Context, any) (any, error) { return nil, err },
			Stream: func(context.Context, any, func(op.Event) error) error { return err },
		})
		_, called := o.Call(t.Context(), nil)
		return called, o.Stream(t.Context(), nil, nil)
	}
	const want = "no browser; programs are still being installed (packages): try again later"
	if called, streamed := call(missing); called.Error() != want || streamed.Error() != want {
		t.Errorf("got %v and %v, want %q", called, streamed, want)
	}
	if called, streamed := call(invalid); called != invalid || streamed != invalid {
		t.Errorf("got %v and %v, want them unchanged", called, streamed)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if called, streamed := call(missing); called != missing || streamed != missing {
		t.Errorf("after the installation: got %v and %v, want them unchanged", called, streamed)
	}
}
