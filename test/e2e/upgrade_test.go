package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// No request fails during an upgrade under load: the hub is replaced twice while clients send 200
// requests per second through the proxy and create sandboxes.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := serveHub(t, "--log-level", "info")
	h.must(t, "create", "a")
	h.must(t, "exec", "a", "--", "echo kept > note")
	pid := h.cmd.Process.Pid
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wait sync.WaitGroup
	var sent, made atomic.Int64
	stop := make(chan struct{})
	ask := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 20}, Timeout: patience}
	defer ask.CloseIdleConnections()
	const workers = 10
	for range workers {
		wait.Go(func() {
			tick := time.NewTicker(workers * time.Second / 200)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if err := readNote(ask, h.URL); err != nil {
					t.Errorf("request %d: %v", sent.Load(), err)
					return
				}
				sent.Add(1)
			}
		})
	}
	c := h.client(t)
	wait.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("made-%d", i)
			if _, err := c.Create(ctx, client.CreateOptions{Name: name}); err != nil {
				t.Errorf("create %s: got error %v, want a sandbox", name, err)
				return
			}
			made.Add(1)
			if err := c.Delete(ctx, name); err != nil {
				t.Errorf("delete %s: got error %v, want none", name, err)
				return
			}
		}
	})
	for turn := range 2 {
		// Some requests run before the upgrade, and some after.
		enough := sent.Load() + 100
		testenv.Poll(t, "requests before the upgrade", func() bool { return sent.Load() >= enough || t.Failed() })
		if err := h.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		testenv.Poll(t, "the successor", func() bool { return strings.Count(h.log.String(), "serving on http") == turn+2 || t.Failed() })
		enough, more := sent.Load()+100, made.Load()+2
		testenv.Poll(t, "requests after the upgrade", func() bool { return sent.Load() >= enough && made.Load() >= more || t.Failed() })
	}
	close(stop)
	wait.Wait()
	t.Logf("%d requests, %d sandboxes", sent.Load(), made.Load())
	if out := h.must(t, "list", "-q"); out != "a\n" {
		t.Errorf("got sandboxes %q, want a", out)
	}
	// The process is the same, and its open files are not open in sandboxes.
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("got %v, want the same process", err)
	}
	if out := h.must(t, "exec", "a", "ls /proc/self/fd | wc -w"); out != "4\n" {
		t.Errorf("got %s file descriptors, want 4", out)
	}
}

// A program that does not accept the settings does not replace the hub.
func TestUpgradeToABrokenProgram(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	for _, name := range []string{"cove", "cove-init", "aio", "aio-markdown"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(cove), name))
		if err != nil {
			t.Fatal(err)
		}
		testenv.WriteProgram(t, filepath.Join(dir, name), b)
	}
	h := &hub{State: t.TempDir()}
	h.server = launch(t, filepath.Join(dir, "cove"), h.flags(nil), os.Getenv("HOME"), nil)
	h.env = []string{"COVE_URL=" + h.URL}
	t.Cleanup(func() { h.clear(t); h.stop(t) })
	if err := os.Remove(filepath.Join(dir, "cove")); err != nil {
		t.Fatal(err)
	}
	testenv.WriteProgram(t, filepath.Join(dir, "cove"), []byte("#!/bin/sh\necho no such setting >&2\nexit 2\n"))
	if err := h.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the refusal", func() bool { return strings.Contains(h.log.String(), "no such setting") })
	h.must(t, "create", "a")
}

// readNote reads the note of sandbox "a" with a request that HTTP clients do not retry automatically.
func readNote(client *http.Client, address string) error {
	res, err := client.Post(address+"/sandbox/a/v1/file/read", "application/json", strings.NewReader(`{"file":"note"}`))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !strings.Contains(string(b), "kept") {
		return fmt.Errorf("got status %d, %s and error %w, want the note", res.StatusCode, b, err)
	}
	return nil
}
