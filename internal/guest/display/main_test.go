package display_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

// desk is a display of one test, with an optional browser.
type desk struct {
	*display.Service
	browser *browser.Service
	runner  *proc.Runner
	dir     string
}

func newDesk(t testing.TB, change ...func(*display.Config)) *desk {
	t.Helper()
	testenv.Need(t, "Xtigervnc", "openbox")
	dir := t.TempDir()
	d := &desk{dir: dir}
	d.runner = proc.New(proc.Config{
		Env:   []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8"},
		Guard: []string{"/proc/self/exe", "guard"},
	})
	c := display.Config{Runner: d.runner, State: dir, Home: dir, Workspace: dir, Width: 1024, Height: 768,
		Recordings: filepath.Join(dir, "recordings"), Pages: os.DirFS("../../../web")}
	for _, f := range change {
		f(&c)
	}
	if c.Browser != nil {
		testenv.Need(t, "chromium")
		c.Browser = func(ctx context.Context) (<-chan struct{}, func(), error) { return d.browser.Hold(ctx) }
	}
	d.Service = display.New(c)
	if c.Browser != nil {
		d.browser = browser.New(browser.Config{Runner: d.runner, Display: d.Service, Home: dir, State: dir, FileDialogs: true})
	}
	t.Cleanup(func() {
		if d.browser != nil {
			d.browser.Close()
		}
		d.Close()
		d.Close()
		if left := d.runner.Living(); len(left) > 0 {
			t.Errorf("processes still run: %+v, want none", left)
		}
		d.runner.Close()
		for _, left := range testenv.ProcessesOf(dir) {
			t.Errorf("a process still runs: %s", left)
		}
	})
	return d
}

// withBrowser starts a real Chromium on the display.
func withBrowser(c *display.Config) {
	c.Browser = func(context.Context) (<-chan struct{}, func(), error) { return nil, nil, nil } // replaced
}

// pidOf returns the process of a program on the desk.
func (d *desk) pidOf(t testing.TB, program string) int {
	t.Helper()
	pid := 0
	testenv.Poll(t, program+" runs", func() bool {
		for _, p := range d.runner.Living() {
			if filepath.Base(p.Path) == program && !p.Background {
				pid = p.PID
			}
		}
		return pid != 0
	})
	return pid
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
