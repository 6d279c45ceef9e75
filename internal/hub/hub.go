// Package hub hands out sandboxes: it creates them through a provider, gives callers
// access to them, puts them to sleep when nobody uses them, wakes them when somebody
// does, and deletes them when their time is up.
//
// This package composes the hub of its parts, each in a folder below:
//
//   - environment: the kinds of sandboxes, and what people write about them
//   - fleet: what runs for each sandbox (connections, clock, egress); finds and wakes them
//   - lifecycle: creates, shows, changes and deletes sandboxes
//   - gateway: forwards requests into sandboxes
//   - disk: snapshots, volumes, images
//   - e2b: the control API that E2B's clients expect
//   - claim: sandboxes for the objects of kubernetes-sigs/agent-sandbox
//   - tool: the hub's tools for agents
//   - access: keys and links; vault: secrets; account: quotas and usage
//   - trail: the audit log and traces; record: what sandboxes recorded, beyond their end
//
// The hub keeps no database: what the provider knows is the truth, and a hub that was
// killed finds everything there again. It refuses to show anybody a sandbox of another
// owner.
package hub

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/access"
	"github.com/cove-sandbox/cove/internal/hub/agentsandbox"
	"github.com/cove-sandbox/cove/internal/hub/audit"
	"github.com/cove-sandbox/cove/internal/hub/disk"
	"github.com/cove-sandbox/cove/internal/hub/e2b"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/gateway"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/hub/toolcatalog"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Hub hands out sandboxes.
type Hub struct {
	cfg     Config
	stores  stores
	release func() error // closes the stores

	tasks          *task.Group
	history        *history.Log
	environments   *environment.Catalog
	usage          *usage.Ledger
	secrets        *secret.Service
	audit          *audit.Recorder
	fleet          *fleet.Fleet
	access         *access.Gate
	gateway        *gateway.Gateway
	lifecycle      *lifecycle.Service
	disk           *disk.Service
	e2b            *e2b.Service
	tools          *toolcatalog.Set
	agentSandboxes *agentsandbox.Service // nil: none
}

// Open opens a hub and the stores that its configuration names. Without a
// provider it only has a table of operations. It starts nothing.
func Open(cfg Config) (*Hub, error) {
	cfg.fill()
	s, err := openStores(cfg)
	if err != nil {
		return nil, err
	}
	var h *Hub
	if cfg.Provider != nil {
		s.pool = newPool(cfg, func() map[string]pool.Want { return h.warmPools() })
		cfg.Provider = pool.Wrap(cfg.Provider, s.pool)
		cfg.Metrics.Gauge("cove_pool_ready", "Warm sandboxes that wait for an owner.", "environment", func() map[string]float64 {
			ready := map[string]float64{}
			for env, n := range s.pool.Ready() {
				ready[env] = float64(n)
			}
			return ready
		})
	}
	h = build(cfg, s)
	h.release = h.stores.close
	return h, nil
}

// build returns a hub on stores, which it does not close.
func build(cfg Config, s stores) *Hub {
	cfg.fill()
	if s.quota == nil {
		s.quota = quota.New(quota.Config{Creates: math.MaxInt32, Queue: math.MaxInt32})
	}
	if s.tokens == nil {
		s.tokens = token.New()
	}
	h := &Hub{
		cfg: cfg, stores: s, release: func() error { return nil }, tasks: task.New(), history: history.New(),
		environments: environment.New(cfg.Environments, cfg.Defaults, cfg.Log),
	}
	h.usage = usage.New(usage.Config{
		Provider: cfg.Provider, Keeper: s.quota, Limits: s.limits(cfg), Metrics: cfg.Metrics, Log: cfg.Log,
		Images: func(ctx context.Context, owner string) (int64, error) {
			return disk.ImagesSize(ctx, cfg.Provider, owner)
		},
		Traffic: func(owner string) usage.Traffic { return h.fleet.Traffic(owner) },
	})
	h.secrets = secret.New(secret.Config{
		Provider: cfg.Provider, Store: s.secrets, Authority: s.authority, Log: cfg.Log,
		Changed: func(owner string) { h.fleet.RefreshCredentials(owner) },
	})
	h.audit = audit.New(audit.Config{
		Log: s.audit, Dir: s.auditDir, Key: s.auditKey, Requests: s.requests, RequestsDir: s.requestsDir,
		Life: h.tasks.Context(), Tracer: s.tracer, Metrics: cfg.Metrics, Logger: cfg.Log,
		Creates:  append([]string{lifecycle.CreateOp, toolcatalog.Create, agentsandbox.CreateOp}, e2b.Creates...),
		Separate: toolcatalog.OpName, Proxies: gateway.OpName,
		Discard: func(id string) { h.lifecycle.Discard(h.tasks.Context(), id) },
	})
	h.fleet = fleet.New(fleet.Config{
		Records: s.keepers(), Provider: cfg.Provider, Secrets: h.secrets, Observer: observer{h}, History: h.history, Tasks: h.tasks,
		WakeWait: cfg.WakeWait, Private: cfg.Private, Authority: s.authority, ChangeEgress: cfg.changeEgress, Metrics: cfg.Metrics, Log: cfg.Log,
	})
	if s.tenants != nil {
		s.tokens.Bind(bearers{s.tenants, h.fleet})
	}
	h.access = access.New(access.Config{Tenants: s.tenants, Sandboxes: h.fleet, Calls: h.usage,
		Proxy: gateway.OpName, Tools: toolcatalog.OpName, Log: cfg.Log})
	h.gateway = gateway.New(gateway.Config{
		Provider: cfg.Provider, Fleet: h.fleet, WhileValid: h.access.WhileValid, Tokens: s.tokens,
		PublicPorts: cfg.PublicPorts, Domains: cfg.Domains, PublicHosts: cfg.PublicHosts, Sessions: cfg.Sessions,
		WakeWait: cfg.WakeWait, PageWait: cfg.PageWait, Tracer: s.tracer, Log: cfg.Log,
	})
	h.lifecycle = lifecycle.New(lifecycle.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Quota: h.usage, Secrets: h.secrets, Environments: h.environments, History: h.history,
		MaxTimeout: cfg.MaxTimeout, MaxIdleTimeout: cfg.MaxIdleTimeout, Domains: cfg.Domains, Version: cfg.Version,
		Metrics: cfg.Metrics, Warm: s.warm(),
	})
	h.disk = disk.New(disk.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Quota: h.usage, Tasks: h.tasks, Scratch: s.scratch, Log: cfg.Log,
	})
	h.e2b = e2b.New(e2b.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Disks: h.disk, Environments: h.environments,
		Tokens: s.tokens, Domains: cfg.Domains, MaxTimeout: cfg.MaxTimeout,
	})
	h.tools = toolcatalog.New(toolcatalog.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Remote: cfg.SandboxTools,
		WakeWait: cfg.WakeWait, Without: s.missing(), Log: cfg.Log,
		Buffer: func(ctx context.Context) toolcatalog.Buffer { return h.Buffer(ctx) },
	})
	if cfg.Claims.Cluster != nil && s.pool != nil {
		h.agentSandboxes = agentsandbox.New(agentsandbox.Config{
			Cluster: cfg.Claims.Cluster, Owners: cfg.Claims.Owners, Sandboxes: h.lifecycle, Provider: cfg.Provider,
			History: h.history, Tasks: h.tasks,
			Record: h.audit.Record, Ready: s.pool.Ready, Notify: s.pool.Notify, MaxSandboxes: h.usage.MaxSandboxes, Defaults: h.environments.Defaults(), Log: cfg.Log,
		})
	}
	return h
}

// bearers are the keys that the tokens of sandboxes are issued to.
type bearers struct {
	tenants *tenant.Store
	fleet   *fleet.Fleet
}

func bearerOf(id tenant.Identity) token.Bearer {
	return token.Bearer{Key: id.Key, Tenant: id.Tenant, Role: string(id.Role)}
}

func (b bearers) Recall(key string) (token.Bearer, bool) {
	id, ok := b.tenants.Recall(key)
	return bearerOf(id), ok && id.Role.May(tenant.Write)
}

func (b bearers) Of(id string) (all []token.Bearer) {
	owner, ok := b.fleet.Owner(id)
	if !ok {
		return nil
	}
	for _, u := range b.tenants.Users(owner) {
		all = append(all, bearerOf(u))
	}
	return all
}

// observer spreads what happens to the fleet.
type observer struct{ hub *Hub }

func (o observer) Gone(id string) {
	if t := o.hub.cfg.SandboxTools; t != nil {
		t.Forget(id)
	}
	o.hub.usage.Free(id)
	o.hub.access.Forget(id)
}

func (o observer) Acted(what string, sb sandbox.Sandbox) { o.hub.audit.Acted(what, sb) }

func (o observer) Swept(ctx context.Context) {
	o.hub.usage.Recount(ctx, o.hub.fleet.Knows)
	o.hub.disk.Count()
}

// warmPools is which environments keep how many sandboxes ready.
func (h *Hub) warmPools() map[string]pool.Want {
	var all map[string]pool.Want
	for name, w := range h.environments.Warm() {
		if all == nil {
			all = map[string]pool.Want{}
		}
		all[name] = pool.Want{Size: w.Size, Spec: w.Spec}
	}
	if h.agentSandboxes != nil {
		for name, w := range h.agentSandboxes.Warm() {
			if all == nil {
				all = map[string]pool.Want{}
			}
			all[name] = pool.Want{Size: w.Size, Spec: w.Spec}
		}
	}
	return all
}

// Ops lists the operations. What changes something is recorded before its reply.
func (h *Hub) Ops() []op.Op {
	all := h.plainOps()
	for i, o := range all {
		all[i] = h.audit.Trace(h.access.Guard(h.audit.Record(o)))
	}
	return all
}

// plainOps are the operations as they are, with nothing recorded.
func (h *Hub) plainOps() []op.Op {
	return slices.Concat(h.lifecycle.Ops(), []op.Op{h.gateway.Op(), h.lifecycle.ForkOp()}, h.disk.SnapshotOps(),
		h.access.ShareOps(), h.disk.VolumeOps(), h.disk.ImageOps(), h.secrets.Ops(), h.access.KeyOps(), h.usage.Ops(),
		h.stores.records.Ops(), h.audit.Ops(), h.e2b.Ops())
}

// ToolInstructions tell an agent how the hub's tools work together.
const ToolInstructions = toolcatalog.Instructions

// Tools lists what the hub offers to agents.
func (h *Hub) Tools() []toolset.Tool { return h.tools.Tools(h.plainOps()) }

// SeesTool reports whether a caller can use a tool.
func (h *Hub) SeesTool(call *op.Call, t toolset.Tool) bool {
	return h.access.Allow(call, "", t.Op.RequiredAccess(nil)) == nil
}

// LimitTools returns the tools that the key of a caller is limited to, as a query that
// selects them; empty if it is not.
func (h *Hub) LimitTools(call *op.Call) string {
	tools, limited := h.access.LimitedTools(call)
	if !limited {
		return ""
	}
	return url.Values{"tools": {strings.Join(slices.Concat(tools, []string{"-"}), ",")}}.Encode()
}

// ToolsOp is the operation that serves the tools: handler speaks MCP and calls
// what Tools lists, each call inside AroundTool.
func (h *Hub) ToolsOp(handler http.Handler) op.Op { return toolcatalog.Op(handler) }

// AroundTool runs a call of a tool if the caller may use it, traces it, and
// records it. The call ends with the hub, even if its client does not cancel it.
func (h *Hub) AroundTool(ctx context.Context, o op.Op, size int, run func(context.Context) error) (err error) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.tasks.Context(), cancel)()
	ctx, trace := h.stores.tracer.Start(ctx, o.Name)
	defer func() { audit.EndSpan(ctx, trace, err) }()
	call := op.CallOf(ctx)
	// A tool has no name that could be taken for an operation's.
	changes := !o.ReadOnly && !toolcatalog.RunsInside(o.Name)
	if err = h.access.Allow(call, "", o.RequiredAccess(nil)); err == nil && changes {
		err = h.audit.MayChange(call.Subject)
	}
	if err == nil {
		err = run(ctx)
	}
	return h.audit.RecordTool(o, changes, call, int64(size), began, err)
}

// SignIn makes the tenants' keys and links valid credentials, and limits sessions on sites of
// sandboxes to these.
func (h *Hub) SignIn(c *auth.Config) {
	h.access.SignIn(c)
	h.gateway.SignIn(c)
}

// Caller notes in a call who signed in.
func (h *Hub) Caller(ctx context.Context, call *op.Call) { h.access.Caller(ctx, call) }

// Admit decides before anything of a request is read, and counts it in.
func (h *Hub) Admit(r *http.Request, o op.Op) (done func(), err error) { return h.access.Admit(r, o) }

// Buffer counts the memory that the body of a request takes.
func (h *Hub) Buffer(ctx context.Context) *usage.Buffer { return h.usage.Buffer(ctx) }

// Front sees requests before they are routed: it finds those for a sandbox by host name.
func (h *Hub) Front(next http.Handler) http.Handler { return h.gateway.Front(next) }

// Visit is a finished request, as the server saw it.
type Visit = audit.Visit

// Served records a request that is not recorded yet.
func (h *Hub) Served(v Visit) { h.audit.Served(v) }

// Begin starts the clocks and takes up the sandboxes that exist.
func (h *Hub) Begin(ctx context.Context) {
	if h.agentSandboxes != nil {
		h.agentSandboxes.Begin(ctx)
	}
	if h.stores.pool != nil {
		h.stores.pool.Begin(ctx)
	}
	h.tasks.Go(func(ctx context.Context) {
		h.usage.KeepCounting(ctx)
		h.stores.records.Count(func(owner string, size int64) { h.usage.CountDisk(usage.Disk{Kind: "record", Owner: owner}, size) })
		h.disk.Count()
	})
	if h.stores.marks != "" {
		h.tasks.Go(func(ctx context.Context) { h.stores.keepMarks(ctx, h.cfg.Log) })
	}
	h.fleet.Begin()
	if h.agentSandboxes != nil {
		h.agentSandboxes.Serve(ctx)
	}
}

// State is the hub's readiness: ready or failed, and why.
func (h *Hub) State() (state, why string) {
	if h.tasks.Context().Err() != nil {
		return "failed", "the hub is stopping"
	}
	if err := h.fleet.Fault(); err != nil {
		return "failed", "cannot watch the sandboxes: " + err.Error()
	}
	if err := h.environments.Fault(); err != nil {
		return "ready", "the environments file is invalid, and its last valid content is in force: " + err.Error()
	}
	return "ready", ""
}

// Close ends what the hub runs. The sandboxes live on, and the provider stays
// open. Close is idempotent.
func (h *Hub) Close() error {
	if h.tasks.Seal() {
		ctx, cancel := context.WithTimeout(h.tasks.Context(), 2*time.Second)
		h.fleet.SaveActivity(ctx)
		cancel()
	}
	h.tasks.Cancel()
	h.history.Close()
	h.tasks.Wait()
	h.fleet.Close()
	return h.release()
}
