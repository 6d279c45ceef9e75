package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// BenchmarkWall: additional CPU usage of the hub and the sandboxes, in percent of one core, while a user watches 50 sandboxes on
// the dashboard. The browser of that user is not included.
func BenchmarkWall(b *testing.B) {
	testenv.Need(b, "node", "chromium", "Xtigervnc", "openbox")
	const count = 50
	c, url := serveHub(b)
	pid := child(b, "cove")
	createTiles(b, c, count)
	each := func(command string) {
		for i := range count {
			in := map[string]any{"command": command, "id": "s", "async_mode": true}
			if err := c.Guest(fmt.Sprintf("wall-%d", i+1)).Call(context.Background(), "POST", "/v1/shell/exec", in, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	used := func() (seconds float64) {
		for i := range count {
			s, err := c.Stats(context.Background(), fmt.Sprintf("wall-%d", i+1))
			if err != nil {
				b.Fatal(err)
			}
			seconds += s.CPUSeconds
		}
		return seconds + cpuTime(b, pid).Seconds()
	}
	// Periods with and without the wall alternate, so that other changes affect both. All values are CPU time.
	const window, pairs = 12 * time.Second, 3
	share := func() float64 {
		before, begin := used(), time.Now()
		idle(b, window)
		return (used() - before) / time.Since(begin).Seconds() * 100
	}
	measure := func(what string) {
		w := openWall(b, url)
		defer w.close()
		var costs []float64
		before := share()
		for range pairs {
			w.show()
			with := share()
			w.hide()
			after := share()
			costs = append(costs, with-(before+after)/2)
			before = after
		}
		slices.Sort(costs)
		report(b, "wall of %d %s: %.1f %% of a core (%.1f to %.1f; target 10), beside %.1f %% without it", count,
			what, costs[pairs/2], costs[0], costs[pairs-1], before)
	}
	// Maximum cost of the wall: its number of glances per second does not depend on their content.
	const perSecond, rounds = 5, 6
	glances := func(what string, width func(i int) int) {
		baseline := share()
		before, begin := used(), time.Now()
		for i := range rounds * count {
			get(b, fmt.Sprintf("%s/api/v1/sandbox/wall-%d/glance?width=%d", url, i%count+1, width(i)))
		}
		cost := (used() - before - baseline/100*time.Since(begin).Seconds()) / (rounds * count)
		report(b, "a glance at %s: %.1f ms of processor time; %d of them a second: %.1f %% of a core (target 10)",
			what, cost*1000, perSecond, cost*perSecond*100)
	}
	each("for i in $(seq 200); do date; sleep 1; done") // until the next measurement
	measure("terminals that change every second")
	for i := range count {
		if err := c.Guest(fmt.Sprintf("wall-%d", i+1)).Call(context.Background(), "POST", "/v1/shell/kill",
			map[string]any{"id": "s"}, nil); err != nil {
			b.Fatal(err)
		}
	}
	for i := range count { // a display, which the wall prefers to the terminal
		get(b, fmt.Sprintf("%s/sandbox/wall-%d/v1/browser/screenshot", url, i+1))
	}
	idle(b, window)
	measure("screens that stay the same")
	glances("a screen that stays the same", func(int) int { return 320 })
	glances("a screen that has changed", func(i int) int { return 320 - i/count%2 }) // another size requires another image
}

// createTiles creates the sandboxes wall-1 to wall-count, and deletes them at the end.
func createTiles(b *testing.B, c *client.Client, count int) {
	b.Helper()
	var wait sync.WaitGroup
	gate := make(chan struct{}, 4)
	for i := range count {
		gate <- struct{}{}
		wait.Go(func() {
			defer func() { <-gate }()
			if _, err := c.Create(context.Background(), client.CreateOptions{Name: fmt.Sprintf("wall-%d", i+1),
				Env: map[string]string{"DISABLE_BROWSER": "true"}}); err != nil {
				b.Error(err)
			}
		})
	}
	wait.Wait()
	b.Cleanup(func() {
		for i := range count {
			remove(b, c, fmt.Sprintf("wall-%d", i+1))
		}
	})
}

// wall is the dashboard's wall in a browser, with all tiles visible or hidden.
type wall struct {
	b   *testing.B
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func openWall(b *testing.B, url string) *wall {
	b.Helper()
	cmd := exec.Command("node", "story.mjs", "wall.mjs")
	cmd.Dir = "../test/page"
	cmd.Env = append(cmd.Environ(), "KEY_URL="+url, "HOLD=true")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return &wall{b, cmd, in, bufio.NewReader(out)}
}

func (w *wall) show() { w.send("show") }
func (w *wall) hide() { w.send("hide") }

func (w *wall) send(what string) {
	w.b.Helper()
	fmt.Fprintln(w.in, what)
	if line, err := w.out.ReadString('\n'); err != nil || line != what+"\n" {
		w.b.Fatalf("got %q, %v, want the wall to %s", line, err, what)
	}
}

func (w *wall) close() {
	w.in.Close()
	if err := w.cmd.Wait(); err != nil {
		w.b.Error(err)
	}
}

// child returns the descendant of this process with that name.
func child(b *testing.B, name string) int {
	b.Helper()
	for _, pid := range below(os.Getpid()) {
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(comm) == name+"\n" {
			return pid
		}
	}
	b.Fatalf("got no process %s, want one below this", name)
	return 0
}

// cpuTime returns the CPU time that a process has used.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var user, system time.Duration
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		b.Fatal(err)
	}
	return (user + system) * (time.Second / 100) // USER_HZ
}
