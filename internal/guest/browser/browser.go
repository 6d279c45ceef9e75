// Package browser is the sandbox's Chromium: one browser with a real window, one profile, its downloads in the home.
//
// It owns the process and everything that makes it this sandbox's browser: switches, preferences, policies, the tab that is
// always there, and the door through which Playwright and the like drive it from outside. Chromium starts on first need,
// is replaced when it dies or hangs, and stops when nobody has used it for a while; its tabs come back. The package needs a
// display and declares what it asks of one. It refuses to run without Chromium's own sandbox unless that cannot work here.
package browser

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/cdp"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

// Display is where the browser's windows are.
type Display interface {
	// Hold keeps the display running until release. env tells programs how to find it; done is closed if it dies.
	Hold(ctx context.Context) (env []string, done <-chan struct{}, release func(), err error)
	// Size is the display's in pixels.
	Size(ctx context.Context) (width, height int, err error)
}

// Config of the service. A duration of 0 is the default, an Idle of 0 means never.
type Config struct {
	Runner  *proc.Runner
	Display Display
	Home    string // Downloads is below it
	State   string // the profile is below it
	Program string // the browser's path; empty: Chromium or Chrome as found in PATH

	Homepage    string   // opened at a fresh start; empty: a blank page
	Lang        string   // languages that pages are asked for, best first, comma separated
	UILang      string   // language of menus; empty: the first of Lang
	UserAgent   string   // empty: the browser's own
	ExtraArgs   []string // further switches
	FileDialogs bool     // pages may open the dialog that picks a file
	DoH         []string // templates of DNS-over-HTTPS servers
	Proxy       Proxy

	// Policies is the folder that the browser reads managed policies from; empty: the one that the program was built with.
	// Where it cannot be written to, the rules are enforced over the DevTools protocol instead.
	Policies string
	// Ticket makes a one-time ticket for an address in a reply, if the caller signed in with one; otherwise it is empty.
	Ticket func(ctx context.Context) (string, error)

	Idle time.Duration // how long a browser that nobody uses stays
	Hang time.Duration // how long it may take to answer before it counts as hung
	Log  *slog.Logger
}

// Service is the browser.
type Service struct {
	cfg     Config
	chrome  *proc.Component[*chrome]
	gate    *http.Transport // to the browser's own port
	restart chan struct{}   // held while settings change

	mu        sync.Mutex
	last      *chrome // the latest one, also when it is gone
	demand    demand  // of the next start
	noSandbox string  // why Chromium's own sandbox cannot work here
	news      string  // what the next reply must tell
}

// demand says how a start was asked for.
type demand int

const (
	noDemand demand = iota // the browser is needed: the tabs that it had come back
	oldTabs                // a soft restart
	freshTab               // a hard one, or the first start
)

// New makes the service. It touches nothing.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Hang == 0 {
		c.Hang = 30 * time.Second
	}
	if c.Lang == "" {
		c.Lang = "en-US"
	}
	if c.Ticket == nil {
		c.Ticket = func(context.Context) (string, error) { return "", nil }
	}
	s := &Service{cfg: c, gate: &http.Transport{DisableCompression: true, DisableKeepAlives: true}, restart: make(chan struct{}, 1), demand: freshTab}
	s.chrome = proc.NewComponent(proc.ComponentConfig[*chrome]{
		Name: "the browser", Start: s.start, Idle: c.Idle, Installed: s.installed, Log: c.Log,
		Restart: proc.Policy{Tries: 8, Window: time.Minute, Backoff: 50 * time.Millisecond, MaxBackoff: 5 * time.Second},
	})
	return s
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "browser_info", Route: "GET /v1/browser/info", Tag: "browser", SDK: "browser.get_info", ReadOnly: true,
			Doc: "Tell how to reach the browser: the address for Playwright, Puppeteer and other DevTools clients, the page for people, and the sizes of display and page. It is started if need be."}, s.Info),
		op.New(op.Spec{Name: "browser_restart", Route: "POST /v1/browser/restart", Tag: "browser", SDK: "browser.restart", Destructive: true,
			Doc: "Restart the browser: soft brings the open tabs back, hard begins with one fresh tab. Cookies and logins stay. Lists of addresses to block or allow, file dialogs and the language can be changed with it; what is not sent stays as it was."}, s.Restart),
		op.New(op.Spec{Name: "browser_proxy_pac", Route: "GET /v1/browser/proxy.pac", Tag: "browser", SDK: "browser.get_proxy_pac", ReadOnly: true, NoTool: true, Produces: "application/x-ns-proxy-autoconfig",
			Doc: "Give the script by which the browser chooses its proxy."}, s.PAC),
		op.Handle(op.Spec{Name: "cdp", Route: "/cdp/{path...}", Also: []string{"/cdp", "/json", "/json/{path...}", "/devtools/{path...}"}, Tag: "browser",
			Doc: "The DevTools protocol of the browser: discovery as JSON, with addresses that the caller can use, and its WebSockets."}, http.HandlerFunc(s.serveCDP)),
	}
}

// Close ends the browser and takes its policies back.
func (s *Service) Close() error {
	s.chrome.Stop()
	s.gate.CloseIdleConnections()
	return s.dropPolicy()
}

// State is for readiness: absent, idle, starting, ready or failed, and why; also that the browser runs without its sandbox.
func (s *Service) State() (state, why string) {
	st := s.chrome.State()
	switch st.Phase {
	case proc.Stopping:
		st.Phase = proc.Idle
	case proc.Ready:
		if reason := s.unsandboxed(); reason != "" {
			st.Why = "Chromium's own sandbox is off: " + reason
		}
	}
	return string(st.Phase), st.Why
}

// Hold keeps the browser running until release, with its window painted. done is closed if it ends all the same.
func (s *Service) Hold(ctx context.Context) (done <-chan struct{}, release func(), err error) {
	c, release, err := s.hold(ctx)
	if err != nil {
		return nil, nil, err
	}
	c.awaitPainted(ctx)
	return c.Done(), release, nil
}

// Connect returns a connection to the browser that all share, for operations on its pages, until release.
func (s *Service) Connect(ctx context.Context) (client *cdp.Client, release func(), err error) {
	c, release, err := s.hold(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c.client, release, nil
}

// Ports are the loopback ports that the browser listens on, which no preview may lead to.
func (s *Service) Ports() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.over() {
		return nil
	}
	return []int{s.last.port}
}

func (s *Service) dir(name string) string { return filepath.Join(s.cfg.State, "browser", name) }

// Downloads is where the browser puts files.
func (s *Service) Downloads() string { return filepath.Join(s.cfg.Home, "Downloads") }
