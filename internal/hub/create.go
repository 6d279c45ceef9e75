package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pool"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// The hub's records on a sandbox, kept by the provider.
const (
	noteActive    = "cove/last-active" // Unix seconds
	noteApp       = "cove/app"
	noteScaledown = "cove/scaledown" // stop was asked for under its other name
)

// CreateIn is the sandbox to be.
type CreateIn struct {
	Full bool `query:"full" default:"false" doc:"Answer with the whole sandbox instead of a sentence"`

	Name        string            `json:"name" default:"" nullable:"true" arg:"true" doc:"Lower-case letters, digits and -, at most 50; made up when missing"`
	Environment string            `json:"environment" alias:"template" default:"" nullable:"true" doc:"Environment to make it from; without this and an image, the default"`
	Image       string            `json:"image" default:"" nullable:"true" doc:"OCI image, instead of the environment's"`
	App         string            `json:"app" default:"" nullable:"true" maxLength:"4096" doc:"Free text, kept with it"`
	Args        []string          `json:"args" nullable:"true" doc:"Arguments of its program"`
	Env         map[string]string `json:"env" nullable:"true" doc:"Environment variables"`
	Workdir     string            `json:"workdir" default:"" nullable:"true" doc:"Working directory"`
	Ports       []int             `json:"ports" nullable:"true" doc:"Ports that are served inside, beside its server's"`

	Timeout     *float64 `json:"timeout" doc:"Minutes it lives; -1: for ever"`
	IdleTimeout *float64 `json:"idle_timeout" doc:"Minutes it may be unused; -1: for ever"`
	IdlePolicy  string   `json:"idle_policy" default:"" nullable:"true" doc:"What happens then: delete, stop (also called scaledown) or pause"`

	CPU         Quantity `json:"cpu" default:"" nullable:"true" doc:"Its share when processors are short, such as 100m"`
	Memory      Quantity `json:"memory" default:"" nullable:"true" doc:"Memory reserved for it, such as 128Mi"`
	CPULimit    Quantity `json:"cpu_limit" default:"" nullable:"true" doc:"Most processor time, such as 1000m"`
	MemoryLimit Quantity `json:"memory_limit" default:"" nullable:"true" doc:"Most memory, such as 1024Mi"`
	DiskLimit   Quantity `json:"disk_limit" default:"" nullable:"true" doc:"Most disk, such as 10Gi"`

	Labels    map[string]string `json:"labels" nullable:"true" doc:"Labels to find it by"`
	Isolation string            `json:"isolation" default:"" nullable:"true" doc:"Kind of isolation"`
	Network   *Policy           `json:"network" doc:"What it may reach"`
	Volumes   []Volume          `json:"volumes" nullable:"true" doc:"Named folders that outlive it"`
	Secrets   []string          `json:"secrets" nullable:"true" maxItems:"256" doc:"Names of secrets that it gets"`
	Snapshot  string            `json:"from_snapshot" default:"" nullable:"true" doc:"Snapshot that its disk starts from"`
}

// Policy is what a sandbox may reach.
type Policy struct {
	Mode  string   `json:"mode" default:"" doc:"none; allow: only what the list says; open: everything but the host and private addresses"`
	Allow []string `json:"allow" nullable:"true" doc:"Names, *.names, addresses and ranges, each with :port behind it if only that is meant"`
}

// apply puts the policy into n and checks it.
func (p *Policy) apply(n *sandbox.Network) error {
	if p == nil {
		return nil
	}
	mode := sandbox.NetworkMode(p.Mode)
	if mode == "" {
		mode = n.Mode
		if len(p.Allow) > 0 {
			mode = sandbox.NetworkAllow
		}
	}
	*n = sandbox.Network{Mode: mode, Allow: p.Allow}
	_, err := egress.Parse(*n)
	return err
}

// Volume mounts a named folder.
type Volume struct {
	Name     string `json:"name" doc:"Name of the volume"`
	Target   string `json:"target" doc:"Where it is inside"`
	ReadOnly bool   `json:"read_only" default:"false" doc:"Only to be read"`
}

// amounts are resources as requests and environments write them.
type amounts struct{ cpu, memory, cpuLimit, memoryLimit, disk Quantity }

func (a amounts) apply(r *sandbox.Resources) error {
	for _, f := range []struct {
		what  string
		q     Quantity
		scale float64
		to    *int64
	}{
		{"cpu", a.cpu, 1000, &r.CPU}, {"cpu_limit", a.cpuLimit, 1000, &r.CPULimit},
		{"memory", a.memory, 1, &r.Memory}, {"memory_limit", a.memoryLimit, 1, &r.MemoryLimit}, {"disk_limit", a.disk, 1, &r.Disk},
	} {
		n, err := f.q.parse(f.what, f.scale)
		if err != nil {
			return err
		}
		*f.to = cmp.Or(n, *f.to)
	}
	// A limit alone lowers the share that nobody asked for, and the other way round.
	if a.cpu == "" && r.CPULimit > 0 {
		r.CPU = min(r.CPU, r.CPULimit)
	}
	if a.memory == "" && r.MemoryLimit > 0 {
		r.Memory = min(r.Memory, r.MemoryLimit)
	}
	if a.cpuLimit == "" && r.CPULimit > 0 {
		r.CPULimit = max(r.CPULimit, r.CPU)
	}
	if a.memoryLimit == "" && r.MemoryLimit > 0 {
		r.MemoryLimit = max(r.MemoryLimit, r.Memory)
	}
	return nil
}

// lease is how long a sandbox lives, as requests and environments write it.
type lease struct {
	timeout, idle *float64 // minutes
	policy        string
}

func (l lease) apply(s *sandbox.Spec) error {
	for _, f := range []struct {
		what string
		m    *float64
		to   *time.Duration
	}{{"timeout", l.timeout, &s.Lifetime.Timeout}, {"idle_timeout", l.idle, &s.Lifetime.IdleTimeout}} {
		switch {
		case f.m == nil || *f.m == 0:
		case *f.m == -1:
			*f.to = sandbox.Never
		case !(*f.m > 0) || *f.m > 1e6:
			return fmt.Errorf("%s %v: use minutes, or -1 for never", f.what, *f.m)
		default:
			*f.to = time.Duration(*f.m * float64(time.Minute))
		}
	}
	switch l.policy {
	case "":
		return nil
	case "scaledown":
		s.Lifetime.IdlePolicy = sandbox.IdleStop
		note(s, noteScaledown, "true")
	case "delete", "stop", "pause":
		s.Lifetime.IdlePolicy = sandbox.IdlePolicy(l.policy)
		delete(s.Annotations, noteScaledown)
	default:
		return fmt.Errorf("idle_policy %.40q: use delete, stop, scaledown or pause", l.policy)
	}
	return nil
}

func note(s *sandbox.Spec, key, value string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
}

// limits refuses timeouts beyond what this hub allows.
func (h *Hub) limits(l sandbox.Lifetime) error {
	if l.Timeout > h.cfg.MaxTimeout {
		return op.Errorf(op.Invalid, "timeout %v: use at most %v minutes, or -1 for never", minutes(l.Timeout), minutes(h.cfg.MaxTimeout))
	}
	if l.IdleTimeout > h.cfg.MaxIdleTimeout {
		return op.Errorf(op.Invalid, "idle_timeout %v: use at most %v minutes, or -1 for never", minutes(l.IdleTimeout), minutes(h.cfg.MaxIdleTimeout))
	}
	return nil
}

// spec completes a request. It shares nothing with the request, the environment
// or the defaults.
func (h *Hub) spec(ctx context.Context, in CreateIn) (sandbox.Spec, error) {
	name := in.Environment
	if name == "" {
		name = h.cfg.Defaults.Environment
		if in.Image != "" {
			name = custom
		}
	}
	env, err := h.environment(name)
	if err != nil {
		return sandbox.Spec{}, err
	}
	s, err := env.spec(h.cfg.Defaults)
	if err != nil {
		return s, fmt.Errorf("environment %q: %w", name, err)
	}
	s.Name, s.Owner = in.Name, owner(ctx)
	if in.Image, err = imageRef(s.Owner, in.Image); err != nil {
		return s, err
	}
	s.Image, s.Workdir = cmp.Or(in.Image, s.Image), cmp.Or(in.Workdir, s.Workdir)
	s.Isolation, s.Snapshot = cmp.Or(in.Isolation, s.Isolation), in.Snapshot
	if in.Args != nil {
		s.Args = in.Args
	}
	if in.Ports != nil {
		s.Ports = in.Ports
	}
	s.Env, s.Labels = overlay(s.Env, in.Env), overlay(s.Labels, in.Labels)
	delete(s.Env, pool.EnvInit) // ours: a server that waits would wait for ever
	for _, v := range in.Volumes {
		s.Volumes = append(s.Volumes, sandbox.Volume(v))
	}
	if in.App != "" {
		note(&s, noteApp, in.App)
	}
	a := amounts{in.CPU, in.Memory, in.CPULimit, in.MemoryLimit, in.DiskLimit}
	for _, err := range []error{a.apply(&s.Resources), in.Network.apply(&s.Network), lease{in.Timeout, in.IdleTimeout, in.IdlePolicy}.apply(&s)} {
		if err != nil {
			return s, op.Errorf(op.Invalid, "%w", err)
		}
	}
	if err := h.limits(s.Lifetime); err != nil {
		return s, err
	}
	if err := h.entrust(&s, in.Secrets); err != nil {
		return s, err
	}
	return s.Clone(), h.possible(s, in.Network != nil)
}

func overlay(base, over map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}

// possible refuses what the provider would only pretend to do.
func (h *Hub) possible(s sandbox.Spec, asked bool) error {
	able := h.cfg.Provider.Abilities()
	switch {
	case s.Lifetime.IdlePolicy == sandbox.IdlePause && s.Lifetime.IdleTimeout > 0 && !able.Pause:
		return op.Errorf(op.Invalid, "idle_policy pause: provider %s cannot pause sandboxes here; use stop or delete", able.Provider)
	case s.Lifetime.IdlePolicy == sandbox.IdleStop && s.Lifetime.IdleTimeout > 0 && !able.Stop:
		return op.Errorf(op.Invalid, "idle_policy stop: provider %s cannot stop sandboxes; use delete", able.Provider)
	case asked && s.Network.Mode != sandbox.NetworkOpen && !able.Egress:
		return op.Errorf(op.Invalid, "network %s: provider %s cannot limit what sandboxes reach", s.Network.Mode, able.Provider)
	}
	return nil
}

// CreateOut is a sentence, or the sandbox.
type CreateOut struct {
	text string
	full *Object
}

// MarshalJSON writes one of the two.
func (o CreateOut) MarshalJSON() ([]byte, error) {
	if o.full != nil {
		return json.Marshal(o.full)
	}
	return json.Marshal(o.text)
}

// SchemaOp describes both.
func (CreateOut) SchemaOp() *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Type: "string", Description: "Sandbox <name> created successfully"},
		{Type: "object", Description: "With full=true: the sandbox, as GET shows it"},
	}}
}

// Create makes a sandbox and answers when it is ready.
func (h *Hub) Create(ctx context.Context, in CreateIn) (CreateOut, error) {
	sb, err := h.create(ctx, in)
	if err != nil {
		return CreateOut{}, err
	}
	out := CreateOut{text: fmt.Sprintf("Sandbox %s created successfully", sb.Spec.Name)}
	if in.Full {
		o := h.object(ctx, sb)
		out.full = &o
	}
	return out, nil
}

// create is what all ways to create share.
func (h *Hub) create(ctx context.Context, in CreateIn) (sandbox.Sandbox, error) {
	began := time.Now()
	spec, err := h.spec(ctx, in)
	if err != nil {
		h.counts.created(1, "refused")
		return sandbox.Sandbox{}, err
	}
	holds, done, err := h.take(ctx, spec.Owner, spec)
	if err != nil {
		h.counts.created(1, "refused")
		return sandbox.Sandbox{}, err
	}
	defer done()
	sb, err := h.cfg.Provider.Create(ctx, spec)
	if err != nil {
		h.counts.created(1, "failed")
		return sandbox.Sandbox{}, h.wire(in.Name, err)
	}
	if err := h.equip(ctx, sb); err != nil {
		h.counts.created(1, "failed")
		err = op.Errorf(op.Unavailable, "%w", err)
		return sandbox.Sandbox{}, errors.Join(err, h.cfg.Provider.Delete(context.WithoutCancel(ctx), sb.ID))
	}
	holds[0].Commit(sb.ID)
	call := op.CallOf(ctx)
	call.Target, call.TargetName = sb.ID, sb.Spec.Name
	h.counts.created(1, "created")
	h.counts.took(time.Since(began))
	h.see(sb)
	return sb, nil
}
