// Package hub composes the hub: it creates sandboxes through a provider, forwards requests to them,
// suspends idle ones, wakes them on use, and deletes expired ones.
//
// Each part is a package below this one:
//
//   - environment: templates for sandboxes, quantities, egress policies
//   - fleet: connections, timers and egress proxy of each sandbox; finds and wakes sandboxes
//   - lifecycle: creates, shows, changes and deletes sandboxes
//   - policy: changes egress policies
//   - network: private networks of sandboxes
//   - inspect: their usage over time, history and processes, for people
//   - gateway: forwards requests into sandboxes
//   - disk: snapshots, volumes, images
//   - template: templates and their builds
//   - e2b: the control API of E2B clients
//   - agentsandbox: controller for the objects of kubernetes-sigs/agent-sandbox
//   - toolcatalog: the hub's tools for agents
//   - access: keys and links; secret: secrets; usage: quotas and usage
//   - audit: audit log and traces; activity: activity records of sandboxes
//   - replica: several hubs with one state folder
//
// The hub has no database: the provider is authoritative, so a hub that was killed recovers its state
// from there. A caller never sees a sandbox of another owner.
package hub

import (
	"context"
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
	"github.com/cove-sandbox/cove/internal/hub/inspect"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/meter"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/network"
	"github.com/cove-sandbox/cove/internal/hub/policy"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/hub/template"
	"github.com/cove-sandbox/cove/internal/hub/toolcatalog"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Hub creates sandboxes and forwards requests to them.
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
	policy         *policy.Service
	networks       *network.Service
	inspect        *inspect.Service
	disk           *disk.Service
	templates      *template.Service
	e2b            *e2b.Service
	tools          *toolcatalog.Set
	agentSandboxes *agentsandbox.Service // nil: none
}

// Open opens a hub and the stores of its configuration. Without a provider, the hub only has a table of
// operations. Open starts no work; Begin does.
func Open(cfg Config) (*Hub, error) {
	cfg.fill()
	s, err := openStores(cfg)
	if err != nil {
		return nil, err
	}
	var h *Hub
	if cfg.Provider != nil {
		s.pool = newPool(cfg, func() map[string]pool.Want { return h.warmPools() })
		s.bin = trash.New(trash.Config{Provider: cfg.Provider, Log: cfg.Log,
			Count: func(sb sandbox.Sandbox) { h.usage.CountDisk(binDisk(sb), sb.Spec.Resources.Disk) },
			Free:  func(sb sandbox.Sandbox) { h.usage.FreeDisk(binDisk(sb)) },
		})
		cfg.Provider = pool.Wrap(cfg.Provider, s.pool, s.bin)
		cfg.Metrics.Gauge("cove_pool_ready", "Ready sandboxes in the warm pool.", "environment", func() map[string]float64 {
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

// binDisk is the disk of a deleted sandbox, which counts until it is deleted finally.
func binDisk(sb sandbox.Sandbox) usage.Disk {
	return usage.Disk{Kind: "deleted", Owner: sb.Spec.Owner, Name: sb.ID}
}

// build returns a hub with the given stores, which it does not close.
func build(cfg Config, s stores) *Hub {
	cfg.fill()
	s.fill()
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
		Reclaim: func(owner string) bool {
			return s.bin != nil && s.bin.Purge(h.tasks.Context(), func(sb sandbox.Sandbox) bool { return sb.Spec.Owner == owner })
		},
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
		Records: s.keepers(), Tombstones: s.tombstones, Provider: cfg.Provider, Secrets: h.secrets, Observer: observer{h},
		History: h.history, Tasks: h.tasks,
		WakeWait: cfg.WakeWait, Private: cfg.Private, Authority: s.authority, ChangeEgress: cfg.changeEgress, Metrics: cfg.Metrics, Log: cfg.Log,
		Peer: func(ctx context.Context, id, name string) (egress.Peer, bool) { return h.networks.Peer(ctx, id, name) },
	})
	h.networks = network.New(network.Config{Provider: cfg.Provider, Fleet: h.fleet, Store: s.networks})
	if s.tenants != nil {
		s.tokens.Bind(bearers{s.tenants, h.fleet})
	}
	h.access = access.New(access.Config{Tenants: s.tenants, Sandboxes: h.fleet, Calls: h.usage,
		Proxy: gateway.OpName, Tools: toolcatalog.OpName, Log: cfg.Log})
	h.gateway = gateway.New(gateway.Config{
		Provider: cfg.Provider, Fleet: h.fleet, WhileValid: h.access.WhileValid, Tokens: s.tokens,
		PublicPorts: cfg.PublicPorts, Domains: cfg.Domains, PublicHosts: cfg.PublicHosts, Sessions: cfg.Sessions,
		Shares:   s.tenants != nil,
		WakeWait: cfg.WakeWait, PageWait: cfg.PageWait, Tracer: s.tracer, Log: cfg.Log,
	})
	h.lifecycle = lifecycle.New(lifecycle.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Quota: h.usage, Secrets: h.secrets, Networks: h.networks,
		Environments: h.environments, History: h.history,
		Tombstones: s.tombstones, Bin: s.bin, MaxTimeout: cfg.MaxTimeout, MaxIdleTimeout: cfg.MaxIdleTimeout, Domains: cfg.Domains,
		Version: cfg.Version, Tenants: s.tenants != nil, Metrics: cfg.Metrics, Warm: s.warm(), Templates: h.findTemplate,
	})
	h.policy = policy.New(policy.Config{Provider: cfg.Provider, Fleet: h.fleet, Observer: observer{h}})
	h.inspect = h.newInspect()
	h.openDisks()
	h.e2b = e2b.New(e2b.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Disks: h.disk, Templates: h.templates, Environments: h.environments,
		Tokens: s.tokens, Domains: cfg.Domains, MaxTimeout: cfg.MaxTimeout, Meter: h.inspect.Meter, Secrets: h.secrets,
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
			Record: h.audit.Record, Ready: s.pool.Ready, Notify: s.pool.Notify, MaxSandboxes: h.usage.MaxSandboxes,
			Defaults: h.environments.Defaults(), Log: cfg.Log,
		})
	}
	return h
}

// openDisks creates the services for disks and templates.
func (h *Hub) openDisks() {
	cfg, s := h.cfg, h.stores
	h.disk = disk.New(disk.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Quota: h.usage, Tasks: h.tasks, Scratch: s.scratch, Log: cfg.Log,
	})
	h.templates = template.New(template.Config{
		Provider: cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Environments: h.environments, Quota: h.usage,
		Store: s.templates, Tokens: s.tokens, Tasks: h.tasks, Log: cfg.Log,
	})
}

// findTemplate finds a template of an owner and its disk.
func (h *Hub) findTemplate(owner, name string) (environment.Environment, string, error) {
	return h.templates.Find(owner, name)
}

// newInspect returns the service that shows people how sandboxes are doing.
func (h *Hub) newInspect() *inspect.Service {
	measured := meter.New(meter.Config{Provider: h.cfg.Provider, Tasks: h.tasks,
		Traffic: func(id string) (sent, received int64) { return fleet.TrafficOf(h.fleet, id) }})
	return inspect.New(inspect.Config{Provider: h.cfg.Provider, Fleet: h.fleet, Sandboxes: h.lifecycle, Meter: measured,
		History: h.history, Tombstones: h.stores.tombstones, Bin: h.stores.bin, Records: h.stores.records})
}

// bearers looks up the keys that tokens of sandboxes are issued to.
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

// observer forwards events of the fleet to other parts.
type observer struct{ hub *Hub }

func (o observer) Gone(id string) {
	if t := o.hub.cfg.SandboxTools; t != nil {
		t.Forget(id)
	}
	o.hub.usage.Free(id)
	o.hub.access.Forget(id)
}

func (o observer) Acted(what string, sb sandbox.Sandbox) { o.hub.audit.Acted(what, sb) }

func (o observer) Announced(kind string, sb sandbox.Sandbox, message string) {
	o.hub.history.Add(kind, time.Now(), sb, message)
}

func (o observer) Swept(ctx context.Context) {
	o.hub.usage.Recount(ctx, o.hub.fleet.Knows)
	o.hub.disk.Count()
	o.hub.networks.Sweep()
	o.hub.templates.Sweep(ctx)
	if bin := o.hub.stores.bin; bin != nil {
		bin.Sweep(ctx)
	}
	o.hub.stores.saveTombstones(o.hub.cfg.Log)
}

// warmPools returns the wanted size of the warm pool of each environment.
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

// Ops lists the operations. Changes are recorded before their reply.
func (h *Hub) Ops() []op.Op {
	all := h.plainOps()
	for i, o := range all {
		all[i] = h.audit.Trace(h.access.Guard(h.audit.Record(o)))
	}
	return all
}

// plainOps lists the operations without authorization and audit log.
func (h *Hub) plainOps() []op.Op {
	return slices.Concat(h.lifecycle.Ops(), h.inspect.Ops(), []op.Op{h.gateway.Op(), h.lifecycle.ForkOp()},
		h.policy.Ops(), h.networks.Ops(), h.templates.Ops(), h.disk.SnapshotOps(), h.access.ShareOps(), h.disk.VolumeOps(),
		h.disk.ImageOps(),
		h.secrets.Ops(), h.access.KeyOps(), h.usage.Ops(), h.stores.records.Ops(), h.audit.Ops(), h.e2b.Ops())
}

// ToolInstructions explain to an agent how to use the hub's tools.
const ToolInstructions = toolcatalog.Instructions

// Tools lists the hub's tools for agents.
func (h *Hub) Tools() []toolset.Tool { return h.tools.Tools(h.plainOps()) }

// SeesTool reports whether a caller can use a tool.
func (h *Hub) SeesTool(call *op.Call, t toolset.Tool) bool {
	return h.access.Allow(call, "", t.Op.RequiredAccess(nil)) == nil
}

// LimitTools returns a query that selects the tools to which the key of a caller is limited; empty if it
// is unlimited.
func (h *Hub) LimitTools(call *op.Call) string {
	tools, limited := h.access.LimitedTools(call)
	if !limited {
		return ""
	}
	return url.Values{"tools": {strings.Join(slices.Concat(tools, []string{"-"}), ",")}}.Encode()
}

// ToolsOp is the operation that serves the tools: handler speaks MCP and calls the tools, each inside
// AroundTool.
func (h *Hub) ToolsOp(handler http.Handler) op.Op { return toolcatalog.Op(handler) }

// AroundTool authorizes, runs, traces and records a call of a tool. The call is canceled when the hub
// stops.
func (h *Hub) AroundTool(ctx context.Context, o op.Op, size int, run func(context.Context) error) (err error) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.tasks.Context(), cancel)()
	ctx, trace := h.stores.tracer.Start(ctx, o.Name)
	defer func() { audit.EndSpan(ctx, trace, err) }()
	call := op.CallOf(ctx)
	// Names of tools and operations never collide.
	changes := !o.ReadOnly && !toolcatalog.RunsInside(o.Name)
	if err = h.access.Allow(call, "", o.RequiredAccess(nil)); err == nil && changes {
		err = h.audit.MayChange(call.Subject)
	}
	if err == nil {
		err = run(ctx)
	}
	return h.audit.RecordTool(o, changes, call, int64(size), began, err)
}

// SignIn configures authentication: tenants' keys and links are valid credentials, and sessions on sites
// of sandboxes are valid only there.
func (h *Hub) SignIn(c *auth.Config) {
	h.access.SignIn(c)
	h.gateway.SignIn(c)
}

// Caller sets the identity of a call.
func (h *Hub) Caller(ctx context.Context, call *op.Call) { h.access.Caller(ctx, call) }

// Admit authorizes a request before its body is read, and counts it until done is called.
func (h *Hub) Admit(r *http.Request, o op.Op) (done func(), err error) { return h.access.Admit(r, o) }

// Buffer counts the memory of the body of a request.
func (h *Hub) Buffer(ctx context.Context) *usage.Buffer { return h.usage.Buffer(ctx) }

// Front handles requests before they are routed by path: the host name can address a sandbox.
func (h *Hub) Front(next http.Handler) http.Handler { return h.gateway.Front(next) }

// Visit is a finished request.
type Visit = audit.Visit

// Served records a request, unless its operation is already recorded.
func (h *Hub) Served(v Visit) { h.audit.Served(v) }

// Begin starts the timers and adopts existing sandboxes.
func (h *Hub) Begin(ctx context.Context) {
	if h.agentSandboxes != nil {
		h.agentSandboxes.Begin(ctx)
	}
	if h.stores.pool != nil {
		h.stores.pool.Begin(ctx)
	}
	h.templates.Begin(ctx)
	h.tasks.Go(func(ctx context.Context) {
		h.usage.KeepCounting(ctx)
		h.stores.records.Count(func(owner string, size int64) { h.usage.CountDisk(usage.Disk{Kind: "record", Owner: owner}, size) })
		h.disk.Count()
	})
	if h.stores.marks != "" {
		h.tasks.Go(func(ctx context.Context) { h.stores.keepMarks(ctx, h.cfg.Log) })
	}
	h.fleet.Begin()
	h.tasks.Go(h.e2b.Begin)
	if h.agentSandboxes != nil {
		h.agentSandboxes.Serve(ctx)
	}
}

// State is the readiness of the hub, ready or failed, and the reason.
func (h *Hub) State() (state, why string) {
	if h.tasks.Context().Err() != nil {
		return "failed", "the hub is stopping"
	}
	if err := h.fleet.Fault(); err != nil {
		return "failed", "cannot watch sandboxes: " + err.Error()
	}
	if err := h.environments.Fault(); err != nil {
		return "ready", "the environments file is invalid, and its last valid content is in force: " + err.Error()
	}
	return "ready", ""
}

// Close stops the hub. Sandboxes keep running, and the provider stays open. Close is idempotent.
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
	h.stores.saveTombstones(h.cfg.Log)
	return h.release()
}
