package cdp

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is the timeout of every wait in these tests; each should take less than a tenth of it.
const patience = 2 * time.Minute

// browser is a headless Chromium of one test.
type browser struct {
	cmd    *exec.Cmd
	pipe   *Pipe
	waited chan struct{}
}

func startBrowser(t testing.TB) *browser {
	t.Helper()
	testenv.Need(t, "chromium")
	profile := t.TempDir()
	b := &browser{waited: make(chan struct{})}
	b.cmd = exec.Command("chromium", "--headless=new", "--no-sandbox", "--no-first-run", "--no-default-browser-check",
		"--disable-background-networking", "--disable-sync", "--disable-component-update", "--disable-default-apps", "--disable-breakpad",
		"--disable-gpu", "--disable-dev-shm-usage", "--password-store=basic", "--use-mock-keychain",
		"--disable-features=Translate,MediaRouter,OptimizationHints", "--remote-debugging-pipe", "--user-data-dir="+profile, "about:blank")
	b.cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, theirs, err := NewPipe()
	must(t, err)
	b.pipe, b.cmd.ExtraFiles = pipe, theirs
	must(t, b.cmd.Start())
	for _, f := range theirs {
		f.Close()
	}
	go func() {
		defer close(b.waited)
		_ = b.cmd.Wait()
	}()
	t.Cleanup(func() {
		b.kill()
		b.pipe.Close()
	})
	return b
}

// kill kills the process group of the browser and returns when no process can write to its profile.
func (b *browser) kill() {
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	<-b.waited
	testenv.Eventually(func() bool { return syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) != nil })
}

func (b *browser) dial(t testing.TB) *Client {
	t.Helper()
	c, err := b.pipe.Connect(testContext(t), Config{})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// page opens a page and a session with it.
func page(t testing.TB, c *Client) (string, SessionID) {
	t.Helper()
	ctx := testContext(t)
	id, err := c.CreateTarget(ctx, NewTarget{})
	must(t, err)
	s, err := c.Attach(ctx, id)
	must(t, err)
	return id, s
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
