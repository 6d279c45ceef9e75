// Package app assembles the sandbox: it builds the services from the configuration, one table
// from their operations, and servers from the table. It owns the order of start and stop.
package app

import (
	"cmp"
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

	"github.com/cove-sandbox/cove/internal/api/health"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/activity"
	"github.com/cove-sandbox/cove/internal/guest/agentconfig"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/bind"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/build"
	"github.com/cove-sandbox/cove/internal/guest/code"
	"github.com/cove-sandbox/cove/internal/guest/convert"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/file"
	"github.com/cove-sandbox/cove/internal/guest/glance"
	"github.com/cove-sandbox/cove/internal/guest/hook"
	"github.com/cove-sandbox/cove/internal/guest/info"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/mirror"
	"github.com/cove-sandbox/cove/internal/guest/node"
	"github.com/cove-sandbox/cove/internal/guest/observe"
	"github.com/cove-sandbox/cove/internal/guest/page"
	"github.com/cove-sandbox/cove/internal/guest/port"
	"github.com/cove-sandbox/cove/internal/guest/preview"
	"github.com/cove-sandbox/cove/internal/guest/proxy"
	"github.com/cove-sandbox/cove/internal/guest/shell"
	"github.com/cove-sandbox/cove/internal/guest/skill"
	"github.com/cove-sandbox/cove/internal/guest/watch"
	"github.com/cove-sandbox/cove/internal/guest/workbench"
	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
	"github.com/cove-sandbox/cove/web"
)

// Title of the API documentation.
const Title = "Cove sandbox"

// Aio is the sandbox: all its services and the table of their operations.
type Aio struct {
	Table *op.Table

	cfg      config.Aio
	version  string
	log      *slog.Logger
	stderr   *slog.Logger      // the log without files
	logs     *logDir           // nil if no log files are written
	agents   agentconfig.Files // written before any program starts
	runner   *proc.Runner
	guard    *auth.Guard
	secured  bool  // callers must authenticate
	users    []int // users that may use the loopback without credentials; nil means all
	trusted  []netip.Prefix
	hooks    *hook.Service
	browser  *browser.Service
	shutdown []hook.Hook // of the settings
	skills   *skill.Service
	observer *observe.Service
	proxy    *proxy.Service
	relay    *relay.Relay // passes connections of programs to the proxy; nil if only the table is needed
	previews *preview.Service
	activity *activity.Service
	sites    *sites
	tracer   *span.Tracer // nil if tracing is off
	metrics  *metric.Registry
	tools    *mcp.Handler
	browsing func() bool    // whether the browser runs
	close    []func() error // in the order of the shutdown
}

// service is the common interface of all services of the sandbox.
type service interface {
	Ops() []op.Op
	Close() error
}

// NewAio builds the sandbox. It starts nothing and writes nothing, because the command line builds
// a sandbox only to read its table.
func NewAio(cfg config.Aio, environ []string, version string, log *slog.Logger) (*Aio, error) {
	a := &Aio{cfg: cfg, version: version, log: log}
	env := a.childEnv(environ)
	if err := a.build(newRunner(cfg, env, log), env); err != nil {
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

// build builds the services, which start their programs through the runner with the environment,
// and the table.
func (a *Aio) build(runner *proc.Runner, env []string) error {
	cfg, version := a.cfg, a.version
	a.runner, a.metrics = runner, metric.New()
	a.openLogs()
	log := a.log
	if err := a.newGuard(); err != nil {
		return err
	}
	var err error
	if a.shutdown, err = hook.ParseShutdown(cfg.ShutdownHooks, cfg.ShutdownTimeout); err != nil {
		return err
	}
	if err := a.planPublicSettings(env); err != nil {
		return err
	}
	services, components := a.services(env)
	if cfg.Build {
		services = append(services, build.New(build.Config{Runner: a.runner, EndOthers: proc.EndOthers}))
	}
	if err := errors.Join(a.proxy.CheckConfig(), a.browser.CheckConfig()); err != nil {
		return err
	}
	a.tracer = newTracer(cfg, version, log)
	var lists [][]op.Op
	for _, s := range services {
		list := s.Ops()
		for i := range list {
			list[i] = a.activity.Record(a.tracer.Op(installation(cfg.Installing).explain(a.disable(list[i])), outcome))
		}
		lists = append(lists, list)
		a.close = append(a.close, s.Close)
	}
	a.close = append(a.close, a.tracer.Close)
	if a.logs != nil {
		a.close = append(a.close, a.logs.close)
	}
	table := func() *op.Table { return a.Table }
	tools, servers := a.newTools(runner)
	a.tools = tools
	a.close = append([]func() error{tools.Close}, a.close...) // closed first, because its calls use the services
	lists = append(lists,
		health.New(health.Config{Version: version, Started: time.Now(), Components: components, Metrics: a.metrics}).Ops(),
		rest.Docs(Title, version, table, rest.Guest, web.Sandbox),
		watchElsewhere(rest.Home("home", "The sandbox on one page, with its tools side by side.", web.Sandbox, a.sites.sources()...)),
		rest.Page("watch", "/watch", "Read-only view of the sandbox, for people with a watch link.", web.Sandbox),
		rest.Page("activity", "/activity", "Activity in the sandbox, step by step.", web.Sandbox),
		rest.Page("guide", "/guide", "How to use Cove, with examples.", web.Sandbox),
		rest.Page("files", "/files", "The files of the sandbox, with an editor.", web.Sandbox),
		[]op.Op{rest.Assets("workbench", "/workbench", web.Sandbox), rest.Assets("box", "/box", web.Sandbox)},
		rest.Page("terminal", "/terminal", "A terminal in the browser.", web.Sandbox),
		[]op.Op{op.Handle(op.Spec{Name: "mcp", Content: op.ContentAPI, Route: "/mcp", Also: []string{"/v1/mcp"},
			Tag: "mcp", Doc: "Every operation as an MCP tool, over streamable HTTP."}, serveTools(tools, servers))},
		servers.Ops(),
		publicPaths(runner),
		notebookPages(cfg.DisableJupyter),
	)
	a.Table = op.NewTable(lists...)
	return nil
}

// services builds the services, and the components of readiness.
func (a *Aio) services(env []string) ([]service, []health.Component) {
	a.hooks = hook.New(hook.Config{
		Runner: a.runner, Dir: a.cfg.Workspace, Log: a.log,
		Init: a.cfg.RunHookInit, PreServices: a.cfg.RunHookPreServices, PostReady: a.cfg.RunHookPostReady,
		WaitPorts: foreignPorts(a.cfg.WaitPorts), WaitTimeout: a.cfg.WaitTimeout, Strict: a.cfg.RunHooksStrict, AtShutdown: a.shutdown,
	})
	c, home, work, state := a.cfg, a.cfg.Home, a.cfg.Workspace, a.cfg.State
	documents := convert.New(convert.Config{Home: home, Workspace: work, Venv: c.Venv,
		Markdown: findHelper, Runner: a.runner, Log: a.logOf("convert"), Proxy: selectProxy(c),
		Deny: isOwnAddress(c.Listen, c.Loopback)})
	python := jupyter.New(jupyter.Config{Runner: a.runner, Venv: c.Venv, Python: c.Python, Version: c.PythonVersion,
		Home: home, Workspace: work, State: state, MaxSessions: c.JupyterMaxSessions, Idle: c.JupyterIdle,
		Warm: c.JupyterWarm, Disabled: c.DisableJupyter, Packaged: c.Contained, Log: a.logOf("jupyter")})
	javascript := node.New(node.Config{Runner: a.runner, Version: c.NodeVersion, Home: home, Workspace: work,
		State: state, MaxSessions: c.NodeMaxSessions, Idle: c.NodeIdle, Log: a.logOf("nodejs")})
	chromium, desktop := a.desktop()
	a.browsing = func() bool { state, _ := chromium.State(); return state == string(proc.Ready) }
	a.browser = chromium
	shells := shell.New(shell.Config{Runner: a.runner, Home: home, Workspace: work, State: state,
		MaxSessions: c.ShellMaxSessions, Idle: c.ShellIdle, Log: a.logOf("shell"), Ran: a.recordTyped})
	bashes := bash.New(bash.Config{Runner: a.runner, Home: home, Workspace: work, State: cmp.Or(c.SessionLogs, state),
		MaxSessions: c.BashMaxSessions, Idle: c.BashIdle, Log: a.logOf("bash")})
	reserved := isReservedPort(c)
	ports := port.New(port.Config{Hidden: reserved, Server: os.Getpid(), Owned: chromium.PIDs})
	a.previews = preview.New(preview.Config{Deny: reserved, Open: func() (list []int) {
		for _, p := range ports.Open() {
			list = append(list, p.Port)
		}
		return list
	}, Log: a.log})
	a.proxy = a.newProxy(reserved)
	a.skills = skill.New(skill.Config{Home: home, Workspace: work, State: state, Venv: c.Venv,
		Paths: splitPaths(c.SkillsPath), Runner: a.runner, Log: a.logOf("skills")})
	a.observer = observe.New(observe.Config{
		State: state, Disks: []string{"/", home, work, "/tmp"}, Log: a.log,
		Components: []observe.Component{{Name: "display", State: desktop.State}, {Name: "browser", State: a.browserState}},
	})
	benches := a.newWorkbench()
	watches := watch.New(watch.Config{Home: home, Workspace: work, Log: a.log})
	commands := a.newDesktop(desktop)
	daemon := a.newEnvd(watches, commands)
	a.activity = a.newActivity(activitySources(shells, bashes, python, javascript, daemon), desktop, env)
	services := []service{
		a.previews, // closed first, because it shows pages of the others
		benches,
		a.activity,
		glance.New(glance.Config{Screen: desktop.Glance, Text: terminalText(shells), Step: a.latestStep}),
		mirror.New(mirror.Config{Screen: desktop.Glance, Text: terminalText(shells), Steps: a.followSteps}),
		info.New(info.Config{Version: a.version, User: userName(c), Home: home, Workspace: work, TZ: c.TZ, Venv: c.Venv, Runner: a.runner}),
		a.hooks,
		bind.New(bind.Config{Bound: c.Init}),
		host.Tickets{Issuer: a.guard},
		shells,
		bashes,
		file.New(file.Config{Home: home, Workspace: work, State: state, Runner: a.runner, Log: a.logOf("file"), Viewer: documents}),
		watches,
		daemon,
		commands,
		a.newInterpreter(python, javascript, bashes, daemon.UserHome),
		documents,
		python,
		javascript,
		code.New(code.Config{Python: python, Node: javascript}),
		a.skills,
		a.observer,
		ports,
		gated{page.New(page.Config{Browser: chromium, Runner: a.runner, Home: home, Workspace: work, Log: a.logOf("page")}), desktop.Gate},
		chromium, // closed before its display, because it saves its tabs
		desktop,
		a.proxy, // closed last: running programs may still use it
	}
	components := []health.Component{
		{Name: "start", Needed: true, State: a.hooks.State},
		{Name: "display", State: installation(a.cfg.Installing).explainState(desktop.State)},
		{Name: "browser", State: installation(a.cfg.Installing).explainState(a.browserState)},
	}
	return services, components
}

// gated is a service whose operations are wrapped by a gate.
type gated struct {
	service
	gate func(op.Op) op.Op
}

func (g gated) Ops() []op.Op {
	list := g.service.Ops()
	for i := range list {
		list[i] = g.gate(list[i])
	}
	return list
}

// desktop returns the display and the browser on it. Each starts the other on first use.
func (a *Aio) desktop() (*browser.Service, *display.Service) {
	c := a.cfg
	var chromium *browser.Service
	desktop := display.New(display.Config{
		Runner: a.runner, State: c.State, Home: c.Home, Workspace: c.Workspace, Width: c.DisplayWidth,
		Height: c.DisplayHeight, Idle: c.DisplayIdle,
		Pages: web.Sandbox, Log: a.logOf("display"),
		Browser: func(ctx context.Context) (<-chan struct{}, func(), error) {
			if c.DisableBrowser {
				return nil, nil, errDisabled("browser", "DISABLE_BROWSER")
			}
			return chromium.Hold(ctx)
		},
	})
	chromium = browser.New(browser.Config{
		Runner: a.runner, Display: desktop, Home: c.Home, State: c.State, Program: c.BrowserProgram, Idle: c.BrowserIdle, Log: a.logOf("browser"),
		Homepage: c.Homepage, Lang: c.BrowserLang, UILang: c.ChromeUILang, UserAgent: c.BrowserUserAgent, ExtraArgs: c.BrowserExtraArgs,
		Folder: c.BrowserDownloads, Block: c.BrowserBlocklist, Allow: c.BrowserAllowlist, Cookies: c.BrowserCookies,
		Output:      a.outputOf("browser"),
		FileDialogs: c.BrowserFileDialogs, DoH: c.DNSOverHTTPS, Ticket: a.issueTicket,
		Proxy: a.browserProxy(), Trust: func() []string { return a.proxy.BrowserSwitches() },
	})
	return chromium, desktop
}

// componentFolders are the folders of components that are not installed in the sandbox itself:
// those of its image, and those that a hub provides.
var componentFolders = []string{"/usr/local/lib/cove/components", "/run/components"}

// newWorkbench returns the service for VS Code and JupyterLab.
func (a *Aio) newWorkbench() *workbench.Service {
	c := a.cfg
	return workbench.New(workbench.Config{
		Runner: a.runner, Home: c.Home, Workspace: c.Workspace, State: c.State, Components: append([]string{c.Components}, componentFolders...),
		Pages: web.Sandbox, Idle: c.WorkbenchIdle, Venv: c.Venv, NoCode: c.DisableCodeServer, NoLab: c.DisableJupyter, Log: a.logOf("workbench"),
	})
}

// issueTicket returns a ticket for a URL in a response, if the caller has authenticated with a
// ticket and therefore has no other credential.
func (a *Aio) issueTicket(ctx context.Context) (string, error) {
	if id, _ := auth.FromContext(ctx); id.Via != auth.ViaTicket {
		return "", nil
	}
	ticket, _, err := a.guard.Issue(ctx)
	return ticket, err
}

// userName returns the user that runs all programs.
func userName(cfg config.Aio) string {
	if cfg.User != "" {
		return cfg.User
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// Inside implements host.Program. Programs in the sandbox need no credentials at these addresses,
// because they have the same permissions as the API.
func (a *Aio) Inside() []string {
	list := []string{"unix:" + a.socket()}
	if a.cfg.Loopback != "" {
		list = append(list, a.cfg.Loopback)
	}
	return list
}

// socket returns the path of the socket that only the sandbox's own user can open.
func (a *Aio) socket() string {
	name := strings.NewReplacer(":", "-", "/", "-").Replace(a.cfg.Listen)
	return filepath.Join(a.cfg.Runtime, "aio-"+name+".sock")
}

// childEnv returns the environment of children: without secrets, but with the home directory,
// the time zone and the URL of the sandbox.
func (a *Aio) childEnv(environ []string) []string {
	cfg := a.cfg
	// These are settings of the hub for this server. They do not apply to nested servers.
	env := slices.DeleteFunc(config.Scrub(environ, &cfg), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"COVE_LISTEN", "COVE_EGRESS", "AIO_CONTAINED", "AIO_LISTEN_FD",
			"AIO_DOOR", "AIO_LOOPBACK"}, name)
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
	for _, agents := range []map[string]string{cfg.Codex, cfg.OpenCode} { // they may be from the file
		for name, value := range agents {
			set(name, value)
		}
	}
	set("HOME", cfg.Home)
	set("AIO_API_URL", "unix:"+a.socket())
	if cfg.TZ != "" {
		set("TZ", cfg.TZ)
	}
	return env
}

// newGuard creates the guard that authenticates callers.
func (a *Aio) newGuard() error {
	trusted, err := config.Prefixes(a.cfg.TrustedProxies)
	if err != nil {
		return err
	}
	a.trusted = trusted
	c := auth.Config{
		Token: a.cfg.AuthToken, SandboxKeys: nonEmpty(a.cfg.APIKey, a.cfg.SandboxAPIKey), TicketTTL: a.cfg.TicketTTL,
		Issuer: a.cfg.JWTIssuer, Audience: a.cfg.JWTAudience,
		Public:         func(method, path string) bool { return a.Table.Public(method, path) },
		AllowedOrigins: a.cfg.AllowedOrigins, PublicHosts: a.cfg.PublicHosts, Trusted: trusted, Log: a.log,
	}
	if a.cfg.JWTPublicKey != "" {
		if c.JWTPublicKey, err = config.RSAPublicKey(a.cfg.JWTPublicKey); err != nil {
			return err
		}
	}
	a.sites = a.newSites()
	a.sites.signIn(&c)
	a.secured = c.HasCredentials()
	c.Insecure, c.Open = a.cfg.Insecure, !a.secured
	if err := auth.CheckListen(a.cfg.Listen, c, a.cfg.Insecure); err != nil {
		return err
	}
	if a.users, _, err = localUsers(a.cfg); err != nil {
		return err
	}
	if auth.Private(a.cfg.Listen) {
		if c.Users, err = auth.LocalUsers(a.cfg.LocalUsers, config.Sudoer()); err != nil {
			return err
		}
	}
	a.guard = auth.New(c)
	a.sites.guard = a.guard
	return nil
}

// splitPaths also splits the elements of a list of paths at colons.
func splitPaths(list []string) (out []string) {
	for _, entry := range list {
		out = append(out, nonEmpty(strings.Split(entry, ":")...)...)
	}
	return out
}

func nonEmpty(list ...string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

// Handlers implements host.Program. The outside handler authenticates callers.
func (a *Aio) Handlers() (outside, inside http.Handler) {
	calls := a.metrics.Counter("aio_requests_total", "Number of requests by operation and status.", "op", "status")
	took := a.metrics.Histogram("aio_request_seconds", "Duration of requests by operation.", "op")
	a.metrics.Gauge("aio_children", "Number of running child processes.", "", func() map[string]float64 {
		return map[string]float64{"": float64(len(a.runner.Living()))}
	})
	a.publishUsage()
	c := rest.Config{
		Table: a.Table, Log: a.log, MaxBody: int64(a.cfg.BodyLimit), Guard: a.guard.Wrap, Front: a.front,
		Base: func(r *http.Request) *url.URL { return auth.Base(r, a.trusted) },
		Subject: func(ctx context.Context) string {
			id, _ := auth.FromContext(ctx)
			return id.Subject
		},
		Admit: admit, Isolate: isolate, HidePath: auth.HidePass,
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
	c.Linked, c.Guard = a.guard.Linked, func(next http.Handler) http.Handler { return a.guard.Wrap(a.sites.apply(next)) }
	if a.private() {
		return trustCaller(inside), a.guardLoopback(inside)
	}
	return rest.New(c), a.guardLoopback(inside)
}

// private reports whether only file permissions control access: the server listens on a Unix
// socket, without credentials. Web pages cannot open it, and a hub in front of it checks the host
// name.
func (a *Aio) private() bool { return strings.HasPrefix(a.cfg.Listen, "unix:") && !a.secured }

// firstSample is the delay of the first sample of the observation, so that it does not slow down
// the start.
const firstSample = time.Second

// Begin implements host.Program: it runs the start hooks and registers skills while the server
// already accepts requests.
func (a *Aio) Begin(ctx context.Context) {
	a.hooks.Begin(ctx)
	a.skills.Begin(ctx)
	select {
	case <-ctx.Done():
	case <-time.After(firstSample):
		a.observer.Begin()
	}
}

// Shutdown implements host.Program: it runs the shutdown hooks while the server still accepts requests.
func (a *Aio) Shutdown(ctx context.Context) { a.hooks.Shutdown(ctx) }

// Close implements host.Program: it closes all services, and then ends all remaining processes.
func (a *Aio) Close() error {
	var errs []error
	for _, c := range a.close {
		errs = append(errs, c())
	}
	errs = append(errs, a.runner.Close())
	return errors.Join(errs...)
}
