package e2b

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/disk"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/template"
)

// diskOps lists the operations on snapshots and templates.
func (s *Service) diskOps() []op.Op {
	return []op.Op{
		op.New(spec("snapshot", "POST "+one+"/snapshots",
			"Save the disk of a sandbox for an E2B client. Processes are not saved.", status(201)), s.Snapshot),
		op.New(spec("snapshots", "GET /snapshots", "List snapshots for an E2B client.", reads), s.Snapshots),
		op.New(spec("fork", "POST "+one+"/fork",
			"Copy a sandbox with its current disk for an E2B client. Processes are not "+
				"copied.", status(201)), s.Fork),
		op.New(spec("templates", "GET /templates", "List templates and environments for an E2B client.", reads,
			also("GET /v2/templates")), s.ListTemplates),
		op.New(spec("alias", "GET /templates/aliases/{alias}", "Find a template by its name for an E2B client.", reads), s.Alias),
		op.New(spec("delete_template", "DELETE /templates/{id}",
			"Delete a template or snapshot for an E2B client. Environments cannot be deleted.", status(204), destroys), s.DeleteTemplate),
	}
}

// Snapshot is a saved disk.
type Snapshot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

const latest = ":default"

func snapshotOf(x disk.SnapshotOut) Snapshot {
	name := clientName(x.Name)
	return Snapshot{ID: name + latest, Names: []string{name}}
}

// underscore replaces _ in names of snapshots. E2B allows it; our names must be valid host names and Kubernetes names.
const underscore = "-x5f-"

// Names that begin or end with _ get an additional 0 there, because ours begin and end with a letter or digit. So do names that
// would look like these.
var (
	beginsEscaped = regexp.MustCompile("^0*" + underscore)
	endsEscaped   = regexp.MustCompile(underscore + "0*$")
	beginsFilled  = regexp.MustCompile("^0+" + underscore)
	endsFilled    = regexp.MustCompile(underscore + "0+$")
)

// ownName returns the name of a snapshot that a client knows under a name.
func ownName(name string) string {
	name = strings.ReplaceAll(name, "_", underscore)
	if beginsEscaped.MatchString(name) {
		name = "0" + name
	}
	if endsEscaped.MatchString(name) {
		name += "0"
	}
	return name
}

// clientName is the inverse of ownName.
func clientName(name string) string {
	if beginsFilled.MatchString(name) {
		name = name[1:]
	}
	if endsFilled.MatchString(name) {
		name = name[:len(name)-1]
	}
	return strings.ReplaceAll(name, underscore, "_")
}

// SnapshotIn names a sandbox to save.
type SnapshotIn struct {
	ID     string `path:"id" doc:"ID of the sandbox"`
	Name   string `json:"name" default:"" nullable:"true" doc:"Name of the snapshot. Default: generated"`
	Memory *bool  `json:"memory" doc:"Ignored: snapshots never include memory"`
}

// Snapshot saves the disk of a sandbox.
func (s *Service) Snapshot(ctx context.Context, in SnapshotIn) (Snapshot, error) {
	name, _, _ := strings.Cut(in.Name, ":")
	made, err := s.Disks.Snapshot(ctx, disk.SnapshotIn{Name: in.ID, Snapshot: ownName(name)})
	return snapshotOf(made), err
}

// SnapshotsIn selects snapshots.
type SnapshotsIn struct {
	Sandbox string `query:"sandboxID" default:"" doc:"Only snapshots of this sandbox"`
	Name    string `query:"name" default:"" doc:"Only snapshots with this name"`
	Limit   int    `query:"limit" default:"100" minimum:"1" maximum:"100" doc:"Page size"`
	Next    string `query:"nextToken" default:"" doc:"Cursor: X-Next-Token of the previous page"`
}

// Snapshots lists a page of snapshots, oldest first.
func (s *Service) Snapshots(ctx context.Context, in SnapshotsIn) ([]Snapshot, error) {
	list, err := s.Disks.Snapshots(ctx, caller.UserIn{})
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(x disk.SnapshotOut) bool {
		return in.Sandbox != "" && naming.E2BID(x.Sandbox) != naming.E2BID(in.Sandbox) || in.Name != "" && x.Name != ownName(in.Name)
	})
	if in.Next != "" {
		i := slices.IndexFunc(list, func(x disk.SnapshotOut) bool { return x.Name == in.Next })
		if i < 0 {
			return nil, op.Errorf(op.Invalid, "nextToken: pass the X-Next-Token of the previous page, or omit it")
		}
		list = list[i+1:]
	}
	if len(list) > in.Limit {
		list = list[:in.Limit]
		op.CallOf(ctx).Header = map[string]string{"X-Next-Token": list[in.Limit-1].Name}
	}
	out := []Snapshot{}
	for _, x := range list {
		out = append(out, snapshotOf(x))
	}
	return out, nil
}

// ForkIn describes the copies.
type ForkIn struct {
	ID      string `path:"id" doc:"ID of the sandbox"`
	Timeout *int   `json:"timeout" minimum:"0" doc:"Seconds until the timeout of the copies; default 15"`
	Count   int    `json:"count" default:"1" minimum:"1" maximum:"20" nullable:"true" doc:"Number of copies"`
}

// Forked is one copy.
type Forked struct {
	Sandbox Created `json:"sandbox"`
}

// Fork copies a sandbox.
func (s *Service) Fork(ctx context.Context, in ForkIn) ([]Forked, error) {
	copies, err := s.Sandboxes.Fork(ctx, lifecycle.ForkIn{Name: in.ID, Count: in.Count})
	if err != nil {
		return nil, err
	}
	life := oldTime
	if in.Timeout != nil {
		life = time.Duration(*in.Timeout) * time.Second
	}
	out := make([]Forked, 0, len(copies))
	for _, c := range copies {
		sb, err := s.extend(ctx, c.ID, life, true)
		if err != nil {
			return nil, err
		}
		s.Meter.Watch(sb.ID)
		out = append(out, Forked{s.created(ctx, sb)})
	}
	return out, nil
}

// Template is an environment.
type Template struct {
	TemplateID  string    `json:"templateID"`
	BuildID     string    `json:"buildID"`
	CPUs        int       `json:"cpuCount"`
	MemoryMB    int64     `json:"memoryMB"`
	DiskMB      int64     `json:"diskSizeMB"`
	Public      bool      `json:"public"`
	Aliases     []string  `json:"aliases"`
	Names       []string  `json:"names"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	CreatedBy   any       `json:"createdBy"`
	LastSpawned any       `json:"lastSpawnedAt"`
	SpawnCount  int       `json:"spawnCount"`
	BuildCount  int       `json:"buildCount"`
	EnvdVersion string    `json:"envdVersion"`
	BuildStatus string    `json:"buildStatus"`
}

// TemplatesIn is ignored.
type TemplatesIn struct {
	Team string `query:"teamID" default:"" doc:"Ignored"`
}

// ListTemplates lists the environments and the templates of the caller.
func (s *Service) ListTemplates(ctx context.Context, _ TemplatesIn) ([]Template, error) {
	defaults := s.Environments.Defaults()
	out := []Template{}
	for _, e := range s.Environments.List() {
		if e.Name == environment.Custom {
			continue
		}
		full, err := e.Spec(defaults)
		if err != nil {
			continue
		}
		t := Template{TemplateID: e.Name, BuildID: "00000000-0000-0000-0000-000000000000", Public: true,
			Aliases: []string{e.Name}, Names: []string{e.Name},
			EnvdVersion: daemonVersion, BuildStatus: "ready", BuildCount: 1}
		t.CPUs, t.MemoryMB, t.DiskMB = s.size(full.Resources)
		if e.Name == defaults.Environment {
			t.Aliases = append(t.Aliases, standardTemplates...)
			t.Names = t.Aliases
		}
		out = append(out, t)
	}
	own, err := s.Templates.List(ctx, op.None{})
	if err != nil {
		return nil, err
	}
	for _, o := range own {
		t, err := s.Templates.FindTemplate(ctx, o.Name)
		if err != nil {
			continue // it was deleted meanwhile
		}
		out = append(out, templateOut(s.Templates, t))
	}
	return out, nil
}

// AliasIn selects a template by name.
type AliasIn struct {
	Alias string `path:"alias" doc:"Name of an environment or snapshot"`
}

// AliasOut is a template by name.
type AliasOut struct {
	TemplateID string `json:"templateID"`
	Public     bool   `json:"public"`
}

// Alias finds a template.
func (s *Service) Alias(ctx context.Context, in AliasIn) (AliasOut, error) {
	if err := checkReference(in.Alias); err != nil {
		return AliasOut{}, err
	}
	if own, err := findTemplate(ctx, s.Templates, in.Alias); err == nil {
		t, err := s.Templates.FindTemplate(ctx, bare(own))
		return AliasOut{TemplateID: t.ID}, err
	}
	_, snapshot, err := s.template(ctx, in.Alias)
	return AliasOut{in.Alias, snapshot == ""}, err
}

// TemplateIn selects a template.
type TemplateIn struct {
	ID string `path:"id" doc:"ID of a snapshot"`
}

// DeleteTemplate deletes a snapshot.
func (s *Service) DeleteTemplate(ctx context.Context, in TemplateIn) (op.None, error) {
	if t, err := s.Templates.FindTemplate(ctx, in.ID); err == nil {
		_, err := s.Templates.Delete(ctx, template.NameIn{Name: t.Name})
		return op.None{}, err
	}
	_, snapshot, err := s.template(ctx, in.ID)
	switch {
	case err != nil:
		return op.None{}, err
	case snapshot == "":
		return op.None{}, op.Errorf(op.Unsupported,
			"template %q is an environment of this hub, which its operator manages; only templates and snapshots can be deleted", in.ID)
	}
	_, err = s.Disks.DeleteSnapshot(ctx, disk.DeleteSnapshotIn{Snapshot: snapshot})
	return op.None{}, err
}
