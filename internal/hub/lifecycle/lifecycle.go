// Package lifecycle creates, shows, changes and deletes sandboxes for callers.
//
// It owns the representation of a sandbox for callers (Object) and validates requests. It rejects
// options that the provider does not support.
package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// Fleet is the set of sandboxes that the hub runs.
type Fleet interface {
	Find(ctx context.Context, name string) (sandbox.Sandbox, error)
	Observe(sandbox.Sandbox)
	Forget(id string)
	Touch(id string)
	LastActive(sandbox.Sandbox) time.Time
	Start(ctx context.Context, id string, start func(context.Context, string) error) error
	Egress(sandbox.Sandbox) *egress.Proxy // nil: none
	OpenRequests(sandbox.Sandbox) int
	Glance(ctx context.Context, sb sandbox.Sandbox, width int) fleet.Glance
	SaveRecord(ctx context.Context, sb sandbox.Sandbox)
}

// Quota reserves quota for sandboxes.
type Quota interface {
	Reserve(ctx context.Context, owner string, specs ...sandbox.Spec) (*usage.Reservation, error)
}

// Networks adds sandboxes to private networks.
type Networks interface {
	// Assign adds a new sandbox to networks, or returns why it cannot.
	Assign(ctx context.Context, s *sandbox.Spec, names []string) error
	// Names returns the names of the networks of a sandbox.
	Names(sandbox.Spec) []string
}

// Secrets assigns secrets to sandboxes.
type Secrets interface {
	Assign(s *sandbox.Spec, names []string) error
	Provision(context.Context, sandbox.Sandbox) error
}

// Config of a Service.
type Config struct {
	Provider     sandbox.Provider
	Fleet        Fleet
	Quota        Quota
	Secrets      Secrets
	Networks     Networks
	Environments *environment.Catalog
	History      *history.Log
	Tombstones   *tombstone.Log
	Bin          *trash.Bin // nil: deleted sandboxes cannot be restored
	// Templates finds a template of an owner: its values and its disk. Nil: there are none.
	Templates func(owner, name string) (environment.Environment, string, error)
	// Warm returns the number of ready sandboxes in the warm pool of each environment; nil: no pools.
	Warm func() map[string]int

	// MaxTimeout and MaxIdleTimeout are upper limits for requests.
	MaxTimeout, MaxIdleTimeout time.Duration
	// Domains are the domains under which ports have host names.
	Domains naming.Domains
	Version string
	// Tenants is whether the hub has keys and links.
	Tenants bool
	Metrics *metric.Registry
}

// Service implements the operations on sandboxes.
type Service struct {
	Config
	limits  func() []string // that the provider enforces
	created func(n float64, values ...string)
	took    func(d time.Duration, values ...string)
}

// New returns the service.
func New(cfg Config) *Service {
	return &Service{
		Config:  cfg,
		limits:  sync.OnceValue(func() []string { return cfg.Provider.Abilities().Limits }),
		created: cfg.Metrics.Counter("cove_creates_total", "Creates by result.", "result"),
		took:    cfg.Metrics.Histogram("cove_create_seconds", "Time from the request to a ready sandbox."),
	}
}

// CreateOp is the name of the operation that creates a sandbox.
const CreateOp = "sandbox_create"

const one = "/api/v1/sandbox/{name}"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: CreateOp, Route: "POST /api/v1/sandbox", Tag: "sandbox", Verb: "create",
			Doc: "Create a sandbox and reply when it is ready. All fields are optional: the name is generated if " +
				"missing, and the environment provides other defaults. " +
				"Returns a message with the name, or the full sandbox object with full=true."}, s.Create),
		op.New(op.Spec{Name: "sandbox_list", Access: op.AccessRead, Route: "GET /api/v1/sandbox", Tag: "sandbox", Verb: "list", ReadOnly: true,
			Columns: []string{"name", "status", "environment", "created_at", "ends_at", "end_action"},
			Wide:    []string{"id", "user", "image", "isolation", "url"},
			Doc: "List sandboxes, oldest first. With limit, returns one page, {items, next}; pass after=next " +
				"to get the next page."}, s.List),
		op.New(op.Spec{Name: "sandbox_get", Access: op.AccessRead, Route: "GET " + one, Tag: "sandbox", Verb: "get", ReadOnly: true,
			Doc: "Show a sandbox."}, s.Get),
		op.New(op.Spec{Name: "sandbox_delete", Route: "DELETE " + one, Tag: "sandbox", Verb: "rm", Destructive: true,
			Doc: "Delete a sandbox and everything in it. Its volumes are kept."}, s.Delete),
		undeleteOp(s),
		op.New(op.Spec{Name: "sandbox_extend", Route: "POST " + one + "/extend", Tag: "sandbox", Verb: "extend",
			Doc: "Extend the timeout of a sandbox: it expires timeout minutes from now. Can also change its idle timeout."}, s.Extend),
		op.New(op.Spec{Name: "sandbox_pause", Route: "POST " + one + "/pause", Tag: "sandbox", Verb: "pause",
			Doc: "Pause a sandbox: it stays in memory and uses no CPU. The next request resumes it."}, s.Pause),
		op.New(op.Spec{Name: "sandbox_resume", Route: "POST " + one + "/resume", Tag: "sandbox", Verb: "resume",
			Doc: "Resume a paused sandbox."}, s.Resume),
		op.New(op.Spec{Name: "sandbox_stop", Route: "POST " + one + "/stop", Tag: "sandbox", Verb: "stop",
			Doc: "Stop a sandbox: all its processes end and its disk is kept. The next request starts it."}, s.Stop),
		op.New(op.Spec{Name: "sandbox_start", Route: "POST " + one + "/start", Tag: "sandbox", Verb: "start",
			Doc: "Start a stopped or failed sandbox with its disk, and reply when it is ready."}, s.Start),
		op.New(op.Spec{Name: "sandbox_network", Access: op.AccessRead, Route: "GET " + one + "/network",
			Tag: "sandbox", Verb: "network show", ReadOnly: true,
			Doc: "Show the egress policy of a sandbox and its latest connections, including denied ones."}, s.Network),
		op.New(op.Spec{Name: "sandbox_set_network", Route: "PUT " + one + "/network", Tag: "sandbox", Verb: "network set",
			Doc: "Change the egress policy of a sandbox immediately. Connections that the new policy denies are closed."}, s.SetNetwork),
		op.New(op.Spec{Name: "sandbox_logs", Access: op.AccessRead, Content: op.ContentForeign,
			Route: "GET " + one + "/logs", Tag: "sandbox", Verb: "logs", ReadOnly: true, Produces: "text/plain",
			Doc: "Read the last output of a sandbox's main program."}, s.Logs),
		op.New(op.Spec{Name: "sandbox_stats", Access: op.AccessRead, Route: "GET " + one + "/stats", Tag: "sandbox",
			Verb: "stats", ReadOnly: true,
			Doc: "Show the resource usage of a sandbox."}, s.Stats),
		op.Stream[EventsIn, Event](op.Spec{Name: "sandbox_events", Access: op.AccessRead,
			Route: "GET " + one + "/events", Tag: "sandbox", Verb: "events", ReadOnly: true,
			Doc: "Follow the events of a sandbox as server-sent events. Last-Event-ID or after resumes an interrupted stream."}, s.Events),
		op.Stream[AllEventsIn, Event](op.Spec{Name: "hub_events", Access: op.AccessRead, Route: "GET /api/v1/events",
			Tag: "hub", Verb: "watch", ReadOnly: true,
			Doc: "Follow the events of all sandboxes as server-sent events."}, s.AllEvents),
		glanceOp(s),
		renameOp(s),
		op.New(op.Spec{Name: "hub_environments", Access: op.AccessRead, Route: "GET /api/v1/environment", Tag: "hub",
			Verb: "environments", ReadOnly: true,
			Doc: "List the environments that sandboxes can be created from."}, s.ListEnvironments),
		op.New(op.Spec{Name: "hub_info", Access: op.AccessRead, Route: "GET /api/v1/hub", Tag: "hub", Verb: "info", ReadOnly: true,
			Doc: "Show what this hub supports on its machine, and which requirements are missing."}, s.Info),
	}
}

// NameIn names a sandbox.
type NameIn struct {
	Name string `path:"name" doc:"Name of the sandbox"`
}

// Get shows a sandbox.
func (s *Service) Get(ctx context.Context, in NameIn) (Object, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	return s.Show(ctx, sb), nil
}

// Delete removes a sandbox.
func (s *Service) Delete(ctx context.Context, in NameIn) (string, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return "", err
	}
	s.Fleet.SaveRecord(ctx, sb)
	past := s.History.Story(sb)
	why := "its owner requested it"
	if sb.Spec.Lifetime.Keep != 0 && s.Bin != nil && s.Bin.Put(ctx, sb) == nil {
		why += fmt.Sprintf("; within %v minutes, cove undelete %s (POST /api/v1/sandbox/%[2]s/undelete) restores it",
			trash.Keep.Minutes(), sb.Spec.Name)
	} else if err := s.Provider.Delete(ctx, sb.ID); err != nil {
		return "", fault.FromProvider(in.Name, err)
	}
	s.Fleet.Forget(sb.ID)
	s.Tombstones.Add(sb, time.Now(), why, past)
	return "Sandbox " + in.Name + " deleted successfully", nil
}

// Discard deletes a sandbox that was never returned to a caller.
func (s *Service) Discard(ctx context.Context, id string) {
	if s.Provider.Delete(ctx, id) == nil {
		s.Fleet.Forget(id)
	}
}

// ExtendIn is a new timeout.
type ExtendIn struct {
	Name        string   `path:"name" doc:"Name of the sandbox"`
	Timeout     *float64 `json:"timeout" doc:"Minutes from now until the timeout; -1: never. Default if no field is set"`
	IdleTimeout *float64 `json:"idle_timeout" doc:"Minutes without use until the idle policy applies; -1: never"`
	IdlePolicy  string   `json:"idle_policy" default:"" nullable:"true" doc:"Action if idle: delete, stop (or scaledown) or pause"`

	TimeoutPolicy string `json:"timeout_policy" default:"" nullable:"true" doc:"Action at the timeout: delete, stop or pause"`
}

// Extend changes the timeouts of a sandbox.
func (s *Service) Extend(ctx context.Context, in ExtendIn) (Object, error) {
	timeout := s.Environments.Defaults().Timeout
	if in.Timeout == nil && in.IdleTimeout == nil && in.IdlePolicy == "" && in.TimeoutPolicy == "" {
		in.Timeout = new(environment.Minutes(timeout))
	}
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	sb, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		next := spec.Clone()
		next.Lifetime.Timeout = timeout
		if err := (environment.Lease{Timeout: in.Timeout, Idle: in.IdleTimeout, Policy: in.IdlePolicy,
			End: in.TimeoutPolicy}).Apply(&next); err != nil {
			return op.Errorf(op.Invalid, "%w", err)
		}
		if err := s.checkLifetime(next.Lifetime); err != nil {
			return err
		}
		if err := s.checkAbilities(next, false); err != nil {
			return err
		}
		switch {
		case in.Timeout == nil:
			next.Lifetime.Timeout = spec.Lifetime.Timeout
		case next.Lifetime.Timeout > 0:
			if next.Lifetime.Period > 0 {
				next.Lifetime.Period = next.Lifetime.Timeout
			}
			next.Lifetime.Timeout += time.Since(sb.Created)
		}
		*spec = next
		return nil
	})
	if err != nil {
		return Object{}, fault.FromProvider(in.Name, err)
	}
	s.Fleet.Touch(sb.ID)
	s.Fleet.Observe(sb)
	return s.Show(ctx, sb), nil
}

// PauseIn selects how to pause a sandbox.
type PauseIn struct {
	Name   string `path:"name" doc:"Name of the sandbox"`
	ToDisk bool   `json:"to_disk" default:"false" nullable:"true" doc:"Save memory to disk and free it. Requires isolation gvisor"`
}

// Pause pauses a sandbox.
func (s *Service) Pause(ctx context.Context, in PauseIn) (Object, error) {
	if in.ToDisk {
		saver, ok := s.Provider.(sandbox.Saver)
		if a := s.Provider.Abilities(); ok && a.PauseToDisk {
			return s.suspend(ctx, in.Name, saver.PauseToDisk)
		}
		if _, err := s.Fleet.Find(ctx, in.Name); err != nil {
			return Object{}, err
		}
		return Object{}, op.Errorf(op.Invalid,
			"to_disk: provider %s cannot save processes to disk here, because that requires gVisor (runsc) and a hub with root; "+
				"pause without to_disk to keep the sandbox in memory, or stop it to keep only its disk", s.Provider.Abilities().Provider)
	}
	return s.suspend(ctx, in.Name, s.Provider.Pause)
}

// Resume resumes a sandbox.
func (s *Service) Resume(ctx context.Context, in NameIn) (Object, error) {
	return s.Change(ctx, in.Name, s.Provider.Resume)
}

// Stop stops a sandbox.
func (s *Service) Stop(ctx context.Context, in NameIn) (Object, error) {
	return s.suspend(ctx, in.Name, s.Provider.Stop)
}

// Start starts a sandbox.
func (s *Service) Start(ctx context.Context, in NameIn) (Object, error) {
	return s.Change(ctx, in.Name, func(ctx context.Context, id string) error { return s.Fleet.Start(ctx, id, s.Provider.Start) })
}

// suspend saves the activity record of a sandbox, then pauses or stops it: a suspended sandbox cannot
// be queried.
func (s *Service) suspend(ctx context.Context, name string, do func(ctx context.Context, id string) error) (Object, error) {
	if sb, err := s.Fleet.Find(ctx, name); err == nil {
		s.Fleet.SaveRecord(ctx, sb)
	}
	return s.Change(ctx, name, do)
}

// Change changes the state of a sandbox and returns it.
func (s *Service) Change(ctx context.Context, name string, do func(ctx context.Context, id string) error) (Object, error) {
	sb, err := s.Fleet.Find(ctx, name)
	if err != nil {
		return Object{}, err
	}
	// A change of state counts as use: it restarts the idle timeout.
	s.Fleet.Touch(sb.ID)
	if err := do(ctx, sb.ID); err != nil {
		return Object{}, fault.FromProvider(name, err)
	}
	s.Fleet.Touch(sb.ID)
	if sb, err = s.Provider.Get(ctx, sb.ID); err != nil {
		return Object{}, fault.FromProvider(name, err)
	}
	s.Fleet.Observe(sb)
	return s.Show(ctx, sb), nil
}

// Enforced returns resources without the limits that the provider cannot enforce.
func Enforced(s *Service, r sandbox.Resources) sandbox.Resources {
	return sandbox.Abilities{Limits: s.limits()}.Enforced(r)
}

// ListEnvironments lists the environments, without limits that are not enforced. Their variables can contain secrets of the operator, so
// only admins see them.
func (s *Service) ListEnvironments(ctx context.Context, _ op.None) ([]environment.Environment, error) {
	list := slices.Clone(s.Environments.List())
	for i, e := range list {
		able := Enforced(s, sandbox.Resources{CPULimit: 1, MemoryLimit: 1, Disk: 1})
		for limit, enforced := range map[*environment.Quantity]int64{&e.CPULimit: able.CPULimit, &e.MemoryLimit: able.MemoryLimit,
			&e.DiskLimit: able.Disk} {
			if enforced == 0 {
				*limit = ""
			}
		}
		list[i] = e
	}
	if !caller.IsAdmin(op.CallOf(ctx)) {
		for i := range list {
			list[i].Env = nil
		}
	}
	return list, nil
}

// Info describes the abilities of a hub.
type Info struct {
	Version   string            `json:"version"`
	Abilities sandbox.Abilities `json:"abilities" doc:"What the provider supports on this machine, and which requirements are missing"`
	Fault     string            `json:"environments_fault,omitempty" doc:"Error in the environments file"`
	Pools     []Pool            `json:"pools,omitempty" doc:"Warm pools; only for admins"`
	Tenants   bool              `json:"tenants" doc:"Whether it has tenants, keys and links"`
	Defaults  Defaults          `json:"defaults" doc:"Of sandboxes whose request and environment set nothing else"`
}

// Defaults apply to sandboxes that set nothing else.
type Defaults struct {
	Environment string  `json:"environment"`
	CPULimit    string  `json:"cpu_limit" doc:"Empty: not limited"`
	MemoryLimit string  `json:"memory_limit" doc:"Empty: not limited"`
	DiskLimit   string  `json:"disk_limit" doc:"Empty: not limited"`
	Timeout     float64 `json:"timeout" doc:"Minutes; -1: never"`
	IdleTimeout float64 `json:"idle_timeout" doc:"Minutes; -1: never"`
	IdlePolicy  string  `json:"idle_policy"`
	Network     string  `json:"network" doc:"Mode of the egress policy"`
	MaxTimeout  float64 `json:"max_timeout" doc:"Maximum timeout of a request, in minutes"`
}

func defaultsOf(s *Service) Defaults {
	d := s.Environments.Defaults()
	d.Resources = Enforced(s, d.Resources)
	return Defaults{Environment: d.Environment, CPULimit: environment.FormatCPU(d.Resources.CPULimit),
		MemoryLimit: environment.FormatSize(d.Resources.MemoryLimit), DiskLimit: environment.FormatSize(d.Resources.Disk),
		Timeout: environment.Minutes(d.Timeout), IdleTimeout: environment.Minutes(d.IdleTimeout), IdlePolicy: string(d.IdlePolicy),
		Network: string(d.Network.Mode), MaxTimeout: environment.Minutes(s.MaxTimeout)}
}

// Pool is the warm pool of an environment.
type Pool struct {
	Environment string `json:"environment" doc:"Name of the environment"`
	Size        int    `json:"size" doc:"Number of sandboxes to keep ready"`
	Ready       int    `json:"ready" doc:"Number of sandboxes that are ready"`
}

// Info returns the abilities of the hub.
func (s *Service) Info(ctx context.Context, _ op.None) (Info, error) {
	i := Info{Version: s.Version, Abilities: s.Provider.Abilities(), Tenants: s.Tenants, Defaults: defaultsOf(s)}
	if err := s.Environments.Fault(); err != nil {
		i.Fault = err.Error()
	}
	if s.Warm != nil && caller.IsAdmin(op.CallOf(ctx)) {
		ready := s.Warm()
		for name, w := range s.Environments.Warm() {
			i.Pools = append(i.Pools, Pool{name, w.Size, ready[name]})
		}
		slices.SortFunc(i.Pools, func(a, b Pool) int { return strings.Compare(a.Environment, b.Environment) })
	}
	return i, nil
}
