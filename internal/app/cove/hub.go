//go:build linux

package cove

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/health"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
	"github.com/cove-sandbox/cove/web"
)

// Title is the hub's in documents.
const Title = "Cove hub"

// Where sandboxes find what the hub brings along.
const (
	aioInside  = isolate.Programs + "/aio" // and next to it, what aio itself calls
	venvInside = isolate.Venv
)

// Hub is the program's hub: the service behind its sign-in and its HTTP surface.
type Hub struct {
	Table *op.Table

	cfg      config.Cove
	log      *slog.Logger
	hub      *hub.Hub
	provider sandbox.Provider
	guard    *auth.Guard
	trusted  []netip.Prefix
	metrics  *metric.Registry
	tools    *mcp.Handler
	sessions *upstream.Sessions // with the tools of sandboxes
	address  string             // URL in replies to clients of the socket; empty: that of the request
}

// New builds the hub on a provider, which it closes with itself. Without a
// provider there is only the table.
func New(cfg config.Cove, provider sandbox.Provider, version string, log *slog.Logger) (*Hub, error) {
	h := &Hub{cfg: cfg, log: log, provider: provider, metrics: metric.New(),
		sessions: upstream.NewSessions(upstream.SessionsConfig{Name: "cove", Version: version})}
	sign, err := signIn(cfg, log)
	if err != nil {
		return nil, err
	}
	h.trusted = sign.Trusted
	c, err := hubConfig(cfg)
	if err != nil {
		return nil, err
	}
	c.Provider, c.Version, c.Log, c.Metrics = provider, version, log, h.metrics
	c.SandboxTools, c.Sessions = h.sessions, siteSessions{h}
	if c.Claims, err = claimsOf(cfg, provider); err != nil {
		return nil, err
	}
	if h.hub, err = hub.Open(c); err != nil {
		return nil, err
	}
	sign.Public = func(method, path string) bool { return h.Table.Public(method, path) }
	h.hub.SignIn(&sign)
	sign.Insecure, sign.Open = cfg.Insecure, !sign.HasCredentials()
	if err := auth.CheckListen(cfg.Listen, sign, cfg.Insecure); err != nil {
		return nil, errors.Join(err, h.hub.Close())
	}
	h.guard = auth.New(sign)
	h.tools = mcp.New(mcp.Config{
		Name: "cove", Version: version, Instructions: hub.ToolInstructions, Tools: h.hub.Tools,
		Visible: h.hub.SeesTool, Fixed: h.hub.LimitTools, Around: h.hub.AroundTool,
		MaxBody: int64(cfg.ToolLimit), MaxSessions: cfg.MCPTotal, MaxOwnSessions: cfg.MCPSessions, Log: log,
	})
	components := []health.Component{{Name: "hub", Needed: true, State: h.hub.State}}
	table := func() *op.Table { return h.Table }
	h.Table = op.NewTable(
		h.hub.Ops(),
		[]op.Op{h.hub.ToolsOp(h.tools), h.doctorOp()},
		// A viewer may use a browser; metrics are about all tenants.
		access(host.Tickets{Issuer: h.guard}.Ops(), "auth_create_ticket", op.AccessRead),
		access(health.New(health.Config{Version: version, Started: time.Now(), Components: components,
			Metrics: h.metrics}).Ops(), "health_metrics", op.AccessAdmin),
		rest.Docs(Title, version, table, rest.Hub, web.Hub),
		rest.Home("hub", "The dashboard of the hub.", web.Hub),
		rest.Page("guide", "/guide", "How to use Cove, with examples.", web.Hub),
		[]op.Op{rest.Assets("activity", "/activity", web.Hub)}, // the dashboard shows records with them
	)
	return h, nil
}

// hubConfig turns the program's settings into the service's.
func hubConfig(cfg config.Cove) (hub.Config, error) {
	private, err := config.Prefixes(cfg.Private)
	return hub.Config{
		State: cfg.State, Environments: cfg.Environments,
		Defaults: hub.Defaults{
			Environment: cfg.DefaultEnvironment, Image: cfg.DefaultImage, Timeout: cfg.Timeout,
			IdleTimeout: cfg.IdleTimeout, IdlePolicy: sandbox.IdlePolicy(cfg.IdlePolicy), Keep: cfg.Keep,
			Resources: resources(cfg), Network: sandbox.Network{Mode: sandbox.NetworkMode(cfg.Network)}, Pool: cfg.Pool,
		},
		MaxTimeout: cfg.MaxTimeout, MaxIdleTimeout: cfg.MaxIdleTimeout, Domains: cfg.Domains,
		PublicHosts: cfg.PublicHosts, PublicPorts: cfg.PublicPorts, Private: private,
		Tenants:      hub.Tenants{Enabled: cfg.Tenants, Keys: cfg.Keys, MaxShare: cfg.MaxShare, Limits: tenantLimits(cfg)},
		KeepActivity: cfg.KeepActivity, Creates: cfg.Creates, RequestMemory: int64(cfg.RequestMemory),
		Audit: hub.Audit{Enabled: cfg.Audit, KeyFile: cfg.AuditKeyFile, Forward: cfg.AuditForward,
			ForwardHeaders: cfg.AuditForwardHeaders},
		Traces: hub.Traces{Endpoint: cfg.OTLPEndpoint, Headers: cfg.OTLPHeaders},
	}, err
}

// tenantLimits are the limits of tenants for which the keys file sets none.
// resources are those of a sandbox that asks for nothing else.
func resources(cfg config.Cove) sandbox.Resources {
	return sandbox.Resources{MemoryLimit: int64(cfg.MemoryLimit), Disk: int64(cfg.DiskLimit),
		DiskRate: int64(cfg.DiskRate), Bandwidth: int64(cfg.Bandwidth)}
}

func tenantLimits(cfg config.Cove) hub.Limits {
	return hub.Limits{
		Sandboxes: cfg.TenantSandboxes, CPU: int64(cfg.TenantCPU * 1000), Memory: int64(cfg.TenantMemory), Disk: int64(cfg.TenantDisk),
		CreateRate: cfg.TenantRate, Burst: cfg.TenantBurst, Calls: cfg.TenantCalls, RequestMemory: int64(cfg.TenantRequests),
	}
}

// bodyTimeout is how long the body of a request to the hub itself may take.
const bodyTimeout = 30 * time.Second

// withoutPass removes a session from the path of a request that is recorded.
func withoutPass(s rest.Served) rest.Served {
	if path := auth.HidePass(s.Request.URL.Path); path != s.Request.URL.Path {
		s.Request = s.Request.Clone(s.Request.Context())
		s.Request.URL.Path = path
	}
	return s
}

// siteSessions starts sessions on sites of sandboxes. The guard is made after the hub.
type siteSessions struct{ hub *Hub }

func (s siteSessions) IssueFor(ctx context.Context, site string) (string, error) {
	return s.hub.guard.IssueFor(ctx, site)
}

func (s siteSessions) Pass(ctx context.Context, site string) string {
	return s.hub.guard.Pass(ctx, site)
}

// access sets the required access of an operation in a list.
func access(list []op.Op, name string, a op.Access) []op.Op {
	for i := range list {
		if list[i].Name == name {
			list[i].Access = a
		}
	}
	return list
}

// signIn is how callers authenticate, apart from tenants' keys and links.
func signIn(cfg config.Cove, log *slog.Logger) (auth.Config, error) {
	// Clients and the hub read the same variables. A tenant's key must not become
	// the operator's, with all rights and no expiry.
	if hub.IsKey(cfg.APIKey) || hub.IsKey(cfg.AuthToken) {
		return auth.Config{}, errors.New("COVE_API_KEY or COVE_TOKEN holds a tenant's key, which is for clients; " +
			"unset it where the hub is started")
	}
	trusted, err := config.Prefixes(cfg.TrustedProxies)
	if err != nil {
		return auth.Config{}, err
	}
	hosts := cfg.PublicHosts
	for _, d := range cfg.Domains {
		hosts = append(hosts[:len(hosts):len(hosts)], "*."+d)
	}
	c := auth.Config{
		Token: cfg.AuthToken, APIKey: cfg.APIKey, TicketTTL: cfg.TicketTTL, Issuer: cfg.JWTIssuer, Audience: cfg.JWTAudience,
		AllowedOrigins: cfg.AllowedOrigins, PublicHosts: hosts, Trusted: trusted, Log: log,
		Variables: []string{"COVE_TENANTS", "JWT_PUBLIC_KEY", "COVE_TOKEN", "COVE_API_KEY"},
	}
	if auth.Private(cfg.Listen) {
		if c.Users, err = auth.LocalUsers(cfg.LocalUsers, config.Sudoer()); err != nil {
			return c, err
		}
	}
	if cfg.JWTPublicKey != "" {
		c.JWTPublicKey, err = config.RSAPublicKey(cfg.JWTPublicKey)
	}
	return c, err
}

// checkSettings refuses settings before anything is opened, above all a hub that
// everybody could use.
func checkSettings(cfg config.Cove) error {
	sign, err := signIn(cfg, nil)
	if err != nil {
		return err
	}
	c, err := hubConfig(cfg)
	if err != nil {
		return err
	}
	for _, to := range c.Audit.Forward {
		if err := hub.CheckReceiver(to); err != nil {
			return err
		}
	}
	keys, err := c.Tenants.Enforced()
	if err != nil || keys {
		return err
	}
	if cfg.ReplicaAddress != "" && !sign.HasCredentials() {
		return errors.New("replicas need authentication, since a connection that another one forwards has no local user: set tenants to true")
	}
	return auth.CheckListen(cfg.Listen, sign, cfg.Insecure)
}

// Handlers return the handler of the table, which also serves the hub's own socket.
func (h *Hub) Handlers() (outside, inside http.Handler) {
	calls := h.metrics.Counter("cove_requests_total", "Requests by operation and status.", "op", "status")
	took := h.metrics.Histogram("cove_request_seconds", "Time of requests by operation.", "op")
	all := rest.New(rest.Config{
		Table: h.Table, Dialect: rest.Hub, Front: h.hub.Front, Log: h.log, MaxBody: int64(h.cfg.BodyLimit),
		BodyTimeout: bodyTimeout, Guard: h.guard.Wrap, Linked: h.guard.Linked,
		Base:   func(r *http.Request) *url.URL { return auth.Base(r, h.trusted) },
		Buffer: func(ctx context.Context) rest.Buffer { return h.hub.Buffer(ctx) },
		Caller: h.hub.Caller, Admit: h.hub.Admit, HidePath: auth.HidePass,
		Served: func(s rest.Served) { h.hub.Served(hub.Visit(withoutPass(s))) },
		Observe: func(name string, status int, d time.Duration) {
			if name == "" {
				name = "none"
			}
			calls(1, name, strconv.Itoa(status))
			took(d, name)
		},
	})
	return all, h.addressed(all)
}

// addressed lets replies to clients of the socket contain the address of a hub that serves HTTPS.
func (h *Hub) addressed(next http.Handler) http.Handler {
	scheme, host, ok := strings.Cut(h.address, "://")
	if !ok {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Forwarded-Host") == "" { // no proxy is in between
			r.Header.Set("X-Forwarded-Proto", scheme)
			r.Header.Set("X-Forwarded-Host", host)
		}
		next.ServeHTTP(w, r)
	})
}

// Inside is the address of the socket next to the hub's own. Only the user that runs the hub
// can open it.
func (h *Hub) Inside() []string {
	if strings.HasPrefix(h.cfg.Listen, "unix:") {
		return nil
	}
	return []string{"unix:" + filepath.Join(h.cfg.State, login.SocketFile)}
}

// Begin takes up the sandboxes that exist.
func (h *Hub) Begin(ctx context.Context) { h.hub.Begin(ctx) }

// Shutdown has nothing to announce.
func (h *Hub) Shutdown(context.Context) {}

// Close closes the hub and its provider. The sandboxes live on.
func (h *Hub) Close() error {
	return errors.Join(h.hub.Close(), h.sessions.Close(), h.provider.Close())
}

// openProvider opens the provider of sandboxes.
func openProvider(ctx context.Context, cfg config.Cove, log *slog.Logger) (sandbox.Provider, error) {
	if cfg.Provider == "kubernetes" { // whose programs are in an image
		return openKubernetes(ctx, cfg, log)
	}
	aio, err := findAio(cfg.Aio)
	if err != nil {
		return nil, err
	}
	if cfg.Provider == "docker" {
		return openDocker(ctx, cfg, aio, log)
	}
	c := local.Config{
		Dir: cfg.State, Init: findInit(), Sudo: host.Beside("cove-init"), Command: []string{aioInside, "serve"},
		DoorEnv:    "AIO_DOOR",
		CommandEnv: map[string]string{"GOMAXPROCS": "1", "AIO_ALONE": "true", "AIO_LISTEN_FD": strconv.Itoa(isolate.ListenFD)},
		Binds:      []local.Bind{{Source: aio, Target: aioInside}}, Env: map[string]string{"AIO_LOG_LEVEL": "warn",
			"AIO_CONTAINED": "true", "AIO_LOOPBACK": "127.0.0.1:8080"},
		Defaults:   resources(cfg),
		Runsc:      findRunsc(cfg.Runsc),
		VolumeSize: int64(cfg.VolumeLimit),
		FirstID:    uint32(cfg.FirstID), Cgroup: cfg.Cgroup, Spares: 8, MaxSpares: 128, Log: log,
		Images: local.ImageConfig{
			Dir: filepath.Join(cfg.State, "images"), Insecure: cfg.InsecureRegistries, Private: cfg.PrivateRegistries, AuthFile: cfg.RegistryAuth,
			Proxy: http.ProxyFromEnvironment,
		},
	}
	if host.IsFile(markdownReader(aio)) {
		c.Binds = append(c.Binds, local.Bind{Source: markdownReader(aio), Target: markdownReader(aioInside)})
	}
	if cfg.Venv != "" {
		c.Binds = append(c.Binds, local.Bind{Source: cfg.Venv, Target: venvInside})
		c.Env["AIO_VENV"], c.Env["AIO_PYTHON"] = venvInside, isolate.Python
	}
	if cfg.Components != "" {
		c.Binds = append(c.Binds, local.Bind{Source: cfg.Components, Target: isolate.Components})
	}
	p, err := local.Open(ctx, c)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return p, nil
}

// findInit returns how to start the first process of a sandbox: the small program for
// that, or else this one.
func findInit() []string {
	if small := host.Beside("cove-init"); small != "" {
		return []string{small}
	}
	return []string{"/proc/self/exe", IsolateInit}
}

// findRunsc finds the program of gVisor; empty if it is not installed.
func findRunsc(given string) string {
	for _, path := range []string{given, host.Beside("runsc"), "/usr/local/bin/runsc", "/usr/bin/runsc"} {
		// A sandbox gets the file itself.
		if file, err := filepath.EvalSymlinks(path); path != "" && err == nil && host.IsFile(file) {
			return file
		}
	}
	return ""
}

// markdownReader is the program next to an aio that converts web pages for it.
func markdownReader(aio string) string { return filepath.Join(filepath.Dir(aio), "aio-markdown") }

// IsolateInit is the argument with which the program starts itself as the first process
// of a sandbox.
const IsolateInit = "isolate-init"

// findAio finds the program that sandboxes run.
func findAio(given string) (string, error) {
	if given != "" {
		if _, err := os.Stat(given); err != nil {
			return "", fmt.Errorf("find the aio program: %w", err)
		}
		return given, nil
	}
	if aio := host.Beside("aio"); aio != "" {
		return aio, nil
	}
	return "", errors.New("no aio program next to this one; " + advise("run make build", "reinstall the package") + ", or set --aio")
}
