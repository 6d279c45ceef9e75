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
	"regexp"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/health"
	"github.com/cove-sandbox/cove/internal/guest/ticket"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/metric"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pool"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/tenant"
	"github.com/cove-sandbox/cove/web"
)

// Title is the hub's in documents.
const Title = "Cove hub"

// Where sandboxes find what the hub brings along.
const (
	aioInside  = "/run/bin/aio" // and beside it, what aio itself calls
	venvInside = "/run/venv"
)

// Hub is the service that hands out sandboxes.
type Hub struct {
	Table *op.Table

	cfg      config.Cove
	log      *slog.Logger
	hub      *hub.Hub
	provider sandbox.Provider
	pool     *pool.Pool // nil without a provider
	guard    *auth.Guard
	trusted  []netip.Prefix
	metrics  *metric.Registry
	many     many
}

// New builds the hub on a provider, which it closes at its own end. Without
// one there is only the table.
func New(cfg config.Cove, provider sandbox.Provider, version string, log *slog.Logger) (*Hub, error) {
	h := &Hub{cfg: cfg, log: log, provider: provider, metrics: metric.New()}
	private, err := config.Prefixes(cfg.Private)
	if err != nil {
		return nil, err
	}
	if err := h.many.open(cfg, provider != nil, version, log); err != nil {
		return nil, err
	}
	inner := provider
	if provider != nil {
		h.pool = pool.New(pool.Config{
			Provider: inner, Size: func() map[string]pool.Want { return h.hub.Pools() }, Log: log,
			Bind: pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) { return inner.Endpoint(ctx, id, 0) }),
		})
		provider = pool.Wrap(inner, h.pool)
		h.provider = provider
	}
	h.hub = hub.New(hub.Config{
		Provider: provider, Version: version, Environments: cfg.Environments,
		Defaults: hub.Defaults{
			Environment: cfg.DefaultEnvironment, Image: cfg.DefaultImage, Timeout: cfg.Timeout, IdleTimeout: cfg.IdleTimeout, IdlePolicy: sandbox.IdlePolicy(cfg.IdlePolicy),
			Resources: sandbox.Resources{MemoryLimit: int64(cfg.MemoryLimit), Disk: int64(cfg.DiskLimit)}, Network: sandbox.Network{Mode: sandbox.NetworkMode(cfg.Network)}, Pool: cfg.Pool,
		},
		MaxTimeout: cfg.MaxTimeout, MaxIdleTimeout: cfg.MaxIdleTimeout, Domains: cfg.Domains, Private: private, Log: log, Metrics: h.metrics,
		Tenants: h.many.tenants, Quota: h.many.quota(cfg.Creates), Audit: h.many.audit, AuditDir: h.many.auditDir, AuditKey: h.many.auditKey,
		Images: importer(inner), Scratch: h.many.scratch, Secrets: h.many.secrets, Authority: h.many.authority, Tracer: h.many.tracer,
	})
	if err := h.signIn(); err != nil {
		h.many.close()
		return nil, err
	}
	components := []health.Component{{Name: "hub", Needed: true, State: h.hub.State}}
	table := func() *op.Table { return h.Table }
	h.Table = op.NewTable(
		h.hub.Ops(),
		// Whoever may look may do so in a browser; the numbers are about all tenants.
		access(ticket.New(ticket.Config{Issuer: h.guard}).Ops(), "auth_create_ticket", op.AccessRead),
		access(health.New(health.Config{Version: version, Started: time.Now(), Components: components, Metrics: h.metrics}).Ops(), "health_metrics", op.AccessAdmin),
		rest.Docs(Title, version, table, rest.Hub, web.Files),
		[]op.Op{rest.Assets("vendor", "/vendor", web.Files)},
	)
	return h, nil
}

// access says what an operation of another's list takes here.
func access(list []op.Op, name string, a op.Access) []op.Op {
	for i := range list {
		if list[i].Name == name {
			list[i].Access = a
		}
	}
	return list
}

// keyForm is how tenants' keys and links look.
var keyForm = regexp.MustCompile(`^cove_[a-z2-7]{12}_[0-9A-Za-z]{43}$|^` + tenant.SharePrefix)

func (h *Hub) signIn() error {
	// Clients and the hub read the same variables; a tenant's key must not open
	// the hub's own door, with all rights and for ever.
	for _, secret := range []string{h.cfg.APIKey, h.cfg.AuthToken} {
		if keyForm.MatchString(secret) {
			return errors.New("COVE_API_KEY or COVE_TOKEN holds a tenant's key, which is for clients; unset it where the hub is started")
		}
	}
	trusted, err := config.Prefixes(h.cfg.TrustedProxies)
	if err != nil {
		return err
	}
	h.trusted = trusted
	hosts := h.cfg.PublicHosts
	for _, d := range h.cfg.Domains {
		hosts = append(hosts[:len(hosts):len(hosts)], "*."+d)
	}
	c := auth.Config{
		Token: h.cfg.AuthToken, APIKey: h.cfg.APIKey, TicketTTL: h.cfg.TicketTTL,
		Public:         func(method, path string) bool { return h.Table.Public()(method, path) },
		AllowedOrigins: h.cfg.AllowedOrigins, PublicHosts: hosts, Trusted: trusted, Log: h.log,
		Variables: []string{"COVE_TENANTS", "JWT_PUBLIC_KEY", "COVE_TOKEN", "COVE_API_KEY"},
	}
	if h.cfg.JWTPublicKey != "" {
		if c.JWTPublicKey, err = config.RSAPublicKey(h.cfg.JWTPublicKey); err != nil {
			return err
		}
	}
	h.hub.SignIn(&c)
	c.Insecure, c.Open = h.cfg.Insecure, !c.HasCredentials()
	if err := auth.CheckListen(h.cfg.Listen, c, h.cfg.Insecure); err != nil {
		return err
	}
	h.guard = auth.New(c)
	return nil
}

// Handlers serve the table; there is nobody inside.
func (h *Hub) Handlers() (outside, inside http.Handler) {
	calls := h.metrics.Counter("cove_requests_total", "Requests by operation and status.", "op", "status")
	took := h.metrics.Histogram("cove_request_seconds", "Time of requests by operation.", "op")
	return rest.New(rest.Config{
		Table: h.Table, Dialect: rest.Hub, Front: h.hub.Front, Log: h.log, MaxBody: int64(h.cfg.BodyLimit), Guard: h.guard.Wrap,
		Base:   func(r *http.Request) *url.URL { return auth.Base(r, h.trusted) },
		Caller: h.hub.Caller, Admit: h.hub.Admit, Served: func(s rest.Served) { h.hub.Served(hub.Visit(s)) },
		Observe: func(name string, status int, d time.Duration) {
			if name == "" {
				name = "none"
			}
			calls(1, name, strconv.Itoa(status))
			took(d, name)
		},
	}), http.NotFoundHandler()
}

// Inside is empty: a hub has no callers of its own.
func (h *Hub) Inside() string { return "" }

// Begin takes up the sandboxes that are there.
func (h *Hub) Begin(ctx context.Context) {
	// What a claim left half bound must be gone before it could be seen.
	if err := h.pool.Begin(ctx); err != nil {
		h.log.Error("no sandboxes are kept ready", "error", err)
	}
	h.hub.Begin()
}

// Shutdown has nothing to announce.
func (h *Hub) Shutdown(context.Context) {}

// Close lets go of the sandboxes, which live on.
func (h *Hub) Close() error {
	return errors.Join(h.hub.Close(), h.provider.Close(), h.many.close())
}

// openProvider opens what makes sandboxes.
func openProvider(ctx context.Context, cfg config.Cove, log *slog.Logger) (sandbox.Provider, error) {
	aio, err := findAio(cfg.Aio)
	if err != nil {
		return nil, err
	}
	c := local.Config{
		Dir: cfg.State, Init: findInit(), Command: []string{aioInside, "serve"},
		CommandEnv: map[string]string{"GOMAXPROCS": "1", "AIO_ALONE": "true", "AIO_LISTEN_FD": strconv.Itoa(isolate.ListenFD)},
		Binds:      []local.Bind{{Source: aio, Target: aioInside}}, Env: map[string]string{"AIO_LOG_LEVEL": "warn", "AIO_CONTAINED": "true"},
		Defaults: sandbox.Resources{MemoryLimit: int64(cfg.MemoryLimit), Disk: int64(cfg.DiskLimit)},
		FirstID:  uint32(cfg.FirstID), Cgroup: cfg.Cgroup, Spares: 8, MostSpares: 128, Log: log,
	}
	if host.IsFile(reader(aio)) {
		c.Binds = append(c.Binds, local.Bind{Source: reader(aio), Target: reader(aioInside)})
	}
	if cfg.Venv != "" {
		c.Binds = append(c.Binds, local.Bind{Source: cfg.Venv, Target: venvInside})
		c.Env["AIO_VENV"] = venvInside
	}
	var p *local.Provider
	store, err := openImages(cfg, func() ([]string, error) { return p.ImageLayers() }, log)
	if err != nil {
		return nil, fmt.Errorf("open the store of images: %w", err)
	}
	c.Images, c.Saver = images{store}, store
	p, err = local.Open(ctx, c)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return withImages{p, store}, nil
}

// findInit tells how the first process of a sandbox is started: the small program
// for it, or else this one.
func findInit() []string {
	if small := host.Beside("cove-init"); small != "" {
		return []string{small}
	}
	return []string{"/proc/self/exe", IsolateInit}
}

// reader is the program beside an aio that reads web pages for it.
func reader(aio string) string { return filepath.Join(filepath.Dir(aio), "aio-markdown") }

// IsolateInit is the argument by which the program starts itself as the first
// process of a sandbox.
const IsolateInit = "isolate-init"

// findAio finds the program that sandboxes run.
func findAio(given string) (string, error) {
	if given != "" {
		if _, err := os.Stat(given); err != nil {
			return "", fmt.Errorf("the aio program: %w", err)
		}
		return given, nil
	}
	if aio := host.Beside("aio"); aio != "" {
		return aio, nil
	}
	return "", errors.New("there is no aio program beside this one; build it, or name it with --aio")
}
