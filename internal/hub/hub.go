// Package hub hands out sandboxes: it creates them through a provider, leads
// callers to them, puts them to sleep when nobody uses them, wakes them when
// somebody does, and ends them when their time is up.
//
// It owns the way into sandboxes (proxy and MCP), the way out of those that have
// no network of their own, and the clocks. It keeps no record of its own: what
// the provider knows is the truth, and a hub that was killed finds everything
// there again. It refuses to let anybody see a sandbox of another owner: such a
// sandbox does not exist for them.
package hub

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/audit"
	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/metric"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/secret"
	"github.com/cove-sandbox/cove/internal/span"
	"github.com/cove-sandbox/cove/internal/tenant"
)

// Config of a hub. Only Provider is needed, and not even that to list operations.
type Config struct {
	Provider sandbox.Provider
	Version  string

	// Environments is the path of the environments file, a JSON array. It is read
	// again whenever it has changed. Empty: there is none.
	Environments string
	// Defaults stand in for what a request and its environment leave open.
	Defaults Defaults
	// MaxTimeout and MaxIdleTimeout bound what may be asked for; default a day
	// and an hour.
	MaxTimeout     time.Duration
	MaxIdleTimeout time.Duration

	// Domains are the names below which {port}-{name} leads to a port of a
	// sandbox; default localhost.
	Domains []string
	// Private lists addresses that sandboxes may reach although they are not public.
	Private []netip.Prefix

	// WakeWait is how long a request waits for a sleeping sandbox; default 30
	// seconds. PageWait is how long a person looks at a blank page; default 2.
	WakeWait time.Duration
	PageWait time.Duration

	// Tenants are those who may come in with a key, and the links they gave away.
	// Nil: there is one owner.
	Tenants *tenant.Store
	// Quota keeps tenants within their limits. Nil: there are none.
	Quota *quota.Keeper
	// Audit is where all that is done is written down; nil: nowhere. AuditDir and
	// AuditKey are its folder and key.
	Audit    *audit.Log
	AuditDir string
	AuditKey []byte

	// Secrets are what tenants entrusted to the hub; nil: nothing. Authority vouches
	// for hosts whose requests are looked into to add one; nil: none can be brokered.
	Secrets   *secret.Store
	Authority *egress.Authority

	// Images keeps images that tenants bring along; nil: nobody does. Scratch is
	// the folder where archives wait to be read; empty: the machine's own.
	Images  Images
	Scratch string
	// Tracer gets a span for every call; nil: nobody does.
	Tracer *span.Tracer

	Log     *slog.Logger
	Metrics *metric.Registry

	outward func(*egress.Config) // changes ways out; for tests
}

// Defaults of sandboxes. Zero fields have defaults of their own.
type Defaults struct {
	Environment string             // aio
	Image       string             // of that environment, if the file does not describe it
	Timeout     time.Duration      // an hour
	IdleTimeout time.Duration      // ten minutes
	IdlePolicy  sandbox.IdlePolicy // delete
	Resources   sandbox.Resources  // 0.1 to 1 processor, 128 MiB to 1 GiB
	Network     sandbox.Network    // open
	Pool        int                // how many of that environment are kept ready, if the file does not describe it
}

// Hub hands out sandboxes.
type Hub struct {
	cfg Config
	catalog
	past   *history
	proxy  http.Handler
	tools  *tools
	counts counts
	quota  *quota.Keeper
	audit  record

	life context.Context // ends with Close
	end  context.CancelFunc
	kick chan struct{} // tells the clock that something changed

	mu     sync.Mutex
	closed bool
	began  time.Time
	work   sync.WaitGroup // grows only while not closed
	boxes  map[string]*box
	names  map[key]string          // to the ID; a memory, never the truth
	left   map[string]egress.Stats // by owner: traffic of sandboxes that are gone

	adopting  sync.Mutex // held while sandboxes of an earlier hub are counted
	isCounted bool
}

// New returns a hub. It starts nothing and asks nobody anything.
func New(cfg Config) *Hub {
	cfg.fill()
	h := &Hub{
		cfg: cfg, catalog: catalog{path: cfg.Environments, base: builtin(cfg.Defaults), log: cfg.Log},
		past: newHistory(), counts: newCounts(cfg.Metrics), kick: make(chan struct{}, 1),
		boxes: map[string]*box{}, names: map[key]string{}, left: map[string]egress.Stats{},
	}
	if h.quota = cfg.Quota; h.quota == nil {
		h.quota = quota.New(quota.Config{Creates: math.MaxInt32, Queue: math.MaxInt32})
	}
	h.audit.log, h.audit.limit.now = cfg.Audit, time.Now
	h.life, h.end = context.WithCancel(context.Background())
	h.proxy = h.newProxy()
	h.tools = newTools(h)
	h.gauges()
	return h
}

func (c *Config) fill() {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	num := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	d := &c.Defaults
	def(&d.Timeout, time.Hour)
	def(&d.IdleTimeout, 10*time.Minute)
	def(&c.MaxTimeout, 24*time.Hour)
	def(&c.MaxIdleTimeout, time.Hour)
	def(&c.WakeWait, 30*time.Second)
	def(&c.PageWait, 2*time.Second)
	num(&d.Resources.CPU, 100)
	num(&d.Resources.CPULimit, 1000)
	num(&d.Resources.Memory, 128<<20)
	num(&d.Resources.MemoryLimit, 1<<30)
	if d.Environment == "" {
		d.Environment = "aio"
	}
	if d.IdlePolicy == "" {
		d.IdlePolicy = sandbox.IdleDelete
	}
	if d.Network.Mode == "" {
		d.Network.Mode = sandbox.NetworkOpen
	}
	if len(c.Domains) == 0 {
		c.Domains = []string{"localhost"}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Ops lists what it offers. What changes something is written down before it is
// answered.
func (h *Hub) Ops() []op.Op {
	all := h.plainOps()
	for i, o := range all {
		all[i] = h.traced(h.watched(h.recorded(o)))
	}
	return all
}

// plainOps are the operations as they are, with nothing written down.
func (h *Hub) plainOps() []op.Op {
	return slices.Concat(h.sandboxOps(), h.usageOps(), h.diskOps(), h.imageOps(), h.secretOps(), h.shareOps(), h.keyOps(), h.auditOps())
}

func (h *Hub) sandboxOps() []op.Op {
	const one = "/api/v1/sandbox/{name}"
	return []op.Op{
		op.New(op.Spec{Name: createOp, Route: "POST /api/v1/sandbox", Tag: "sandbox", Verb: "create",
			Doc: "Create a sandbox and answer when it is ready to be used. Everything is optional: without a name one is made up and told, and the environment gives what is left open. " +
				"The answer is a sentence with the name; with full=true it is the whole sandbox."}, h.Create),
		op.New(op.Spec{Name: "sandbox_list", Route: "GET /api/v1/sandbox", Tag: "sandbox", Verb: "list", ReadOnly: true,
			Columns: []string{"name", "status", "environment", "created_at", "expires_at", "url"},
			Doc:     "List sandboxes, oldest first. With limit the answer is one page, {items, next}, and after=next asks for the one behind it."}, h.List),
		op.New(op.Spec{Name: "sandbox_get", Route: "GET " + one, Tag: "sandbox", Verb: "get", ReadOnly: true,
			Doc: "Show one sandbox."}, h.Get),
		op.New(op.Spec{Name: "sandbox_delete", Route: "DELETE " + one, Tag: "sandbox", Verb: "rm", Destructive: true,
			Doc: "Delete a sandbox with everything in it. Its volumes stay."}, h.Delete),
		op.New(op.Spec{Name: "sandbox_extend", Route: "POST " + one + "/extend", Tag: "sandbox", Verb: "extend",
			Doc: "Give a sandbox more time: it ends timeout minutes from now. Its idle time can be changed likewise."}, h.Extend),
		op.New(op.Spec{Name: "sandbox_pause", Route: "POST " + one + "/pause", Tag: "sandbox", Verb: "pause",
			Doc: "Pause a sandbox: it stays in memory and uses no processor. The next request to it resumes it."}, h.Pause),
		op.New(op.Spec{Name: "sandbox_resume", Route: "POST " + one + "/resume", Tag: "sandbox", Verb: "resume",
			Doc: "Resume a paused sandbox where it was."}, h.Resume),
		op.New(op.Spec{Name: "sandbox_stop", Route: "POST " + one + "/stop", Tag: "sandbox", Verb: "stop",
			Doc: "Stop a sandbox: all programs in it end, its disk is kept. The next request to it starts it."}, h.Stop),
		op.New(op.Spec{Name: "sandbox_start", Route: "POST " + one + "/start", Tag: "sandbox", Verb: "start",
			Doc: "Start a stopped or failed sandbox on its disk, and answer when it is ready."}, h.Start),
		op.New(op.Spec{Name: "sandbox_network", Route: "GET " + one + "/network", Tag: "sandbox", Verb: "network show", ReadOnly: true,
			Doc: "Show what a sandbox may reach and which connections it made or tried to make lately."}, h.Network),
		op.New(op.Spec{Name: "sandbox_set_network", Route: "PUT " + one + "/network", Tag: "sandbox", Verb: "network set",
			Doc: "Change what a sandbox may reach, at once: connections that are no longer allowed are cut."}, h.SetNetwork),
		op.New(op.Spec{Name: "sandbox_logs", Route: "GET " + one + "/logs", Tag: "sandbox", Verb: "logs", ReadOnly: true, Produces: "text/plain",
			Doc: "Read the end of what the program of a sandbox wrote to its output."}, h.Logs),
		op.New(op.Spec{Name: "sandbox_stats", Route: "GET " + one + "/stats", Tag: "sandbox", Verb: "stats", ReadOnly: true,
			Doc: "Measure what a sandbox uses."}, h.Stats),
		op.Stream[EventsIn, Event](op.Spec{Name: "sandbox_events", Route: "GET " + one + "/events", Tag: "sandbox", Verb: "events", ReadOnly: true,
			Doc: "Follow what happens to a sandbox, as server-sent events. Last-Event-ID, or after, goes on where a stream broke off."}, h.Events),
		op.Stream[AllEventsIn, Event](op.Spec{Name: "hub_events", Route: "GET /api/v1/events", Tag: "hub", Verb: "watch", ReadOnly: true,
			Doc: "Follow what happens to all sandboxes, as server-sent events."}, h.AllEvents),
		op.New(op.Spec{Name: "hub_environments", Route: "GET /api/v1/environment", Tag: "hub", Verb: "environments", ReadOnly: true,
			Doc: "List the environments that sandboxes can be made from."}, h.Environments),
		op.New(op.Spec{Name: "hub_info", Route: "GET /api/v1/hub", Tag: "hub", Verb: "info", ReadOnly: true,
			Doc: "Tell what this hub can do on its machine, and what is missing there."}, h.Info),
		op.Handle(op.Spec{Name: proxyOp, Route: "/sandbox/{name}/{path...}", Also: []string{"/sandbox/{name}"}, Tag: "reach",
			Doc: "Everything below leads to the sandbox's own server, WebSockets and streams included, and below proxy/{port} to a service in it. A sleeping sandbox is woken."}, h.proxy),
		op.Handle(op.Spec{Name: toolsOp, Route: "/mcp", Tag: "mcp", Access: op.AccessRead,
			Doc: "Tools that create, use and delete sandboxes, over streamable HTTP."}, h.tools),
	}
}

// Begin starts the clocks and takes up the sandboxes that are there.
func (h *Hub) Begin() {
	h.mu.Lock()
	h.began = time.Now()
	h.mu.Unlock()
	h.background(h.adopt)
	h.background(h.watch)
	h.background(h.clock)
	h.background(h.sweep)
}

// background runs f until Close, which waits for it.
func (h *Hub) background(f func(ctx context.Context)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.work.Go(func() { f(h.life) })
	return true
}

// State tells readiness: ready, or failed and why.
func (h *Hub) State() (state, why string) {
	if err := h.catalog.fault(); err != nil {
		return "ready", "the environments file has a fault, and what it said before still holds: " + err.Error()
	}
	return "ready", ""
}

// Close ends what the hub runs and lets go of the sandboxes, which live on. The
// provider stays open; it is its opener's. Close is idempotent.
func (h *Hub) Close() error {
	h.mu.Lock()
	first := !h.closed
	h.closed = true
	h.mu.Unlock()
	if first {
		ctx, cancel := context.WithTimeout(h.life, 2*time.Second)
		h.keepAll(ctx)
		cancel()
	}
	h.end()
	h.past.close()
	h.tools.close()
	h.work.Wait()
	h.mu.Lock()
	left := h.boxes
	h.boxes = map[string]*box{}
	h.mu.Unlock()
	for _, b := range left {
		b.close()
	}
	h.audit.close()
	return nil
}
