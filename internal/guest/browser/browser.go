// Package browser runs Chromium in a sandbox: one browser with a real window and one profile.
//
// It owns the process and its setup: switches, preferences, policies, a tab that is always open, and the DevTools endpoint
// for Playwright and similar clients. Chromium starts on first use, is replaced when it crashes or hangs, and stops when
// idle; its tabs are restored. Its own sandbox is turned off only where it does not work.
package browser

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Display shows the browser's windows.
type Display interface {
	// Hold keeps the display running until release. env contains the variables that programs need to use it; done is
	// closed if the display ends.
	Hold(ctx context.Context) (env []string, done <-chan struct{}, release func(), err error)
	// Size is the size of the display in pixels.
	Size(ctx context.Context) (width, height int, err error)
}

// Config of the service. A duration of 0 selects the default; an Idle of 0 means never.
type Config struct {
	Runner  *proc.Runner
	Display Display
	Home    string // contains Downloads, unless the next field names another folder
	Folder  string // for downloads; empty: Downloads in the home
	State   string // contains the profile
	Program string // path of the browser; empty: Chromium or Chrome from PATH

	Homepage    string   // first page of a fresh start; empty: a blank page
	Lang        string   // preferred languages of pages, comma separated
	UILang      string   // language of menus; empty: the first of Lang
	UserAgent   string   // empty: the browser's own
	ExtraArgs   []string // additional switches
	FileDialogs bool     // pages may open file dialogs
	DoH         []string // URL templates of DNS-over-HTTPS servers
	Block       []string // URLs to block unless a restart changes them
	Allow       []string // exceptions from Block
	Cookies     string   // of the first browser: JSON, or the path of a file; see cdp.ParseCookies
	Proxy       Proxy
	Trust       func() []string // returns switches that make the browser trust the proxy; nil: none

	// Output receives a copy of the output of the browser; nil: none.
	Output io.Writer
	// Policies is the folder of managed policies; empty: the default of the browser. If it is not writable, the rules are
	// enforced over the DevTools protocol.
	Policies string
	// Ticket returns a one-time ticket for a URL in a reply if the caller authenticated with a ticket, otherwise nothing.
	Ticket func(ctx context.Context) (string, error)

	Idle time.Duration // an unused browser stops after this time
	Hang time.Duration // the browser counts as hung when it does not respond for this time
	Log  *slog.Logger
}

// Service is the browser.
type Service struct {
	cfg     Config
	chrome  *proc.Component[*chrome]
	restart chan struct{} // held while settings change

	mu        sync.Mutex
	last      *chrome   // the latest browser, even after its end
	next      startMode // of the next start
	prepared  bool      // the configured cookies were set
	noSandbox string    // why Chromium's own sandbox cannot work here
	restarted string    // why the browser was restarted, for the next reply
}

// startMode is the reason of a start, which selects the tabs.
type startMode int

const (
	startOnUse   startMode = iota // the browser is needed; its tabs are restored
	startRestore                  // a soft restart
	startFresh                    // a hard restart, or the first start
)

// New returns the service. It has no side effects.
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
	s := &Service{cfg: c, restart: make(chan struct{}, 1), next: startFresh}
	s.chrome = proc.NewComponent(proc.ComponentConfig[*chrome]{
		Name: "the browser", Start: s.start, Idle: c.Idle, Installed: s.cfg.installed, Log: c.Log,
		Restart: proc.Policy{Tries: 8, Window: time.Minute, Backoff: 50 * time.Millisecond, MaxBackoff: 5 * time.Second},
	})
	return s
}

// PIDs returns the process of the browser, if it runs.
func (s *Service) PIDs() []int {
	s.mu.Lock()
	c := s.last
	s.mu.Unlock()
	if state, _ := s.State(); c == nil || state != string(proc.Ready) {
		return nil
	}
	return []int{c.process.PID()}
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "browser_info", Route: "GET /v1/browser/info", Tag: "browser", SDK: "browser.get_info", ReadOnly: true,
			Doc: "Show how to reach the browser: the URL for Playwright, Puppeteer and other DevTools clients, the URL of " +
				"the page that shows the display, and the sizes of display and page. Starts the browser if necessary."}, s.Info),
		op.New(op.Spec{Name: "browser_restart", Route: "POST /v1/browser/restart", Tag: "browser", SDK: "browser.restart", Destructive: true,
			Doc: "Restart the browser: soft restores the open tabs, hard starts with one new tab. Cookies and " +
				"logins are kept. The URL lists, file dialogs and the language can be changed; omitted settings are unchanged. " +
				"URL lists contain hosts, which include their subdomains, scheme://host:port/path, or * for all URLs."}, s.Restart),
		op.New(op.Spec{Name: "browser_proxy_pac", Content: op.ContentAPI, Route: "GET /v1/browser/proxy.pac",
			Tag: "browser", SDK: "browser.get_proxy_pac", ReadOnly: true, NoTool: true, Produces: "application/x-ns-proxy-autoconfig",
			Doc: "Return the proxy auto-configuration (PAC) script of the browser."}, s.PAC),
		op.Handle(op.Spec{Name: "cdp", Content: op.ContentAPI, Route: "/cdp/{path...}",
			Also: []string{"/cdp", "/json", "/json/{path...}"}, Tag: "browser",
			Doc: "The browser's DevTools protocol: discovery as JSON, with URLs that the caller can reach, and " +
				"WebSockets."}, http.HandlerFunc(s.serveCDP)),
		op.Handle(op.Spec{Name: "devtools", Content: op.ContentSite, Route: "/devtools/{path...}", Tag: "browser",
			Doc: "The WebSockets of the DevTools protocol, and the browser's own DevTools page."}, http.HandlerFunc(s.serveCDP)),
	}
}

// Close stops the browser and removes its policies.
func (s *Service) Close() error {
	s.chrome.Stop()
	return s.cfg.removePolicy()
}

// State returns the readiness (absent, idle, starting, ready or failed) and its reason, or why the sandbox of a ready browser
// is off.
func (s *Service) State() (state, why string) {
	st := s.chrome.State()
	switch st.Phase {
	case proc.Stopping:
		st.Phase = proc.Idle
	case proc.Ready:
		if reason := s.sandboxOffReason(); reason != "" {
			st.Why = "Chromium's own sandbox is off: " + reason
		}
	}
	return string(st.Phase), st.Why
}

// Hold keeps the browser running until release, with its window drawn. done is closed if the browser ends anyway.
func (s *Service) Hold(ctx context.Context) (done <-chan struct{}, release func(), err error) {
	c, release, err := s.hold(ctx)
	if err != nil {
		return nil, nil, err
	}
	c.awaitPainted(ctx)
	return c.Done(), release, nil
}

// Connect returns the shared connection to the browser, for operations on its pages, until release.
func (s *Service) Connect(ctx context.Context) (client *cdp.Client, release func(), err error) {
	c, release, err := s.hold(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c.client, release, nil
}

// Reach keeps the browser running until release and returns its pipe, to which the caller can connect. recent contains the
// ids of its tabs, most recently used first.
func (s *Service) Reach(ctx context.Context) (pipe *cdp.Pipe, recent []string, release func(), err error) {
	c, release, err := s.chrome.AcquireWorking(ctx, func(c *chrome) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Hang)
		defer cancel()
		tabs, err := c.pages(ctx)
		recent = recent[:0]
		for _, t := range tabs {
			recent = append(recent, t.ID)
		}
		if err != nil && ctx.Err() != nil && c.client.Err() == nil {
			c.End(hung(ctx.Err()))
		}
		return err
	})
	if err != nil {
		return nil, nil, nil, toOpError(ctx, err)
	}
	return c.pipe, recent, release, nil
}

// dir returns a path in the state folder of the browser.
func (c *Config) dir(name string) string { return filepath.Join(c.State, "browser", name) }

func (c *Config) downloads() string {
	return cmp.Or(c.Folder, filepath.Join(c.Home, "Downloads"))
}

// Downloads is the folder of downloaded files.
func (s *Service) Downloads() string { return s.cfg.downloads() }

// CheckConfig validates the lists of URLs and the cookies.
func (s *Service) CheckConfig() error {
	if _, err := cdp.ParseCookies(s.cfg.Cookies); err != nil {
		return fmt.Errorf("BROWSER_INIT_COOKIES: %w", err)
	}
	for _, list := range [][]string{s.cfg.Block, s.cfg.Allow} {
		if err := checkRules(list); err != nil {
			return fmt.Errorf("URL lists of the browser: %w", err)
		}
	}
	return nil
}
