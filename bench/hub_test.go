package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// serveHub starts the real hub and returns a client of it.
func serveHub(b *testing.B, args ...string) (*client.Client, string) {
	b.Helper()
	testenv.NeedRoot(b)
	return startHub(b, b.TempDir(), args...)
}

func startHub(b *testing.B, state string, args ...string) (*client.Client, string) {
	b.Helper()
	program(b, "aio")
	return startProgram(b, program(b, "cove"), state, args...)
}

// startProgram starts a hub of any build.
func startProgram(b *testing.B, cove, state string, args ...string) (*client.Client, string) {
	b.Helper()
	cmd := exec.Command(cove, append([]string{"hub", "--listen", "127.0.0.1:0", "--log-level", "error", "--state", state}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	var url string
	if _, err := fmt.Fscanf(out, "serving on %s\n", &url); err != nil {
		b.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c, url
}

// round creates a sandbox and waits for the output of a command in it.
func round(b *testing.B, c *client.Client, name string) time.Duration {
	b.Helper()
	return roundFrom(b, c, client.CreateOptions{Name: name})
}

func roundFrom(b *testing.B, c *client.Client, o client.CreateOptions) time.Duration {
	b.Helper()
	name, begin := o.Name, time.Now()
	if _, err := c.Create(context.Background(), o); err != nil {
		b.Error(err)
		return 0
	}
	var out struct{ Stdout string }
	if err := c.Guest(name).Call(context.Background(), "POST", "/v1/bash/exec",
		map[string]any{"command": "echo hello"}, &out); err != nil || out.Stdout != "hello\n" {
		b.Errorf("%+v, %v, want Stdout %q", out, err, "hello\n")
	}
	return time.Since(begin)
}

func remove(b *testing.B, c *client.Client, name string) {
	b.Helper()
	if err := c.Delete(context.Background(), name); err != nil {
		b.Error(err)
	}
}

// BenchmarkHubCreate: time from the request for a sandbox to the first output of a command in it,
// compared with docker run and bare bubblewrap.
func BenchmarkHubCreate(b *testing.B) {
	c, _ := serveHub(b)
	docker := dockerRun(b)
	var ours, bare, theirs []time.Duration
	for i := range 100 {
		name := fmt.Sprintf("n%d", i)
		ours = append(ours, round(b, c, name))
		remove(b, c, name)
		idle(b, 100*time.Millisecond)
		if _, err := exec.LookPath("bwrap"); err == nil {
			bare = append(bare, bubblewrap(b))
		}
		if docker != nil && i%10 == 0 {
			begin := time.Now()
			docker()
			theirs = append(theirs, time.Since(begin))
		}
	}
	p50, p99 := percentile(ours, 0.5), percentile(ours, 0.99)
	line := fmt.Sprintf("to first output p50 %v (target 25ms), p99 %v (target 100ms)",
		p50.Round(100*time.Microsecond), p99.Round(time.Millisecond))
	if len(bare) > 0 {
		line += fmt.Sprintf("; bare bwrap p50 %v", percentile(bare, 0.5).Round(100*time.Microsecond))
	}
	if len(theirs) > 0 {
		d := percentile(theirs, 0.5)
		line += fmt.Sprintf("; docker run p50 %v, %.0f × as long (target 20)", d.Round(time.Millisecond), float64(d)/float64(p50))
	}
	report(b, "%s", line)
}

// bubblewrap runs a command in a minimal sandbox.
func bubblewrap(b *testing.B) time.Duration {
	b.Helper()
	begin := time.Now()
	if out, err := exec.Command("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all",
		"bash", "-c", "echo hello").CombinedOutput(); err != nil {
		b.Errorf("%v %s", err, out)
	}
	return time.Since(begin)
}

// BenchmarkHubClaim: the same from a pool of ready sandboxes.
func BenchmarkHubClaim(b *testing.B) {
	testenv.NeedRoot(b)
	state := b.TempDir()
	b.Cleanup(func() { drain(b, state) })
	c, _ := startHub(b, state, "--pool", "30")
	idle(b, 5*time.Second) // the pool fills
	var took []time.Duration
	for i := range 25 {
		name := fmt.Sprintf("n%d", i)
		took = append(took, round(b, c, name))
		idle(b, 100*time.Millisecond) // the pool refills
	}
	report(b, "claim to first output p50 %v (target 10ms), p90 %v", percentile(took, 0.5).Round(100*time.Microsecond),
		percentile(took, 0.9).Round(100*time.Microsecond))
	clear100(b, c, len(took))
}

// BenchmarkHubBurst: 100 concurrent creates, each with a command, compared with bare bubblewrap and
// docker run.
func BenchmarkHubBurst(b *testing.B) {
	c, _ := serveHub(b)
	var ours []time.Duration
	for range 3 {
		ours = append(ours, percentile(burst(100, func(i int) time.Duration { return round(b, c, fmt.Sprintf("n%d", i)) }), 0.99))
		clear100(b, c, 100)
		idle(b, 5*time.Second) // the kernel cleans up
	}
	// In the order of the measurements: later bursts may show problems that the first does not.
	line := fmt.Sprintf("100 at once: p99 %v, median of %v (target 1s)", percentile(slices.Clone(ours), 0.5).Round(time.Millisecond), ours)
	if _, err := exec.LookPath("bwrap"); err == nil {
		line += fmt.Sprintf("; bare bwrap %v",
			percentile(burst(100, func(int) time.Duration { return bubblewrap(b) }), 0.99).Round(time.Millisecond))
	}
	if docker := dockerRun(b); docker != nil {
		line += fmt.Sprintf("; docker run, 20 at once, %v", percentile(burst(20, func(int) time.Duration {
			begin := time.Now()
			docker()
			return time.Since(begin)
		}), 0.99).Round(time.Millisecond))
	}
	report(b, "%s", line)
}

// burst runs n calls concurrently and returns the duration of each.
func burst(n int, do func(i int) time.Duration) []time.Duration {
	took := make([]time.Duration, n)
	var wait sync.WaitGroup
	for i := range took {
		wait.Go(func() { took[i] = do(i) })
	}
	wait.Wait()
	return took
}

// drain starts a hub without a pool, which deletes the warm sandboxes of another hub.
func drain(b *testing.B, state string) {
	b.Helper()
	startHub(b, state)
	testenv.Poll(b, "the pool's sandboxes are deleted", func() bool {
		left, err := os.ReadDir(filepath.Join(state, "disk", "sandboxes"))
		return err == nil && len(left) == 0
	})
}

func clear100(b *testing.B, c *client.Client, n int) {
	b.Helper()
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { remove(b, c, fmt.Sprintf("n%d", i)) })
	}
	wait.Wait()
}

// BenchmarkHubProxy: a small request through the hub, compared with the same request directly to a
// sandbox's server.
func BenchmarkHubProxy(b *testing.B) {
	c, url := serveHub(b)
	if _, err := c.Create(context.Background(), client.CreateOptions{Name: "a"}); err != nil {
		b.Fatal(err)
	}
	defer remove(b, c, "a")
	direct := serve(b)
	var through, plain []time.Duration
	get := func(address string) time.Duration {
		begin := time.Now()
		res, err := http.Get(address)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return time.Since(begin)
	}
	for range 2000 {
		plain = append(plain, get(direct+"/readyz"))
		through = append(through, get(url+"/sandbox/a/readyz"))
	}
	p, t := percentile(plain, 0.5), percentile(through, 0.5)
	report(b, "p50 %v through the hub, %v direct: %v more (target 300µs)", t.Round(time.Microsecond),
		p.Round(time.Microsecond), (t - p).Round(time.Microsecond))
}

// BenchmarkHubPause: pause and resume.
func BenchmarkHubPause(b *testing.B) {
	c, _ := serveHub(b)
	ctx := context.Background()
	if _, err := c.Create(ctx, client.CreateOptions{Name: "a"}); err != nil {
		b.Fatal(err)
	}
	defer remove(b, c, "a")
	var pause, resume []time.Duration
	for range 50 {
		begin := time.Now()
		if _, err := c.Pause(ctx, "a"); err != nil {
			b.Fatal(err)
		}
		pause = append(pause, time.Since(begin))
		begin = time.Now()
		if _, err := c.Resume(ctx, "a"); err != nil {
			b.Fatal(err)
		}
		resume = append(resume, time.Since(begin))
	}
	report(b, "pause p50 %v, resume p50 %v", percentile(pause, 0.5).Round(10*time.Microsecond),
		percentile(resume, 0.5).Round(10*time.Microsecond))
}

// BenchmarkHubCrowd: cost of each additional sandbox when there are many.
func BenchmarkHubCrowd(b *testing.B) {
	c, _ := serveHub(b)
	var line []string
	have := 0
	for _, want := range []int{0, 100, 300} {
		var wait sync.WaitGroup
		turns := make(chan struct{}, 8)
		for ; have < want; have++ {
			name := fmt.Sprintf("n%d", have)
			wait.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				if _, err := c.Create(context.Background(), client.CreateOptions{Name: name}); err != nil {
					b.Error(err)
				}
			})
		}
		wait.Wait()
		var took []time.Duration
		for range 20 {
			took = append(took, round(b, c, "more"))
			remove(b, c, "more")
		}
		line = append(line, fmt.Sprintf("%v with %d others", percentile(took, 0.5).Round(100*time.Microsecond), want))
	}
	report(b, "one more, to first output, p50: %s", strings.Join(line, ", "))
	clear100(b, c, have)
}

// dockerRun starts a private engine with a small image and returns a function that runs a container of
// it, or nil if there is no engine.
func dockerRun(b *testing.B) func() {
	b.Helper()
	engine, err := exec.LookPath("dockerd")
	if err != nil {
		return nil
	}
	dir, err := os.MkdirTemp("", "cove-docker-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	socket := "unix://" + filepath.Join(dir, "sock")
	cmd := exec.Command(engine, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"-H", socket, "-p", filepath.Join(dir, "pid"),
		"--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false", "--bridge=none")
	if err := cmd.Start(); err != nil {
		return nil
	}
	b.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	docker := func(in io.Reader, args ...string) error {
		run := exec.Command("docker", append([]string{"-H", socket}, args...)...)
		run.Stdin = in
		out, err := run.CombinedOutput()
		if err != nil {
			return fmt.Errorf("docker %v: %w: %s", args, err, out)
		}
		return nil
	}
	for end := time.Now().Add(30 * time.Second); docker(nil, "version") != nil; idle(b, 100*time.Millisecond) {
		if time.Now().After(end) {
			return nil
		}
	}
	body, err := os.ReadFile(program(b, "cove"))
	if err != nil {
		b.Fatal(err)
	}
	var image bytes.Buffer
	tw := tar.NewWriter(&image)
	tw.WriteHeader(&tar.Header{Name: "cove", Mode: 0o755, Size: int64(len(body))})
	tw.Write(body)
	tw.Close()
	if err := docker(&image, "import", "-", "bench"); err != nil {
		b.Log(err)
		return nil
	}
	if err := docker(nil, "run", "--rm", "--network", "none", "bench", "/cove", "--version"); err != nil {
		b.Log(err)
		return nil
	}
	return func() {
		if err := docker(nil, "run", "--rm", "--network", "none", "bench", "/cove", "--version"); err != nil {
			b.Error(err)
		}
	}
}

// BenchmarkHubSnapshot: snapshot, fork and rollback of a running sandbox that has written 1 GB to its
// disk.
func BenchmarkHubSnapshot(b *testing.B) {
	c, url := serveHub(b)
	ctx := context.Background()
	if _, err := c.Create(ctx, client.CreateOptions{Name: "a"}); err != nil {
		b.Fatal(err)
	}
	defer remove(b, c, "a")
	// Sync first, so that the measurement does not include waiting for the disk.
	post(b, url+"/sandbox/a/v1/bash/exec",
		`{"command":"for i in $(seq 100); do head -c 10000000 /dev/urandom > f$i; done; sync","timeout":300}`)
	var keep, fork, back []time.Duration
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		begin := time.Now()
		if _, err := c.Snapshot(ctx, "a", name); err != nil {
			b.Fatal(err)
		}
		keep = append(keep, time.Since(begin))
		begin = time.Now()
		if _, err := c.Fork(ctx, "a", 1, "f"); err != nil {
			b.Fatal(err)
		}
		fork = append(fork, time.Since(begin))
		begin = time.Now()
		if _, err := c.Rollback(ctx, "f", name); err != nil {
			b.Fatal(err)
		}
		back = append(back, time.Since(begin))
		remove(b, c, "f")
	}
	report(b, "of 1 GB: snapshot p50 %v, fork until it answers p50 %v, rollback until it answers p50 %v (target 50ms each)",
		percentile(keep, 0.5).Round(100*time.Microsecond), percentile(fork, 0.5).Round(100*time.Microsecond),
		percentile(back, 0.5).Round(100*time.Microsecond))
	for i := range 10 {
		if err := c.DeleteSnapshot(ctx, fmt.Sprintf("s%d", i)); err != nil {
			b.Error(err)
		}
	}
}
