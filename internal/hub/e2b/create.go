package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/disk"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// CreateIn is a new sandbox as an E2B client describes it.
type CreateIn struct {
	TemplateID string            `json:"templateID" doc:"Environment or snapshot. base, code-interpreter-v1, desktop: the default"`
	Timeout    *int              `json:"timeout" minimum:"0" doc:"Seconds until the timeout"`
	Metadata   map[string]string `json:"metadata" nullable:"true" doc:"Key-value pairs to filter lists by"`
	Env        map[string]string `json:"envVars" nullable:"true" doc:"Environment variables"`
	AutoPause  bool              `json:"autoPause" default:"false" nullable:"true" doc:"Pause it at the timeout instead of deleting it"`
	PauseDisk  *bool             `json:"autoPauseMemory" doc:"Whether autoPause keeps its memory; false: stop it"`
	AutoResume *AutoResume       `json:"autoResume" doc:"Whether requests wake it"`
	Internet   *bool             `json:"allow_internet_access" doc:"false: no egress"`
	Network    *Network          `json:"network" doc:"Egress policy, and whether its ports are public"`
	Volumes    []Mount           `json:"volumeMounts" nullable:"true" doc:"Volumes to mount"`
	MCP        json.RawMessage   `json:"mcp,omitempty" doc:"Not supported"`
	IAM        json.RawMessage   `json:"iam,omitempty" doc:"Not supported"`
}

// AutoResume says whether requests wake a sandbox.
type AutoResume struct {
	Enabled bool `json:"enabled" default:"false" doc:"Whether requests wake it"`
}

// Mount is a volume in a sandbox.
type Mount struct {
	Name string `json:"name" doc:"Name of the volume"`
	Path string `json:"path" doc:"Absolute path where it is mounted"`
}

// envLoopback is the setting of the loopback address of the server inside.
const envLoopback = "AIO_LOOPBACK"

// Default timeouts.
const (
	standardTime = 300 * time.Second
	oldTime      = 15 * time.Second
)

// Create creates a sandbox.
func (s *Service) Create(ctx context.Context, in CreateIn) (Created, error) {
	return s.create(ctx, in, standardTime)
}

// CreateOld creates a sandbox for an older client.
func (s *Service) CreateOld(ctx context.Context, in CreateIn) (Created, error) {
	return s.create(ctx, in, oldTime)
}

func (s *Service) create(ctx context.Context, in CreateIn, standard time.Duration) (Created, error) {
	for name, given := range map[string]json.RawMessage{"mcp": in.MCP, "iam": in.IAM} {
		if text := string(given); text != "" && text != "null" && text != "{}" {
			return Created{}, op.Errorf(op.Unsupported, "%s: this hub does not support it; omit it", name)
		}
	}
	made, err := s.translate(ctx, in)
	if err != nil {
		return Created{}, err
	}
	life := standard
	if in.Timeout != nil {
		life = time.Duration(*in.Timeout) * time.Second
	}
	if life > s.MaxTimeout {
		return Created{}, op.Errorf(op.Invalid, "timeout %v: use at most %d seconds", int(life.Seconds()), int(s.MaxTimeout.Seconds()))
	}
	metadata, err := json.Marshal(in.Metadata)
	if err != nil {
		return Created{}, err
	}
	if made.Secrets, err = s.rules.hold(ctx, in.Network); err != nil {
		return Created{}, err
	}
	defer s.rules.release(ctx, made.Secrets)
	sb, err := s.Sandboxes.MakeWith(ctx, made, func(spec *sandbox.Spec) {
		// As clients expect, the timeout is the only deadline, and by default it is final.
		spec.Lifetime = sandbox.Lifetime{Timeout: max(life, time.Second), IdleTimeout: sandbox.Never,
			IdlePolicy: sandbox.IdleStop, Period: max(life, time.Second)}
		if in.AutoPause { // its disk is wanted: asleep, it does not expire, and cove undelete restores it
			spec.Lifetime.Keep = sandbox.Never
			spec.Lifetime.EndPolicy = sandbox.IdlePause
			if in.PauseDisk != nil && !*in.PauseDisk || !s.Provider.Abilities().Pause {
				spec.Lifetime.EndPolicy = sandbox.IdleStop
			}
		}
		naming.Annotate(spec, naming.AnnotationTemplate, in.TemplateID)
		if len(in.Metadata) > 0 {
			naming.Annotate(spec, naming.AnnotationMetadata, string(metadata))
		}
		if in.AutoResume != nil && in.AutoResume.Enabled {
			naming.Annotate(spec, naming.AnnotationAutoResume, "true")
		}
		if in.Network != nil && in.Network.Public != nil && !*in.Network.Public {
			naming.Annotate(spec, naming.AnnotationClosed, "true")
		}
		if in.Network != nil && in.Network.Mask != "" {
			naming.Annotate(spec, naming.AnnotationMask, in.Network.Mask)
		}
	})
	if err != nil {
		return Created{}, err
	}
	s.Meter.Watch(sb.ID)
	return s.created(ctx, sb), nil
}

// translate converts a request into one of our own API.
func (s *Service) translate(ctx context.Context, in CreateIn) (lifecycle.CreateIn, error) {
	out := lifecycle.CreateIn{Env: maps.Clone(in.Env)}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	out.Env["E2B_TEMPLATE_ID"] = in.TemplateID
	if _, given := out.Env[envLoopback]; !given {
		out.Env[envLoopback] = "" // clients expect that all ports are free; programs inside also have a socket
	}
	for _, m := range in.Volumes {
		out.Volumes = append(out.Volumes, lifecycle.Volume{Name: m.Name, Target: m.Path})
	}
	policy, err := in.Network.policy(in.Internet)
	if err != nil {
		return out, err
	}
	out.Network = policy
	out.Environment, out.Snapshot, err = s.template(ctx, in.TemplateID)
	return out, err
}

// standardTemplates are E2B's own templates. The default environment replaces them.
var standardTemplates = []string{"base", "code-interpreter-v1", "code-interpreter", "desktop"}

// template finds the environment or snapshot for a template [namespace/]name[:tag].
func (s *Service) template(ctx context.Context, id string) (name, snapshot string, err error) {
	name = id
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	name, _, _ = strings.Cut(name, ":")
	known := func(e environment.Environment) bool { return e.Name == name && e.Name != environment.Custom }
	switch {
	case slices.ContainsFunc(s.Environments.List(), known):
		return name, "", nil
	case slices.Contains(standardTemplates, name):
		return "", "", nil
	}
	if found, err := findTemplate(ctx, s.Templates, id); err == nil {
		return found, "", nil
	}
	list, err := s.Disks.Snapshots(ctx, caller.UserIn{})
	own := ownName(name)
	if err == nil && slices.ContainsFunc(list, func(x disk.SnapshotOut) bool { return x.Name == own }) {
		return "", own, nil
	}
	return "", "", op.Errorf(op.NotFound,
		"template '%.100s' not found; GET /templates lists templates and environments, GET /snapshots snapshots", cmp.Or(id, "?"))
}
