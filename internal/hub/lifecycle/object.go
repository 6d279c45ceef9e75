package lifecycle

import (
	"cmp"
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Object is a sandbox as callers see it.
type Object struct {
	Name        string            `json:"name" doc:"Name, unique for its owner"`
	ID          string            `json:"id" doc:"Unique ID, never reused"`
	User        string            `json:"user,omitempty" doc:"Owner"`
	Environment string            `json:"environment"`
	Image       string            `json:"image"`
	App         string            `json:"app,omitempty"`
	Args        []string          `json:"args"`
	Env         map[string]string `json:"env"`
	Workdir     string            `json:"workdir"`
	Ports       []int             `json:"ports"`
	Labels      map[string]string `json:"labels"`

	Timeout     float64 `json:"timeout" doc:"Minutes from its creation until the timeout policy applies; -1: never"`
	End         string  `json:"timeout_policy" doc:"Action at the timeout"`
	IdleTimeout float64 `json:"idle_timeout" doc:"Minutes without use until the idle policy applies; -1: never"`
	IdlePolicy  string  `json:"idle_policy" doc:"Action if idle"`
	CPU         string  `json:"cpu"`
	Memory      string  `json:"memory"`
	CPULimit    string  `json:"cpu_limit" doc:"Empty: not limited"`
	MemoryLimit string  `json:"memory_limit" doc:"Empty: not limited"`
	DiskLimit   string  `json:"disk_limit,omitempty"`
	DiskRate    string  `json:"disk_rate_limit,omitempty" doc:"Bytes per second, for reads and for writes"`
	Bandwidth   string  `json:"bandwidth_limit,omitempty" doc:"Bytes per second, for each direction"`

	Status       string     `json:"status" enum:"creating,running,paused,stopped,failed,deleting"`
	Message      string     `json:"message,omitempty" doc:"Reason for the state"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at" doc:"Time at which the timeout policy applies; null: never"`
	EndsAt       *time.Time `json:"ends_at" doc:"Time at which the first policy applies if the sandbox is not used; null: never"`
	EndAction    string     `json:"end_action,omitempty" doc:"Action at that time: delete, stop or pause"`
	LastActiveAt time.Time  `json:"last_active_at" doc:"Time of last use"`

	URL       string             `json:"url" doc:"URL of its server"`
	Endpoints map[string]string  `json:"endpoints" doc:"Other URLs: mcp, and each port"`
	Isolation string             `json:"isolation,omitempty"`
	Network   environment.Policy `json:"network"`
	Volumes   []Volume           `json:"volumes"`
	Snapshot  string             `json:"from_snapshot,omitempty"`
	Secrets   []string           `json:"secrets,omitempty" doc:"Names of secrets that it uses"`
	Networks  []string           `json:"networks,omitempty" doc:"Names of private networks that it is in"`
	Stages    []Stage            `json:"stages" doc:"Timing of the latest create or start"`
}

// Stage is the timing of one step of a create or start.
type Stage struct {
	Name string  `json:"name"`
	Took float64 `json:"took_ms" doc:"Milliseconds"`
}

// Show returns a sandbox as the caller sees it.
func (s *Service) Show(ctx context.Context, sb sandbox.Sandbox) Object {
	spec := sb.Spec
	spec.Resources = Enforced(s, spec.Resources)
	o := Object{
		Name: spec.Name, ID: sb.ID, User: spec.Owner, Environment: spec.Environment, Image: naming.ImageName(spec.Image),
		App:  spec.Annotations[naming.AnnotationApp],
		Args: spec.Args, Env: spec.Env, Workdir: spec.Workdir, Ports: spec.Ports, Labels: spec.Labels,
		Timeout:     environment.Minutes(spec.Lifetime.Timeout),
		IdleTimeout: environment.Minutes(spec.Lifetime.IdleTimeout), IdlePolicy: string(spec.Lifetime.IdlePolicy),
		End: string(cmp.Or(spec.Lifetime.EndPolicy, sandbox.IdleDelete)),
		CPU: environment.FormatCPU(spec.Resources.CPU), Memory: environment.FormatSize(spec.Resources.Memory),
		CPULimit:    environment.FormatCPU(spec.Resources.CPULimit),
		MemoryLimit: environment.FormatSize(spec.Resources.MemoryLimit), DiskLimit: environment.FormatSize(spec.Resources.Disk),
		DiskRate: environment.FormatSize(spec.Resources.DiskRate), Bandwidth: environment.FormatSize(spec.Resources.Bandwidth),
		Status: string(sb.State), Message: sb.Message, CreatedAt: sb.Created.UTC(), LastActiveAt: s.Fleet.LastActive(sb).UTC(),
		Isolation: spec.Isolation, Network: environment.Policy{Mode: string(spec.Network.Mode),
			Allow: spec.Network.Allow}, Snapshot: spec.Snapshot,
	}
	o.Networks = s.Networks.Names(spec)
	if o.Secrets = secret.Names(spec); o.Secrets != nil {
		o.Env = maps.Clone(o.Env)
		secret.HideEnv(o.Env)
	}
	if spec.Annotations[naming.AnnotationScaledown] != "" {
		o.IdlePolicy = "scaledown"
	}
	if at, ok := fleet.Expiry(sb); ok {
		o.ExpiresAt = new(at.UTC())
	}
	if at, action, ok := fleet.Deadline(sb, o.LastActiveAt); ok {
		o.EndsAt, o.EndAction = new(at.UTC()), string(action)
	}
	for _, v := range spec.Volumes {
		o.Volumes = append(o.Volumes, Volume(v))
	}
	for _, st := range sb.Stages {
		o.Stages = append(o.Stages, Stage{st.Name, float64(st.Took.Microseconds()) / 1000})
	}
	s.addAddresses(ctx, &o)
	o.fillLists()
	return o
}

// fillLists replaces nil lists by empty ones, because not every surface does: clients iterate over
// them and must not get null.
func (o *Object) fillLists() {
	if o.Args == nil {
		o.Args = []string{}
	}
	if o.Env == nil {
		o.Env = map[string]string{}
	}
	if o.Ports == nil {
		o.Ports = []int{}
	}
	if o.Labels == nil {
		o.Labels = map[string]string{}
	}
	if o.Network.Allow == nil {
		o.Network.Allow = []string{}
	}
	if o.Volumes == nil {
		o.Volumes = []Volume{}
	}
	if o.Stages == nil {
		o.Stages = []Stage{}
	}
}

// addAddresses adds the addresses at which the caller reaches the sandbox.
func (s *Service) addAddresses(ctx context.Context, o *Object) {
	call := op.CallOf(ctx)
	// A name finds only the caller's own sandboxes.
	name := o.Name
	if o.User != caller.Owner(ctx) || call.Share != nil {
		name = o.ID
	}
	at := func(path string) string { return call.URL("http", naming.Path(name)+path, "") }
	o.URL = at("/")
	o.Endpoints = map[string]string{"mcp": at("/mcp")}
	for _, p := range o.Ports {
		port := strconv.Itoa(p)
		o.Endpoints["port-"+port] = at("/proxy/" + port + "/")
		if call.Base == nil {
			continue
		}
		if u, ok := s.Domains.Port(*call.Base, name, p); ok {
			o.Endpoints["host-"+port] = u
		}
	}
}
