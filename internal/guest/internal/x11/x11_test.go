package x11

import (
	"bytes"
	"context"
	"errors"
	"image"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestDialRefusals(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	silent := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", silent)
	must(t, err)
	defer l.Close()
	for name, cfg := range map[string]Config{
		"wrong cookie": {Socket: s.socket, Cookie: make([]byte, CookieSize)},
		"no cookie":    {Socket: s.socket},
		"short cookie": {Socket: s.socket, Cookie: []byte("short")},
		"no server":    {Socket: filepath.Join(t.TempDir(), "none"), Cookie: s.cookie},
		"silent":       {Socket: silent, Cookie: s.cookie},
	} {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		if name == "silent" {
			ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
		}
		c, err := Dial(ctx, cfg)
		if err == nil {
			c.Close()
			t.Errorf("%s: connected", name)
		}
		if timedOut := errors.Is(err, context.DeadlineExceeded); timedOut != (name == "silent") {
			t.Errorf("%s: %v, want a timeout: %v", name, err, name == "silent")
		}
	}
}

// calls returns all operations that send requests to the server.
func calls() map[string]func(context.Context, *Conn) error {
	return map[string]func(context.Context, *Conn) error{
		"screenshot": func(ctx context.Context, c *Conn) error { _, err := c.Screenshot(ctx, Shot{}); return err },
		"size":       func(ctx context.Context, c *Conn) error { _, err := c.Size(ctx); return err },
		"resize":     func(ctx context.Context, c *Conn) error { return c.Resize(ctx, 800, 600) },
		"pointer":    func(ctx context.Context, c *Conn) error { _, err := c.Pointer(ctx); return err },
		"move":       func(ctx context.Context, c *Conn) error { return c.Move(ctx, image.Pt(1, 2)) },
		"move by":    func(ctx context.Context, c *Conn) error { return c.MoveBy(ctx, image.Pt(1, 2)) },
		"press":      func(ctx context.Context, c *Conn) error { return c.Press(ctx, Left) },
		"release":    func(ctx context.Context, c *Conn) error { return c.Release(ctx, Left) },
		"scroll":     func(ctx context.Context, c *Conn) error { return c.Scroll(ctx, 1, 1) },
		"key":        func(ctx context.Context, c *Conn) error { return c.Chord(ctx, "a") },
		"type":       func(ctx context.Context, c *Conn) error { return c.Type(ctx, "世", 0) },
		"settle":     func(ctx context.Context, c *Conn) error { return c.Settle(ctx) },
		"sync":       func(ctx context.Context, c *Conn) error { return c.Sync(ctx) },
		"ping":       func(ctx context.Context, c *Conn) error { return c.Ping(ctx) },
		"copy": func(ctx context.Context, c *Conn) error {
			_, err := c.SetSelection(ctx, Clipboard, Text("x"))
			return err
		},
		"paste": func(ctx context.Context, c *Conn) error { _, err := c.SelectionText(ctx, Clipboard); return err },
		"clear": func(ctx context.Context, c *Conn) error { return c.ClearSelection(ctx, Primary) },
	}
}

func TestCrashedServerEndsEveryCall(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	// A stopped server accepts requests and completes none of them.
	must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var all sync.WaitGroup
	for name, call := range calls() {
		all.Go(func() {
			if err := call(ctx, c); !errors.Is(err, ErrLost) {
				t.Errorf("%s ended with %v, want %v", name, err, ErrLost)
			}
		})
	}
	must(t, s.cmd.Process.Kill())
	<-c.Done()
	all.Wait()
	for name, call := range calls() {
		if err := call(ctx, c); !errors.Is(err, ErrLost) {
			t.Errorf("%s on the dead connection: %v, want %v", name, err, ErrLost)
		}
	}
	if !errors.Is(c.Err(), ErrLost) {
		t.Errorf("Err is %v, want %v", c.Err(), ErrLost)
	}
	must(t, c.Close())
	must(t, c.Close())
	if ctx.Err() != nil {
		t.Error("the calls ended only with their context")
	}
}

func TestHungServerEndsCallsWithTheirContext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	var all sync.WaitGroup
	for name, call := range calls() {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
			defer cancel()
			if err := call(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s ended with %v, want context.DeadlineExceeded", name, err)
			}
		})
	}
	all.Wait()
	must(t, s.cmd.Process.Signal(syscall.SIGCONT))
	for name, call := range calls() {
		if err := call(testContext(t), c); err != nil && !(name == "paste" && errors.Is(err, ErrNoContent)) {
			t.Errorf("%s, when the server runs again: %v", name, err)
		}
	}
	// Close does not wait for a hung server.
	must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	must(t, c.Close())
	if err := c.Sync(testContext(t)); !errors.Is(err, ErrLost) {
		t.Errorf("a call after Close: %v, want %v", err, ErrLost)
	}
}

func TestAuthorityFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "auth")
	cookie := bytes.Repeat([]byte{7}, CookieSize)
	must(t, WriteAuthority(path, 42, cookie))
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, want 0600", info.Mode())
	}
	got, err := os.ReadFile(path)
	must(t, err)
	want := "\xff\xff\x00\x00\x00\x0242\x00\x12MIT-MAGIC-COOKIE-1\x00\x10" + string(cookie)
	if string(got) != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	if WriteAuthority(path, 1, nil) == nil {
		t.Error("an empty cookie was written, want an error")
	}
	if bytes.Equal(NewCookie(), NewCookie()) {
		t.Error("two cookies are equal")
	}
	left, err := os.ReadDir(filepath.Dir(path))
	must(t, err)
	if len(left) != 1 {
		t.Errorf("got files %v, want 1 entry", left)
	}
}
