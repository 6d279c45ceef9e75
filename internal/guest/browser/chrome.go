package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/cdp"
	"github.com/cove-sandbox/cove/internal/proc"
)

const (
	// startTime bounds a start, which takes about a second on a machine that is not overloaded.
	startTime = 60 * time.Second
	// closeTime is how long the browser may take to save its tabs and cookies when it is asked to end.
	closeTime = 5 * time.Second
	// paintTime is how long a first look waits for the window.
	paintTime = 5 * time.Second
)

// chrome is one run of the browser.
type chrome struct {
	s       *Service
	lock    *os.File
	process *proc.Process
	client  *cdp.Client
	port    int    // of its DevTools, on loopback
	path    string // of the browser's own WebSocket there
	release func() // of the display
	began   time.Time
	keeper  string // who keeps the rules
	tabs    bool   // it was started with the tabs of the last one
	healed  bool   // it took the place of one that had died

	agent   string        // how it calls itself to servers
	painted chan struct{} // closed when the first page was drawn, or did not want to be

	end   context.CancelFunc
	parts sync.WaitGroup // the goroutines
	once  sync.Once
	done  chan struct{}
	why   error // set before done is closed; nil when it was asked to stop
}

// programs are the names that a browser of ours goes by, best first.
var programs = []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome"}

// program finds the browser.
func (s *Service) program() (string, bool) {
	if s.cfg.Program != "" {
		return s.cfg.Runner.Look(s.cfg.Program)
	}
	return s.cfg.Runner.Look(programs...)
}

func (s *Service) installed() error {
	if _, ok := s.program(); ok {
		return nil
	}
	if s.cfg.Program != "" {
		return fmt.Errorf("there is no program %s; correct the path or install the package chromium", s.cfg.Program)
	}
	return errors.New("install the package chromium")
}

// start brings up a browser. Whatever fails, nothing of it is left.
func (s *Service) start(ctx context.Context) (*chrome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not ready after %v", startTime))
	defer cancel()
	set, err := s.settings()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	last, demand := s.last, s.demand
	s.mu.Unlock()
	tabs := demand != freshTab
	healing := demand == noDemand && last != nil && last.why != nil
	// Tabs that bring the browser down at once must not do so for ever.
	if healing && last.healed && time.Since(last.began) < time.Minute {
		tabs = false
	}
	c, err := s.launch(ctx, set, tabs)
	if said, ok := errors.AsType[*sandboxError](err); ok && s.unsandboxed() == "" {
		s.cfg.Log.Warn("chromium's own sandbox does not work here and is turned off", "reason", said.line)
		s.mu.Lock()
		s.noSandbox = said.line
		s.mu.Unlock()
		c, err = s.launch(ctx, set, tabs)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.healed = healing
	if last != nil && demand == noDemand { // one that was restarted on demand needs no explanation
		s.news = news(last, c.tabs)
	}
	s.last, s.demand = c, noDemand
	return c, nil
}

// news is what to say about a browser that replaces another.
func news(last *chrome, tabs bool) string {
	what := "its tabs were opened again"
	if !tabs {
		what = "it begins with one fresh tab"
	}
	if last.why == nil {
		return "The browser had been stopped, since nobody used it, and was started again; " + what + "."
	}
	return fmt.Sprintf("The browser had ended (%v) and was started anew; %s.", last.why, what)
}

// unsandboxed is why Chromium's own sandbox is off, or empty.
func (s *Service) unsandboxed() string {
	if os.Geteuid() == 0 {
		return "it cannot be used by root; run the sandbox as another user"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noSandbox
}

// launch starts the process and connects to it. The profile is made ready while the display starts.
func (s *Service) launch(ctx context.Context, set settings, tabs bool) (*chrome, error) {
	c := &chrome{s: s, began: time.Now(), tabs: tabs, painted: make(chan struct{}), done: make(chan struct{}), end: func() {}, release: func() {}}
	if err := c.begin(ctx, set); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *chrome) begin(ctx context.Context, set settings) error {
	ready := make(chan error, 1)
	go func() { ready <- c.prepare(ctx, set) }()
	env, lost, release, err := c.s.cfg.Display.Hold(ctx)
	if perr := <-ready; err == nil && perr != nil {
		release()
		return perr
	}
	if err != nil {
		return err
	}
	c.release = release
	address, err := c.run(ctx, env, set)
	if err != nil {
		return err
	}
	if c.client, err = cdp.Dial(ctx, cdp.Config{URL: address}); err != nil {
		return err
	}
	if c.agent, err = c.userAgent(ctx); err != nil {
		return err
	}
	life, end := context.WithCancel(context.Background())
	c.end = end
	if err := c.guardRules(ctx, life, set); err != nil {
		return err
	}
	tabs, err := c.watchTabs(ctx)
	if err != nil {
		return err
	}
	c.parts.Go(func() { c.keepTab(life, tabs) })
	c.parts.Go(func() { c.watch(life, lost) })
	c.parts.Go(func() { c.paint(life) })
	return nil
}

// run starts the process and waits until it says where its DevTools are. Nobody but our own child can say so on its
// standard error, and nobody but it knows the path.
func (c *chrome) run(ctx context.Context, env []string, set settings) (address string, err error) {
	program, ok := c.s.program()
	if !ok {
		return "", c.s.installed()
	}
	said := newListener()
	c.process, err = c.s.cfg.Runner.Start(proc.Command{
		Path: program, Args: c.s.switches(set, c.tabs), Dir: c.s.cfg.Home, Env: append(c.s.environ(set), env...),
		Stdout: said, Stderr: said, Session: true,
	})
	if err != nil {
		return "", err
	}
	select {
	case address = <-said.address:
	case <-c.process.Done():
		return "", explainEnd(c.process.Exit(), said)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("read the address of DevTools: %w", err)
	}
	c.path = u.Path
	c.port, err = strconv.Atoi(u.Port())
	return address, err
}

// host is where its DevTools listen.
func (c *chrome) host() string { return "127.0.0.1:" + strconv.Itoa(c.port) }

// watch notices that the browser has died, or hangs.
func (c *chrome) watch(life context.Context, display <-chan struct{}) {
	tick := time.NewTicker(max(c.s.cfg.Hang/3, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-c.process.Done():
			c.fail(fmt.Errorf("it %v", c.process.Exit()))
			return
		case <-display:
			c.fail(errors.New("the display died"))
			return
		case <-c.client.Done():
			c.fail(c.lost(life))
			return
		case <-tick.C:
			if err := c.ping(life); err != nil && life.Err() == nil && c.client.Err() == nil {
				c.fail(hung(err))
				return
			}
		}
	}
}

// lost tells why the connection ended. The process's own end tells more, and is known a moment later.
func (c *chrome) lost(life context.Context) error {
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-c.process.Done():
		return fmt.Errorf("it %v", c.process.Exit())
	case <-timer.C:
	case <-life.Done():
	}
	return c.client.Err()
}

// fail declares the browser dead; it is stopped and replaced by whoever manages it.
func (c *chrome) fail(why error) {
	c.once.Do(func() {
		c.why = why
		close(c.done)
	})
}

// Done is closed when the browser is dead.
func (c *chrome) Done() <-chan struct{} { return c.done }

func (c *chrome) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Err tells why it is dead.
func (c *chrome) Err() error {
	if !c.over() {
		return nil
	}
	return c.why
}

// Stop ends the browser, gently if it still listens, and returns when no process of it is left.
func (c *chrome) Stop() {
	c.fail(nil)
	c.end()
	c.parts.Wait()
	if c.client != nil {
		if c.why == nil {
			c.leave()
		}
		c.client.Close()
	}
	if c.process != nil {
		if c.why == nil {
			c.process.Stop()
		} else {
			c.process.Kill()
		}
	}
	c.release()
	if c.lock != nil {
		// A child that is just being started may hold the file for a moment longer.
		unix.Flock(int(c.lock.Fd()), unix.LOCK_UN)
		c.lock.Close()
	}
}

// leave lets the browser save its tabs and cookies.
func (c *chrome) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	// An error means that it is gone already, or will not go, and then it is killed.
	_ = c.client.Call(ctx, cdp.Browser, "Browser.close", nil, nil)
	_, _ = c.process.Wait(ctx)
}

// claim makes the profile ours alone: two servers with one state folder must not share it.
func (c *chrome) claim() error {
	if err := os.MkdirAll(c.s.dir("profile"), 0o700); err != nil {
		return fmt.Errorf("make the browser's profile: %w", err)
	}
	lock, err := os.OpenFile(c.s.dir("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("claim the browser's profile: %w", err)
	}
	c.lock = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another sandbox uses the browser profile in %s: give this one a state folder of its own", c.s.dir(""))
	}
	return nil
}

// sandboxError is a start that failed because Chromium's own sandbox does not work here.
type sandboxError struct{ line string }

func (e *sandboxError) Error() string { return "chromium's own sandbox does not work: " + e.line }

// explainEnd tells why a browser ended before it was ready.
func explainEnd(exit proc.Exit, said *listener) error {
	lines := said.lines()
	for _, line := range lines {
		low := strings.ToLower(line)
		for _, mark := range []string{"no usable sandbox", "without --no-sandbox", "failed to move to new namespace", "setuid sandbox"} {
			if strings.Contains(low, mark) {
				return &sandboxError{line}
			}
		}
	}
	last := "it said nothing"
	if len(lines) > 0 {
		last = lines[len(lines)-1]
	}
	return fmt.Errorf("the browser %v before it was ready: %s", exit, last)
}
