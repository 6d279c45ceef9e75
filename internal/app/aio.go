// Package app wires the programs together: configuration becomes services, their
// operations become one table, the table becomes servers. It owns the order in
// which things start and stop, and nothing else.
package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/activity"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/bind"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/code"
	"github.com/cove-sandbox/cove/internal/guest/convert"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/file"
	"github.com/cove-sandbox/cove/internal/guest/health"
	"github.com/cove-sandbox/cove/internal/guest/hook"
	"github.com/cove-sandbox/cove/internal/guest/info"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/node"
	"github.com/cove-sandbox/cove/internal/guest/preview"
	"github.com/cove-sandbox/cove/internal/guest/shell"
	"github.com/cove-sandbox/cove/internal/guest/ticket"
	"github.com/cove-sandbox/cove/internal/guest/watch"
	"github.com/cove-sandbox/cove/internal/metric"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/span"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/web"
)

// Title of the sandbox in documents.
const Title = "Cove sandbox"

// Aio is the sandbox: all its services and the table of their operations.
type Aio struct {
	Table *op.Table

	cfg     config.Aio
	version string
	log     *slog.Logger
	runner  *proc.Runner
	guard   *auth.Guard
	// signedIn: callers must sign in.
	signedIn bool
	trusted  []netip.Prefix
	hooks    *hook.Service
	previews *preview.Service
	tracer   *span.Tracer // nil: nobody asked for traces
	metrics  *metric.Registry
	close    []func() error // in the order in which they are ended
}

// service is what every room of the sandbox looks like from here.
type service interface {
	Ops() []op.Op
	Close() error
}

// NewAio builds the sandbox. It starts nothing and touches nothing: the command
// line builds one only to read its table.
func NewAio(cfg config.Aio, environ []string, version string, log *slog.Logger) (*Aio, error) {
	a := &Aio{cfg: cfg, version: version, log: log}
	if err := a.build(newRunner(cfg, a.childEnv(environ), log)); err != nil {
		return nil, err
	}
	return a, nil
}

func newRunner(cfg config.Aio, env []string, log *slog.Logger) *proc.Runner {
	c := proc.Config{Log: log, Env: env}
	if !cfg.Contained {
		c.Guard = []string{"/proc/self/exe", "guard"}
	}
	return proc.New(c)
}

// build makes the services, which start their programs through the runner.
func (a *Aio) build(runner *proc.Runner) error {
	cfg, version, log := a.cfg, a.version, a.log
	a.runner, a.metrics = runner, metric.New()
	if err := a.signIn(); err != nil {
		return err
	}
	services, components := a.services()
	a.tracer = newTracer(cfg, version, log)
	var lists [][]op.Op
	for _, s := range services {
		list := s.Ops()
		for i := range list {
			list[i] = a.tracer.Op(list[i], outcome)
		}
		lists = append(lists, list)
		a.close = append(a.close, s.Close)
	}
	a.close = append(a.close, a.tracer.Close)
	table := func() *op.Table { return a.Table }
	tools := mcp.New(mcp.Config{Name: "aio", Version: version, Table: table, Log: log, MaxBody: int64(cfg.BodyLimit)})
	lists = append(lists,
		health.New(health.Config{Version: version, Started: time.Now(), Components: components, Metrics: a.metrics}).Ops(),
		rest.Docs(Title, version, table, rest.Guest, web.Files),
		rest.Page("terminal", "/terminal", "A terminal in the browser.", web.Files),
		[]op.Op{rest.Assets("vendor", "/vendor", web.Files)},
		[]op.Op{op.Handle(op.Spec{Name: "mcp", Route: "/mcp", Also: []string{"/v1/mcp"}, Tag: "mcp", Doc: "Every operation as an MCP tool, over streamable HTTP."}, tools)},
	)
	a.Table = op.NewTable(lists...)
	return nil
}

// services lists the rooms and what readiness asks of them.
func (a *Aio) services() ([]service, []health.Component) {
	a.hooks = hook.New(hook.Config{
		Runner: a.runner, Dir: a.cfg.Workspace, Log: a.log,
		Init: a.cfg.RunHookInit, PreServices: a.cfg.RunHookPreServices, PostReady: a.cfg.RunHookPostReady,
		WaitPorts: a.cfg.WaitPorts, WaitTimeout: a.cfg.WaitTimeout,
	})
	c, home, work, state := a.cfg, a.cfg.Home, a.cfg.Workspace, a.cfg.State
	documents := convert.New(convert.Config{Home: home, Workspace: work, Venv: c.Venv, Markdown: host.Beside("aio-markdown"), Runner: a.runner, Log: a.log, Proxy: outbound(c), Deny: ownAddress(c)})
	python := jupyter.New(jupyter.Config{Runner: a.runner, Venv: c.Venv, Home: home, Workspace: work, State: state, MaxSessions: c.JupyterMaxSessions, Idle: c.JupyterIdle, Warm: c.JupyterWarm, Disabled: c.DisableJupyter, Log: a.log})
	javascript := node.New(node.Config{Runner: a.runner, Home: home, Workspace: work, State: state, MaxSessions: c.NodeMaxSessions, Idle: c.NodeIdle, Log: a.log})
	chromium, desktop := a.desktop()
	shells := shell.New(shell.Config{Runner: a.runner, Home: home, Workspace: work, State: state, MaxSessions: c.ShellMaxSessions, Idle: c.ShellIdle, Log: a.log})
	bashes := bash.New(bash.Config{Runner: a.runner, Home: home, Workspace: work, State: state, MaxSessions: c.BashMaxSessions, Idle: c.BashIdle, Log: a.log})
	a.previews = preview.New(preview.Config{Deny: ownPorts(c, chromium.Ports), Log: a.log})
	services := []service{
		a.previews, // first: what is looked at ends before what shows it
		activity.New(activity.Config{Started: time.Now(), Sources: busy(shells, bashes, python, javascript)}),
		info.New(info.Config{Version: a.version, User: userName(c), Home: home, Workspace: work, TZ: c.TZ, Venv: c.Venv, Runner: a.runner}),
		a.hooks,
		bind.New(bind.Config{Bound: c.Init}),
		ticket.New(ticket.Config{Issuer: a.guard}),
		shells,
		bashes,
		file.New(file.Config{Home: home, Workspace: work, State: state, Runner: a.runner, Log: a.log, Viewer: documents}),
		watch.New(watch.Config{Home: home, Workspace: work, Log: a.log}),
		documents,
		python,
		javascript,
		code.New(code.Config{Python: python, Node: javascript}),
		chromium, // before the display that it stands on: it saves its tabs when it ends
		desktop,
	}
	components := []health.Component{
		{Name: "start", Needed: true, State: a.hooks.State},
		{Name: "display", State: desktop.State},
		{Name: "browser", State: chromium.State},
	}
	return services, components
}

// desktop is the display and the browser on it. Each asks for the other when it is used, not before.
func (a *Aio) desktop() (*browser.Service, *display.Service) {
	c := a.cfg
	var chromium *browser.Service
	desktop := display.New(display.Config{
		Runner: a.runner, State: c.State, Home: c.Home, Workspace: c.Workspace, Width: c.DisplayWidth, Height: c.DisplayHeight, Idle: c.DisplayIdle,
		Pages: web.Files, Log: a.log,
		Browser: func(ctx context.Context) (<-chan struct{}, func(), error) { return chromium.Hold(ctx) },
	})
	chromium = browser.New(browser.Config{
		Runner: a.runner, Display: desktop, Home: c.Home, State: c.State, Program: c.BrowserProgram, Idle: c.BrowserIdle, Log: a.log,
		Homepage: c.Homepage, Lang: c.BrowserLang, UILang: c.ChromeUILang, UserAgent: c.BrowserUserAgent, ExtraArgs: c.BrowserExtraArgs,
		FileDialogs: c.BrowserFileDialogs, DoH: c.DNSOverHTTPS, Ticket: a.followUp,
		Proxy: browser.Proxy{Server: c.ProxyServer, Exclude: c.ProxyExclude, Include: c.ProxyInclude},
	})
	return chromium, desktop
}

// followUp is a ticket for an address in a reply, for a caller who has nothing else to sign in with.
func (a *Aio) followUp(ctx context.Context) (string, error) {
	if id, _ := auth.FromContext(ctx); id.Via != auth.ViaTicket {
		return "", nil
	}
	ticket, _, err := a.guard.Issue(ctx)
	return ticket, err
}

// userName is who everything runs as.
func userName(cfg config.Aio) string {
	if cfg.User != "" {
		return cfg.User
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// Inside is the socket through which programs in the sandbox reach it without
// credentials, which they must never hold. Only the sandbox's own user can open
// it, who can do everything the API does anyway.
func (a *Aio) Inside() string {
	name := strings.NewReplacer(":", "-", "/", "-").Replace(a.cfg.Listen)
	return filepath.Join(a.cfg.Runtime, "aio-"+name+".sock")
}

// childEnv is what children inherit: no secrets, the home, the time zone, and
// where their own sandbox is.
func (a *Aio) childEnv(environ []string) []string {
	cfg := a.cfg
	// Where a hub wants this server is no business of another one below it.
	env := slices.DeleteFunc(config.Scrub(environ, &cfg), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"COVE_LISTEN", "COVE_EGRESS", "AIO_CONTAINED", "AIO_LISTEN_FD"}, name)
	})
	set := func(key, value string) {
		for i, pair := range env {
			if strings.HasPrefix(pair, key+"=") {
				env[i] = key + "=" + value
				return
			}
		}
		env = append(env, key+"="+value)
	}
	set("HOME", cfg.Home)
	set("AIO_API_URL", "unix:"+a.Inside())
	if cfg.TZ != "" {
		set("TZ", cfg.TZ)
	}
	return env
}

func (a *Aio) signIn() error {
	trusted, err := config.Prefixes(a.cfg.TrustedProxies)
	if err != nil {
		return err
	}
	a.trusted = trusted
	c := auth.Config{
		Token: a.cfg.AuthToken, APIKey: a.cfg.APIKey, TicketTTL: a.cfg.TicketTTL,
		Public:         func(method, path string) bool { return a.Table.Public()(method, path) },
		AllowedOrigins: a.cfg.AllowedOrigins, PublicHosts: a.cfg.PublicHosts, Trusted: trusted, Log: a.log,
	}
	if a.cfg.JWTPublicKey != "" {
		if c.JWTPublicKey, err = config.RSAPublicKey(a.cfg.JWTPublicKey); err != nil {
			return err
		}
	}
	a.signedIn = c.HasCredentials()
	c.Insecure, c.Open = a.cfg.Insecure, !a.signedIn
	if err := auth.CheckListen(a.cfg.Listen, c, a.cfg.Insecure); err != nil {
		return err
	}
	a.guard = auth.New(c)
	return nil
}

// Handlers serve the table: the first behind the sign-in, the second for callers
// inside.
func (a *Aio) Handlers() (outside, inside http.Handler) {
	calls := a.metrics.Counter("aio_requests_total", "Requests by operation and status.", "op", "status")
	took := a.metrics.Histogram("aio_request_seconds", "Time of requests by operation.", "op")
	a.metrics.Gauge("aio_children", "Living child processes.", "", func() map[string]float64 {
		return map[string]float64{"": float64(len(a.runner.Living()))}
	})
	c := rest.Config{
		Table: a.Table, Log: a.log, MaxBody: int64(a.cfg.BodyLimit), Guard: a.guard.Wrap, Front: a.front,
		Base: func(r *http.Request) *url.URL { return auth.Base(r, a.trusted) },
		Subject: func(ctx context.Context) string {
			id, _ := auth.FromContext(ctx)
			return id.Subject
		},
		Observe: func(name string, status int, d time.Duration) {
			if name == "" {
				name = "none"
			}
			calls(1, name, strconv.Itoa(status))
			took(d, name)
		},
	}
	open := c
	open.Guard = nil
	inside = rest.New(open)
	if a.private() {
		return inside, inside
	}
	return rest.New(c), inside
}

// private: who can open the socket was settled by its folder. No page of a browser
// can, and the names that a hub in front is called by are its own to judge.
func (a *Aio) private() bool { return strings.HasPrefix(a.cfg.Listen, "unix:") && !a.signedIn }

// Begin runs what belongs to the start, while the server already answers.
func (a *Aio) Begin(ctx context.Context) { a.hooks.Begin(ctx) }

// Shutdown runs the shutdown hooks; the server still answers them.
func (a *Aio) Shutdown(ctx context.Context) { a.hooks.Shutdown(ctx) }

// Close ends every service, then every process that is left.
func (a *Aio) Close() error {
	var errs []error
	for _, c := range a.close {
		errs = append(errs, c())
	}
	errs = append(errs, a.runner.Close())
	return errors.Join(errs...)
}
