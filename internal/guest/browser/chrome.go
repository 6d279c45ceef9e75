package browser

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// startTime is the timeout of a start, which takes about a second on an idle machine.
	startTime = 60 * time.Second
	// closeTime is how long the browser may take to save its tabs and cookies.
	closeTime = 5 * time.Second
	// paintTime is how long the first call waits for the window.
	paintTime = 5 * time.Second
)

// chrome is one run of the browser.
type chrome struct {
	s       *Service
	lock    *os.File
	process *proc.Process
	pipe    *cdp.Pipe // its DevTools; it has no port
	client  *cdp.Client
	order   *tabOrder
	assets  *frontend
	path    string // of the browser's own WebSocket, for clients outside
	release func() // of the display
	began   time.Time

	enforcedBy string // what enforces the rules
	tabs       bool   // the tabs of the previous browser were restored
	healed     bool   // it replaces one that crashed

	agent   string        // its user agent
	painted chan struct{} // closed when the first page was drawn, or will not be

	*proc.Lifetime
	cancel context.CancelFunc
	loops  sync.WaitGroup // its goroutines
}

// programs are the names of supported browsers in order of preference.
var programs = []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome"}

// program finds the browser.
func (c *Config) program() (string, bool) {
	if c.Program != "" {
		return c.Runner.Look(c.Program)
	}
	return c.Runner.Look(programs...)
}

// installed returns an error if there is no browser.
func (c *Config) installed() error {
	if _, ok := c.program(); ok {
		return nil
	}
	if c.Program != "" {
		return fmt.Errorf("no program at %q; correct the path or install the package chromium", c.Program)
	}
	return errors.New("install the package chromium")
}

// start starts a browser. If that fails, it releases all resources.
func (s *Service) start(ctx context.Context) (*chrome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not ready after %v", startTime))
	defer cancel()
	set, err := s.setup()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	last, mode := s.last, s.next
	s.mu.Unlock()
	tabs := mode != startFresh
	healing := mode == startOnUse && last != nil && last.Err() != nil
	// Tabs that crash the browser must not do so forever.
	if healing && last.healed && time.Since(last.began) < time.Minute {
		tabs = false
	}
	c, err := s.launch(ctx, set, tabs)
	if failed, ok := errors.AsType[*sandboxError](err); ok && s.sandboxOffReason() == "" {
		s.cfg.Log.Warn("chromium sandbox does not work and is turned off", "reason", failed.line)
		s.mu.Lock()
		s.noSandbox = failed.line
		s.mu.Unlock()
		c, err = s.launch(ctx, set, tabs)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.healed = healing
	if last != nil && mode == startOnUse { // a requested restart needs no explanation
		s.restarted = describeRestart(last, c.tabs)
	}
	s.last, s.next = c, startOnUse
	return c, nil
}

// describeRestart describes why a browser replaced another one.
func describeRestart(last *chrome, tabs bool) string {
	what := "its tabs were restored"
	if !tabs {
		what = "it has one new tab"
	}
	if last.Err() == nil {
		return "The browser was stopped because it was idle, and has been restarted; " + what + "."
	}
	return fmt.Sprintf("The browser ended (%v) and was restarted; %s.", last.Err(), what)
}

// sandboxOffReason is why Chromium's own sandbox is off, or empty.
func (s *Service) sandboxOffReason() string {
	if os.Geteuid() == 0 {
		return "root cannot use it; run the sandbox as another user"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noSandbox
}

// launch starts the process and connects to it. The profile is prepared while the display starts.
func (s *Service) launch(ctx context.Context, set setup, tabs bool) (*chrome, error) {
	c := &chrome{s: s, began: time.Now(), tabs: tabs, painted: make(chan struct{}), Lifetime: proc.NewLifetime(),
		cancel: func() {}, release: func() {}}
	if err := c.start(ctx, set); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *chrome) start(ctx context.Context, set setup) error {
	ready := make(chan error, 1)
	go func() { ready <- c.prepareProfile(ctx, set) }()
	env, lost, release, err := c.s.cfg.Display.Hold(ctx)
	if perr := <-ready; err == nil && perr != nil {
		release()
		return perr
	}
	if err != nil {
		return err
	}
	c.release = release
	if err := c.startProcess(ctx, env, set); err != nil {
		return err
	}
	if c.order, err = newTabOrder(ctx, c.pipe); err != nil {
		return err
	}
	c.assets = &frontend{pipe: c.pipe}
	if c.agent, err = c.userAgent(ctx); err != nil {
		return err
	}
	life, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	if err := c.enforceRules(ctx, life, set); err != nil {
		return err
	}
	c.s.setCookies(ctx, c.client)
	tabs, err := c.watchTabs(ctx)
	if err != nil {
		return err
	}
	c.loops.Go(func() { c.keepTab(life, tabs) })
	c.loops.Go(func() { c.watch(life, lost) })
	c.loops.Go(func() { c.awaitFirstPaint(life) })
	return nil
}

// setCookies sets the configured cookies in the first browser. The browser is useful without them, so an error is only
// logged.
func (s *Service) setCookies(ctx context.Context, client *cdp.Client) {
	s.mu.Lock()
	done := s.prepared || s.cfg.Cookies == ""
	s.prepared = true
	s.mu.Unlock()
	if done {
		return
	}
	list, err := cdp.ParseCookies(s.cfg.Cookies)
	if err == nil {
		err = client.SetCookies(ctx, map[string]any{}, list)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot set the configured cookies", "error", err)
	}
}

// tee copies the browser's output to Output.
func (c *Config) tee(w io.Writer) io.Writer {
	if c.Output == nil {
		return w
	}
	return io.MultiWriter(w, c.Output)
}

// startProcess starts the process and connects to it over a pipe, which no other program can reach.
func (c *chrome) startProcess(ctx context.Context, env []string, set setup) error {
	program, ok := c.s.cfg.program()
	if !ok {
		return c.s.cfg.installed()
	}
	pipe, theirs, err := cdp.NewPipe()
	if err != nil {
		return err
	}
	c.pipe = pipe
	output := proc.NewCapture(4<<10, 4<<10)
	c.process, err = c.s.cfg.Runner.Start(proc.Command{
		Path: program, Args: set.switches(c.tabs, c.s.sandboxOffReason() == ""), Dir: c.s.cfg.Home,
		Env: append(set.environ(), env...), Stdout: c.s.cfg.tee(output), Stderr: c.s.cfg.tee(output), Session: true, ExtraFiles: theirs,
	})
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		return err
	}
	c.path = "/devtools/browser/" + newGUID()
	c.client, err = c.pipe.Connect(ctx, cdp.Config{})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The pipe closes shortly before the process ends.
	if exit, waited := c.process.Wait(ctx); waited == nil {
		return explainExit(exit, output)
	}
	return context.Cause(ctx)
}

// newGUID returns a random id in the format of the id of the browser's own WebSocket.
func newGUID() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// watch ends the browser when its process, its display or the connection ends, or when it hangs.
func (c *chrome) watch(life context.Context, display <-chan struct{}) {
	tick := time.NewTicker(max(c.s.cfg.Hang/3, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-c.process.Done():
			c.End(fmt.Errorf("it %v", c.process.Exit()))
			return
		case <-display:
			c.End(errors.New("the display ended"))
			return
		case <-c.client.Done():
			c.End(c.connectionLost(life))
			return
		case <-c.order.client.Done():
			c.End(c.connectionLost(life))
			return
		case <-tick.C:
			if err := c.ping(life); err != nil && life.Err() == nil && c.client.Err() == nil {
				c.End(hung(err))
				return
			}
		}
	}
}

// connectionLost returns why the connection ended. The exit status of the process is more specific and is known shortly after.
func (c *chrome) connectionLost(life context.Context) error {
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-c.process.Done():
		return fmt.Errorf("it %v", c.process.Exit())
	case <-timer.C:
	case <-life.Done():
	}
	return cmp.Or(c.client.Err(), c.order.client.Err())
}

// Stop stops the browser, gracefully if it still responds, and returns when none of its processes is left.
func (c *chrome) Stop() {
	c.End(nil)
	c.cancel()
	c.loops.Wait()
	if c.client != nil {
		if c.Err() == nil {
			c.closeGracefully()
		}
	}
	if c.process != nil {
		if c.Err() == nil {
			c.process.Stop()
		} else {
			c.process.Kill()
		}
	}
	c.closeConnections()
	c.release()
	if c.lock != nil {
		_ = lockfile.Release(c.lock)
	}
}

// closeConnections closes the pipe and its clients after the process has ended: the browser exits without its pipe.
func (c *chrome) closeConnections() {
	if c.assets != nil {
		c.assets.close()
	}
	if c.pipe != nil {
		c.pipe.Close()
	}
	if c.order != nil {
		c.order.client.Close()
	}
	if c.client != nil {
		c.client.Close()
	}
}

// closeGracefully lets the browser save its tabs and cookies.
func (c *chrome) closeGracefully() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	// An error means that it has ended or does not respond. Then it is killed.
	_ = c.client.Call(ctx, cdp.Browser, "Browser.close", nil, nil)
	_, _ = c.process.Wait(ctx)
}

// lockProfile locks the profile: two servers with one state folder must not share it.
func (c *chrome) lockProfile() error {
	if err := os.MkdirAll(c.s.cfg.dir("profile"), 0o700); err != nil {
		return fmt.Errorf("create the browser's profile: %w", err)
	}
	lock, err := lockfile.Open(c.s.cfg.dir("lock"))
	switch {
	case errors.Is(err, lockfile.ErrLocked):
		return fmt.Errorf("another sandbox uses the browser profile in %q; give each sandbox its own state folder", c.s.cfg.dir(""))
	case err != nil:
		return fmt.Errorf("lock the browser's profile: %w", err)
	}
	c.lock = lock
	return nil
}

// sandboxError is a start that failed because Chromium's own sandbox does not work here.
type sandboxError struct{ line string }

func (e *sandboxError) Error() string { return "chromium's sandbox does not work: " + e.line }

// explainExit returns why a browser ended before it was ready.
func explainExit(exit proc.Exit, output *proc.Capture) error {
	lines := relevantLines(output)
	for _, line := range lines {
		low := strings.ToLower(line)
		for _, mark := range []string{"no usable sandbox", "without --no-sandbox", "failed to move to new namespace", "setuid sandbox"} {
			if strings.Contains(low, mark) {
				return &sandboxError{line}
			}
		}
	}
	last := "it printed nothing"
	if len(lines) > 0 {
		last = lines[len(lines)-1]
	}
	return fmt.Errorf("the browser %v before it was ready: %s", exit, last)
}

// relevantLines returns the browser's output without the irrelevant complaints about D-Bus.
func relevantLines(output *proc.Capture) []string {
	var out []string
	for line := range strings.SplitSeq(string(output.Bytes()), "\n") {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "?")); line != "" && !strings.Contains(line, "dbus/") {
			out = append(out, line)
		}
	}
	return out
}
