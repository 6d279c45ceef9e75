// Package bench compares the programs with a peer or with the raw limit in the same run. It prints
// results and asserts nothing.
package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/app"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func program(b *testing.B, name string) string {
	b.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		testenv.Lack(b, "needs "+path+"; run make build first")
	}
	return path
}

func percentile(list []time.Duration, p float64) time.Duration {
	slices.Sort(list)
	return list[int(float64(len(list)-1)*p)]
}

// report prints one human-readable line.
func report(b *testing.B, format string, args ...any) {
	b.Helper()
	fmt.Printf("  %-34s %s\n", strings.TrimPrefix(b.Name(), "Benchmark"), fmt.Sprintf(format, args...))
}

// BenchmarkStart: time from exec to the first reply, and memory of the idle server.
func BenchmarkStart(b *testing.B) {
	aio := program(b, "aio")
	var took []time.Duration
	var rss int
	for range 20 {
		d, kib := start(b, aio)
		took = append(took, d)
		rss = kib
	}
	info, err := os.Stat(aio)
	if err != nil {
		b.Fatal(err)
	}
	report(b, "exec to first reply: best %v, p50 %v (target 25ms); idle RSS %.1f MB (target 25); binary %.1f MB (target 40)",
		percentile(took, 0).Round(100*time.Microsecond), percentile(took, 0.5).Round(100*time.Microsecond),
		float64(rss)/1024, float64(info.Size())/1e6)
}

// serve starts the program with these settings for the duration of a benchmark.
func serve(b *testing.B, env ...string) string {
	b.Helper()
	cmd, addr := launch(b, program(b, "aio"), env...)
	b.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	awaitHealth(b, addr)
	return "http://" + addr
}

func awaitHealth(b *testing.B, addr string) {
	b.Helper()
	testenv.Poll(b, "the server answers", func() bool {
		res, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			res.Body.Close()
		}
		return err == nil
	})
}

// idle waits until the effects of earlier work have ended, so that they are not measured. The results
// do not depend on the exact duration.
func idle(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
	}
}

func launch(b *testing.B, aio string, env ...string) (*exec.Cmd, string) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.Command(aio, "serve", "--listen", addr, "--log-level", "error")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir()}, env...)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return cmd, addr
}

func start(b *testing.B, aio string) (time.Duration, int) {
	b.Helper()
	begin := time.Now()
	cmd, addr := launch(b, aio)
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	for time.Since(begin) < 10*time.Second {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			continue
		}
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		reply, _ := io.ReadAll(c)
		c.Close()
		if strings.Contains(string(reply), "OK") {
			break
		}
	}
	took := time.Since(begin)
	idle(b, 300*time.Millisecond) // measure memory after the start has finished
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	var kib int
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	fmt.Sscan(line, &kib)
	return took, kib
}

// BenchmarkSmallOperation: a small JSON operation, compared with the same handler written directly for
// net/http.
func BenchmarkSmallOperation(b *testing.B) {
	sandbox, err := app.NewAio(config.Aio{Listen: "127.0.0.1:8080"}, nil, "0", slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		b.Fatal(err)
	}
	defer sandbox.Close()
	handler, _ := sandbox.Handlers()
	ours := httptest.NewServer(handler)
	defer ours.Close()
	type in struct {
		Name     string  `json:"name"`
		Command  string  `json:"command"`
		Timeout  float64 `json:"timeout"`
		Priority int     `json:"priority"`
	}
	hooks := map[string]in{}
	byHand := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v in
		if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		hooks[v.Name] = v
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"success": true, "message": "ok", "data": v, "hint": nil})
	}))
	defer byHand.Close()
	body := `{"name":"x","command":"true","timeout":5,"priority":1}`
	measure := func(url string) time.Duration {
		var list []time.Duration
		for range 2000 {
			begin := time.Now()
			res, err := http.Post(url, "application/json", strings.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
			list = append(list, time.Since(begin))
		}
		return percentile(list, 0.5)
	}
	measure(byHand.URL)
	hand, op := measure(byHand.URL), measure(ours.URL+"/v1/sandbox/hooks")
	report(b, "p50 %v by the table, %v by hand: %.2f × (target 2)", op.Round(time.Microsecond),
		hand.Round(time.Microsecond), float64(op)/float64(hand))
}
