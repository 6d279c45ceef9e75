package hub

import (
	"context"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pool"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Object is a sandbox as callers see it.
type Object struct {
	Name        string            `json:"name" doc:"Name, unique among its owner's"`
	ID          string            `json:"id" doc:"Name for its whole life, never used again"`
	User        string            `json:"user,omitempty" doc:"Owner"`
	Environment string            `json:"environment"`
	Image       string            `json:"image"`
	App         string            `json:"app,omitempty"`
	Args        []string          `json:"args"`
	Env         map[string]string `json:"env"`
	Workdir     string            `json:"workdir"`
	Ports       []int             `json:"ports"`
	Labels      map[string]string `json:"labels"`

	Timeout     float64 `json:"timeout" doc:"Minutes from its creation to its end; -1: it has none"`
	IdleTimeout float64 `json:"idle_timeout" doc:"Minutes it may be unused; -1: for ever"`
	IdlePolicy  string  `json:"idle_policy" doc:"What happens then"`
	CPU         string  `json:"cpu"`
	Memory      string  `json:"memory"`
	CPULimit    string  `json:"cpu_limit"`
	MemoryLimit string  `json:"memory_limit"`
	DiskLimit   string  `json:"disk_limit,omitempty"`

	Status       string     `json:"status" enum:"creating,running,paused,stopped,failed,deleting"`
	Message      string     `json:"message,omitempty" doc:"Why it is in this state"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at" doc:"When its time is up; null: never"`
	LastActiveAt time.Time  `json:"last_active_at" doc:"When it was last used"`

	URL       string            `json:"url" doc:"Its server, as the caller reaches it"`
	Endpoints map[string]string `json:"endpoints" doc:"Further addresses: mcp, and each port"`
	Isolation string            `json:"isolation,omitempty"`
	Network   Policy            `json:"network"`
	Volumes   []Volume          `json:"volumes"`
	Snapshot  string            `json:"from_snapshot,omitempty"`
	Secrets   []string          `json:"secrets,omitempty" doc:"Names of the secrets that it was given"`
	Stages    []Stage           `json:"stages" doc:"Where the time of the latest create or start went"`
}

// Stage is one step of making a sandbox.
type Stage struct {
	Name string  `json:"name"`
	Took float64 `json:"took_ms" doc:"Milliseconds"`
}

// minutes writes a timeout.
func minutes(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Minutes()
}

// object shows a sandbox to the caller.
func (h *Hub) object(ctx context.Context, sb sandbox.Sandbox) Object {
	s := sb.Spec
	o := Object{
		Name: s.Name, ID: sb.ID, User: s.Owner, Environment: s.Environment, Image: imageName(s.Image), App: s.Annotations[noteApp],
		Args: s.Args, Env: s.Env, Workdir: s.Workdir, Ports: s.Ports, Labels: s.Labels,
		Timeout: minutes(s.Lifetime.Timeout), IdleTimeout: minutes(s.Lifetime.IdleTimeout), IdlePolicy: string(s.Lifetime.IdlePolicy),
		CPU: processors(s.Resources.CPU), Memory: size(s.Resources.Memory), CPULimit: processors(s.Resources.CPULimit),
		MemoryLimit: size(s.Resources.MemoryLimit), DiskLimit: size(s.Resources.Disk),
		Status: string(sb.State), Message: sb.Message, CreatedAt: sb.Created.UTC(), LastActiveAt: h.lastActive(sb).UTC(),
		Isolation: s.Isolation, Network: Policy{Mode: string(s.Network.Mode), Allow: s.Network.Allow}, Snapshot: s.Snapshot,
	}
	if o.Secrets = secretNames(s); o.Secrets != nil {
		// Our own affair.
		o.Env = maps.Clone(o.Env)
		delete(o.Env, pool.EnvInit)
	}
	if s.Annotations[noteScaledown] != "" {
		o.IdlePolicy = "scaledown"
	}
	if at, ok := expiry(sb); ok {
		o.ExpiresAt = new(at.UTC())
	}
	for _, v := range s.Volumes {
		o.Volumes = append(o.Volumes, Volume(v))
	}
	for _, st := range sb.Stages {
		o.Stages = append(o.Stages, Stage{st.Name, float64(st.Took.Microseconds()) / 1000})
	}
	h.addresses(ctx, &o)
	o.full()
	return o
}

// full makes nil lists empty, also where no surface does it: a client that
// iterates must not find null.
func (o *Object) full() {
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

// addresses tells how the caller reaches the sandbox.
func (h *Hub) addresses(ctx context.Context, o *Object) {
	call := op.CallOf(ctx)
	// A foreign one is not found by its name.
	name := o.Name
	if o.User != owner(ctx) || call.Share != nil {
		name = o.ID
	}
	at := func(path string) string { return call.URL("http", prefix(name)+path, "") }
	o.URL = at("/")
	o.Endpoints = map[string]string{"mcp": at("/mcp")}
	for _, p := range o.Ports {
		o.Endpoints["port-"+strconv.Itoa(p)] = at("/proxy/" + strconv.Itoa(p) + "/")
	}
	if call.Base == nil || len(o.Ports) == 0 {
		return
	}
	host, port, err := net.SplitHostPort(call.Base.Host)
	if err != nil {
		host, port = call.Base.Host, ""
	}
	// A page on a host of its own shares no cookies and no scripts with others.
	if domain, ok := h.domain(host); ok {
		for _, p := range o.Ports {
			u := *call.Base
			u.Host = strconv.Itoa(p) + "-" + name + "." + domain
			if port != "" {
				u.Host = net.JoinHostPort(u.Host, port)
			}
			u.Path += "/"
			o.Endpoints["host-"+strconv.Itoa(p)] = u.String()
		}
	}
}

// prefix is where a sandbox is below the hub.
func prefix(name string) string { return "/sandbox/" + name }
