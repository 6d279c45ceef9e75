package containerinit

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestInherit(t *testing.T) {
	t.Parallel()
	p := Plan{Env: []string{"HOME=/home/gem", "A=own"}, Path: []string{"/run/bin"}, Workdir: "/work"}
	p.inherit([]string{"PATH=/usr/bin:/bin", "A=image", "B=image", "AB=image", "KUBERNETES_SERVICE_HOST=10.0.0.1"})
	for _, want := range []string{"PATH=/run/bin:/usr/bin:/bin", "A=own", "B=image", "AB=image", "HOME=/home/gem", "WORKSPACE=/work"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("got %q, want %s in it", p.Env, want)
		}
	}
	if text := strings.Join(p.Env, "\n"); strings.Contains(text, "KUBERNETES") || strings.Contains(text, "A=image\nB") {
		t.Errorf("got %q, want neither the cluster's address nor overridden variables", p.Env)
	}
	own := Plan{Env: []string{"PATH=/only"}, Path: []string{"/run/bin"}}
	own.inherit([]string{"PATH=/usr/bin"})
	if !slices.Contains(own.Env, "PATH=/only") ||
		slices.ContainsFunc(own.Env, func(s string) bool { return strings.HasPrefix(s, "PATH=/run") }) {
		t.Errorf("got %q, want only its own PATH", own.Env)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for what, files := range map[string]map[string]string{
		"version 2": {"cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "memory.current": "3000\n",
			"memory.stat": "anon 1\ninactive_file 1000\n", "pids.current": "4\n", "memory.events": "oom 2\noom_kill 1\n"},
		"version 1": {"cpuacct/cpuacct.usage": "1500000000\n", "memory/memory.usage_in_bytes": "3000\n",
			"memory/memory.stat": "total_inactive_file 1000\n", "pids/pids.current": "4\n"},
	} {
		dir := t.TempDir()
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := Usage{CPU: 1500 * time.Millisecond, Memory: 2000, Pids: 4, OOMKills: 1}
		if what == "version 1" {
			want.OOMKills = -1
		}
		if got := readUsage(dir); got != want {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	if got, want := string(readUsage(t.TempDir()).encode()), `{"cpu":-1,"memory":-1,"pids":-1,"oom_kills":-1}`; got != want {
		t.Errorf("without control groups: got %s, want %s", got, want)
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), t.TempDir()
	source := filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // an init container may run twice
		if err := copyProgram(filepath.Join(target, "program"), source); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(target, "program"))
	if err != nil || info.Mode().Perm() != 0o755 || info.Size() != 7 {
		t.Errorf("got %v, %v, want a program", info, err)
	}
}

// TestReadyPort: a port is open exactly while the server is ready, and sends no data.
func TestReadyPort(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	tun, probe := Tunnel{Ready: address}, Probe{Port: server.Listener.Addr().(*net.TCPAddr).Port, Path: "/readyz"}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { tun.showReady(ctx, probe, time.Millisecond, 2*time.Millisecond) })
	defer work.Wait()
	defer cancel()
	open := func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		defer c.Close()
		if data, _ := io.ReadAll(c); len(data) > 0 { // it may be cut while the port is closed
			t.Errorf("got %q, want nothing", data)
		}
		return true
	}
	if open() {
		t.Error("the port is open although the server is not ready")
	}
	ready.Store(true)
	testenv.Poll(t, "the port is open", open)
	ready.Store(false)
	testenv.Poll(t, "the port is closed", func() bool { return !open() })
	ready.Store(true)
	testenv.Poll(t, "the port is open again", open)
}
