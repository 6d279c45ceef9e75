package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// CreateIn describes a new sandbox.
type CreateIn struct {
	Full bool `query:"full" default:"false" doc:"Return the full sandbox object instead of a message"`

	Name        string `json:"name" default:"" nullable:"true" arg:"true" doc:"Name (a-z, 0-9 and -, at most 50). Default: generated"`
	Environment string `json:"environment" alias:"template" default:"" nullable:"true" doc:"Environment. Without it and image: the default"`

	Image   string            `json:"image" default:"" nullable:"true" doc:"OCI image, instead of the environment's"`
	App     string            `json:"app" default:"" nullable:"true" maxLength:"4096" doc:"Free text, stored with the sandbox"`
	Args    []string          `json:"args" nullable:"true" doc:"Arguments of its main program"`
	Env     map[string]string `json:"env" nullable:"true" short:"e" doc:"Environment variables"`
	Workdir string            `json:"workdir" default:"" nullable:"true" doc:"Working directory"`
	Ports   []int             `json:"ports" nullable:"true" doc:"Additional ports that programs inside serve"`

	Timeout       *float64 `json:"timeout" doc:"Minutes until the timeout policy applies; -1: never. Waking restarts it"`
	TimeoutPolicy string   `json:"timeout_policy" default:"" nullable:"true" doc:"Action at the timeout: delete (default), stop or pause"`
	IdleTimeout   *float64 `json:"idle_timeout" doc:"Minutes without use until the idle policy applies; -1: never"`
	IdlePolicy    string   `json:"idle_policy" default:"" nullable:"true" doc:"Action if idle: delete, stop (or scaledown) or pause"`

	Keep bool `json:"keep" default:"false" nullable:"true" doc:"Default: stop it if idle, no timeout, delete it after days without use"`

	CPU         environment.Quantity `json:"cpu" default:"" nullable:"true" doc:"CPU request, such as 100m: its share when CPUs are busy"`
	Memory      environment.Quantity `json:"memory" default:"" nullable:"true" doc:"Memory request, such as 128Mi"`
	CPULimit    environment.Quantity `json:"cpu_limit" default:"" nullable:"true" doc:"CPU limit, such as 1000m"`
	MemoryLimit environment.Quantity `json:"memory_limit" default:"" nullable:"true" doc:"Memory limit, such as 1024Mi"`
	DiskLimit   environment.Quantity `json:"disk_limit" default:"" nullable:"true" doc:"Disk limit, such as 10Gi"`
	DiskRate    environment.Quantity `json:"disk_rate_limit" default:"" nullable:"true" doc:"Limit of disk reads and of writes in bytes/s"`
	Bandwidth   environment.Quantity `json:"bandwidth_limit" default:"" nullable:"true" doc:"Network limit per direction in bytes/s"`

	Labels    map[string]string   `json:"labels" short:"l" nullable:"true" doc:"Labels to filter lists by"`
	Isolation string              `json:"isolation" default:"" nullable:"true" doc:"Isolation mechanism"`
	Network   *environment.Policy `json:"network" doc:"Egress policy"`
	Volumes   []Volume            `json:"volumes" nullable:"true" doc:"Volumes to mount"`
	Secrets   []string            `json:"secrets" nullable:"true" maxItems:"256" doc:"Names of secrets that it uses"`
	Networks  []string            `json:"networks" nullable:"true" maxItems:"16" doc:"Names of private networks to join"`
	Snapshot  string              `json:"from_snapshot" default:"" nullable:"true" doc:"Snapshot to start its disk from"`
}

// Volume mounts a volume.
type Volume struct {
	Name     string `json:"name" doc:"Name of the volume"`
	Target   string `json:"target" doc:"Absolute path where it is mounted"`
	ReadOnly bool   `json:"read_only" default:"false" doc:"Mount it read-only"`
}

// checkLifetime rejects timeouts above the limits of this hub.
func (s *Service) checkLifetime(l sandbox.Lifetime) error {
	if l.Timeout > s.MaxTimeout {
		return op.Errorf(op.Invalid, "timeout %v: use at most %v minutes, or -1 for never",
			environment.Minutes(l.Timeout), environment.Minutes(s.MaxTimeout))
	}
	if l.IdleTimeout > s.MaxIdleTimeout {
		return op.Errorf(op.Invalid, "idle_timeout %v: use at most %v minutes, or -1 for never",
			environment.Minutes(l.IdleTimeout), environment.Minutes(s.MaxIdleTimeout))
	}
	return nil
}

// checkAbilities rejects options that the provider does not support. networkGiven means that the
// request has an egress policy.
func (s *Service) checkAbilities(spec sandbox.Spec, networkGiven bool) error {
	able := s.Provider.Abilities()
	idles := spec.Lifetime.IdleTimeout > 0
	asked := max(spec.Resources.MemoryLimit, spec.Resources.Memory)
	switch {
	case able.MaxMemory > 0 && asked > able.MaxMemory:
		return op.Errorf(op.Invalid, "memory_limit %s: this machine has %s; request at most that",
			environment.FormatSize(asked), environment.FormatSize(able.MaxMemory>>20<<20))
	case idles && spec.Lifetime.IdlePolicy == sandbox.IdlePause && !able.Pause:
		return op.Errorf(op.Invalid, "idle_policy pause: provider %s cannot pause sandboxes here; use stop or delete", able.Provider)
	case idles && spec.Lifetime.IdlePolicy == sandbox.IdleStop && !able.Stop:
		return op.Errorf(op.Invalid, "idle_policy stop: provider %s cannot stop sandboxes; use delete", able.Provider)
	case spec.Lifetime.EndPolicy == sandbox.IdlePause && !able.Pause:
		return op.Errorf(op.Invalid, "timeout_policy pause: provider %s cannot pause sandboxes here; use stop or delete", able.Provider)
	case spec.Lifetime.EndPolicy == sandbox.IdleStop && !able.Stop:
		return op.Errorf(op.Invalid, "timeout_policy stop: provider %s cannot stop sandboxes; use delete", able.Provider)
	case spec.Resources.DiskRate > 0 && !slices.Contains(able.Limits, "disk_rate"):
		return op.Errorf(op.Invalid, "disk_rate_limit: provider %s cannot limit disk throughput here; run cove doctor to see why", able.Provider)
	case spec.Resources.Bandwidth > 0 && !able.Egress:
		return op.Errorf(op.Invalid, "bandwidth_limit: provider %s cannot limit bandwidth", able.Provider)
	case networkGiven && spec.Network.Mode != sandbox.NetworkOpen && !able.Egress:
		return op.Errorf(op.Invalid, "network %s: provider %s cannot restrict egress", spec.Network.Mode, able.Provider)
	}
	return nil
}

// checkImported rejects an imported image that does not exist: the provider would try to pull it
// from a registry.
func (s *Service) checkImported(ctx context.Context, name, ref string) error {
	p, ok := s.Provider.(sandbox.Importer)
	if !ok || !strings.HasPrefix(name, naming.Imported) || !s.Provider.Abilities().Image {
		return nil
	}
	list, err := p.Images(ctx, ref)
	if err != nil {
		return fault.FromProvider("", err)
	}
	for _, i := range list {
		if i.Ref == ref || strings.HasPrefix(i.Ref, ref+":") {
			return nil
		}
	}
	return op.Errorf(op.NotFound, "no image %q; list imported images with GET /api/v1/image", name)
}

// fitCPU rejects a request for more CPUs than the machine has. Values of environments and defaults
// are lowered instead, because they apply to many machines.
func (s *Service) fitCPU(r *sandbox.Resources, in CreateIn) error {
	most := s.Provider.Abilities().MaxCPU
	if most == 0 {
		return nil
	}
	for _, c := range []struct {
		name  string
		given environment.Quantity
		value int64
	}{{"cpu", in.CPU, r.CPU}, {"cpu_limit", in.CPULimit, r.CPULimit}} {
		if c.given != "" && c.value > most {
			return op.Errorf(op.Invalid, "%s %s: this machine has %s; request at most that", c.name,
				environment.FormatCPU(c.value), environment.FormatCPU(most))
		}
	}
	r.CPU, r.CPULimit = min(r.CPU, most), min(r.CPULimit, most)
	return nil
}

// checkLimits rejects limits that the provider cannot enforce. Those of environments and defaults apply to
// many machines; they are not shown where they are not enforced.
func checkLimits(s *Service, in CreateIn) error {
	for _, l := range []struct {
		name, kind string
		given      environment.Quantity
	}{{"memory_limit", "memory", in.MemoryLimit}, {"cpu_limit", "cpu", in.CPULimit}, {"disk_limit", "disk", in.DiskLimit}} {
		if l.given != "" && !slices.Contains(s.limits(), l.kind) {
			return op.Errorf(op.Invalid, "%s: provider %s cannot limit %s here; omit it, or run cove doctor to see what is missing",
				l.name, s.Provider.Abilities().Provider, l.kind)
		}
	}
	return nil
}

// findEnvironment returns the environment or the template that a request names, or the default, and the disk of a
// template.
func (s *Service) findEnvironment(ctx context.Context, in CreateIn) (env environment.Environment, layer string, err error) {
	name := in.Environment
	if name == "" {
		name = s.Environments.Defaults().Environment
		if in.Image != "" {
			name = environment.Custom
		}
	}
	if env, err = s.Environments.Find(name); err == nil || s.Templates == nil {
		return env, "", err
	}
	env, layer, unknown := s.Templates(caller.Owner(ctx), name)
	if unknown != nil {
		return env, "", err
	}
	return env, layer, nil
}

// spec completes a request. The result shares no memory with the request, the environment or the
// defaults.
func (s *Service) spec(ctx context.Context, env environment.Environment, in CreateIn) (sandbox.Spec, error) {
	defaults := s.Environments.Defaults()
	if in.Keep && s.Provider.Abilities().Stop {
		defaults = defaults.Kept()
	}
	spec, err := env.Spec(defaults)
	if err != nil {
		return spec, fmt.Errorf("environment %q: %w", env.Name, err)
	}
	spec.Name, spec.Owner = in.Name, caller.Owner(ctx)
	named := in.Image
	if in.Image, err = naming.ResolveImage(spec.Owner, named); err != nil {
		return spec, err
	}
	if err := s.checkImported(ctx, named, in.Image); err != nil {
		return spec, err
	}
	spec.Image, spec.Workdir = cmp.Or(in.Image, spec.Image), cmp.Or(in.Workdir, spec.Workdir)
	spec.Isolation, spec.Snapshot = cmp.Or(in.Isolation, spec.Isolation), in.Snapshot
	if in.Args != nil {
		spec.Args = in.Args
	}
	if in.Ports != nil {
		spec.Ports = in.Ports
	}
	spec.Env, spec.Labels = overlay(spec.Env, in.Env), overlay(spec.Labels, in.Labels)
	for _, v := range in.Volumes {
		spec.Volumes = append(spec.Volumes, sandbox.Volume(v))
	}
	if in.App != "" {
		naming.Annotate(&spec, naming.AnnotationApp, in.App)
	}
	amounts := environment.Amounts{CPU: in.CPU, Memory: in.Memory, CPULimit: in.CPULimit, MemoryLimit: in.MemoryLimit,
		Disk: in.DiskLimit, DiskRate: in.DiskRate, Bandwidth: in.Bandwidth}
	lease := environment.Lease{Timeout: in.Timeout, Idle: in.IdleTimeout, Policy: in.IdlePolicy, End: in.TimeoutPolicy}
	for _, err := range []error{amounts.Apply(&spec.Resources), in.Network.Apply(&spec.Network), lease.Apply(&spec)} {
		if err != nil {
			return spec, op.Errorf(op.Invalid, "%w", err)
		}
	}
	if err := cmp.Or(checkLimits(s, in), s.fitCPU(&spec.Resources, in)); err != nil {
		return spec, err
	}
	if err := s.checkLifetime(spec.Lifetime); err != nil {
		return spec, err
	}
	if err := s.Secrets.Assign(&spec, in.Secrets); err != nil {
		return spec, err
	}
	if err := s.Networks.Assign(ctx, &spec, in.Networks); err != nil {
		return spec, err
	}
	return spec.Clone(), s.checkAbilities(spec, in.Network != nil)
}

func overlay(base, over map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}

// CreateOut is a message or the sandbox.
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

// Create creates a sandbox and replies when it is ready.
func (s *Service) Create(ctx context.Context, in CreateIn) (CreateOut, error) {
	sb, err := s.Make(ctx, in)
	if err != nil {
		return CreateOut{}, err
	}
	out := CreateOut{text: fmt.Sprintf("Sandbox %s created successfully", sb.Spec.Name)}
	if in.Full {
		o := s.Show(ctx, sb)
		out.full = &o
	}
	return out, nil
}

// Make creates a sandbox for any kind of request.
func (s *Service) Make(ctx context.Context, in CreateIn) (sandbox.Sandbox, error) {
	return s.MakeWith(ctx, in, func(*sandbox.Spec) {})
}

// MakeWith creates a sandbox whose Spec change completes.
func (s *Service) MakeWith(ctx context.Context, in CreateIn, change func(*sandbox.Spec)) (sandbox.Sandbox, error) {
	env, layer, err := s.findEnvironment(ctx, in)
	if err != nil {
		s.created(1, "refused")
		return sandbox.Sandbox{}, err
	}
	return s.MakeFrom(ctx, env, in, func(spec *sandbox.Spec) {
		spec.Snapshot = cmp.Or(spec.Snapshot, layer)
		change(spec)
	})
}

// MakeFrom creates a sandbox of an environment that need not be in the catalog.
func (s *Service) MakeFrom(ctx context.Context, env environment.Environment, in CreateIn,
	change func(*sandbox.Spec)) (sandbox.Sandbox, error) {
	began := time.Now()
	spec, err := s.spec(ctx, env, in)
	if err == nil {
		change(&spec)
		err = fault.FromProvider("", errors.Join(spec.Validate(), sandbox.CheckNewName(spec.Name)))
	}
	if err != nil {
		s.created(1, "refused")
		return sandbox.Sandbox{}, err
	}
	room, err := s.Quota.Reserve(ctx, spec.Owner, spec)
	if err != nil {
		s.created(1, "refused")
		return sandbox.Sandbox{}, err
	}
	defer room.Release()
	sb, err := s.Provider.Create(room.Bound(ctx), spec)
	if err != nil {
		s.created(1, "failed")
		return sandbox.Sandbox{}, fault.FromProvider(in.Name, err)
	}
	if err := s.Secrets.Provision(ctx, sb); err != nil {
		s.created(1, "failed")
		return sandbox.Sandbox{}, errors.Join(err, s.Provider.Delete(context.WithoutCancel(ctx), sb.ID))
	}
	room.Commit(ctx, 0, sb.ID)
	call := op.CallOf(ctx)
	call.Target, call.TargetName = sb.ID, sb.Spec.Name
	s.created(1, "created")
	s.took(time.Since(began))
	s.Fleet.Observe(sb)
	return sb, nil
}
