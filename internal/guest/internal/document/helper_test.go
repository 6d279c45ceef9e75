package document

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// script returns a helper that runs a shell script.
func script(t *testing.T, text string) Helper {
	t.Helper()
	runner := proc.New(proc.Config{})
	t.Cleanup(func() { must(t, runner.Close()) })
	path := filepath.Join(t.TempDir(), "helper")
	testenv.WriteProgram(t, path, []byte("#!/bin/sh\n"+text))
	return Helper{Runner: runner, Program: func() string { return path }}
}

func TestHelper(t *testing.T) {
	t.Parallel()
	in := strings.NewReader("from stdin")
	out, err := script(t, `printf '%s ' "$1" "$TMPDIR"; cat`).Run(t.Context(), "read x",
		Job{Args: []string{"-flag"}, Stdin: in, MaxOutput: 20, TempDir: "/temp"})
	if want := "-flag /temp from std"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	for text, want := range map[string]struct {
		code op.Code
		msg  string
	}{
		"echo the reason >&2; echo more >&2; exit 1": {op.Invalid, "cannot read x: the reason"},
		"echo goroutine 1 >&2; exit 2":               {op.Invalid, "too much memory"},
		"kill -9 $$":                                 {op.Invalid, "too much memory"},
	} {
		_, err := script(t, text).Run(t.Context(), "read x", Job{MaxOutput: 100})
		if e, ok := op.AsError(err); !ok || e.Code != want.code || !strings.Contains(e.Msg, want.msg) || strings.Contains(e.Msg, "more\n") {
			t.Errorf("%s: got %v, want %s with %q", text, err, want.code, want.msg)
		}
	}
	installed, path := script(t, "echo text"), ""
	later := Helper{Runner: installed.Runner, Program: func() string { return path }}
	_, err = later.Run(t.Context(), "read x", Job{MaxOutput: 100})
	if e, ok := op.AsError(err); !ok || e.Code != op.Unavailable {
		t.Errorf("before it is installed: got %v, want %s", err, op.Unavailable)
	}
	path = installed.Program()
	if out, err := later.Run(t.Context(), "read x", Job{MaxOutput: 100}); err != nil || string(out) != "text\n" {
		t.Errorf("after it was installed: got %q, %v, want its output", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := script(t, "exec sleep 1000").Run(ctx, "read x", Job{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	_, err = Reader{}.View(t.Context(), book(t, []string{""}, nil), Query{})
	if e, ok := op.AsError(err); !ok || e.Code != op.Unavailable || !strings.Contains(e.Msg, "aio-markdown") {
		t.Errorf("without the helper: got %v, want %s with the name of the program", err, op.Unavailable)
	}
}
