package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/hub/template"
	"github.com/cove-sandbox/cove/internal/recipe"
)

const oneTemplate = "/templates/{id}"

// builds implements the operations on builds.
type builds struct{ *Service }

// ops lists the operations on templates and their builds.
func (s builds) ops() []op.Op {
	const build = oneTemplate + "/builds/{build}"
	return []op.Op{
		op.New(spec("build", "POST /v3/templates",
			"Create a template with a build that waits for its steps, for an E2B client.", status(202)), s.CreateTemplate),
		op.New(spec("template_files", "GET "+oneTemplate+"/files/{hash}",
			"Get the URL for the files of a step of a build, for an E2B client.", status(201)), s.TemplateFiles),
		op.New(spec("build_start", "POST /v2"+build, "Start a build with its steps for an E2B client.", status(202)), s.StartBuild),
		op.New(spec("build_status", "GET "+build+"/status", "Show the state and log of a build for an E2B client.", reads), s.BuildStatus),
		op.New(spec("build_logs", "GET "+build+"/logs", "Show the log of a build for an E2B client.", reads), s.BuildLogs),
		op.New(spec("template_get", "GET "+oneTemplate, "Show a template with its builds for an E2B client.", reads), s.GetTemplate),
	}
}

// bare is a template without namespace and tag.
func bare(id string) string {
	name := id[strings.LastIndexByte(id, '/')+1:]
	name, _, _ = strings.Cut(name, ":")
	return strings.ToLower(name)
}

// checkReference rejects names with an empty part.
func checkReference(id string) error {
	if name, tag, tagged := strings.Cut(id, ":"); name == "" || tagged && tag == "" {
		return op.Errorf(op.Invalid, "template %.100q: use NAME or NAME:TAG", id)
	}
	return nil
}

// findTemplate returns the own name, with a tag, of a template with a finished build.
func findTemplate(ctx context.Context, all *template.Service, id string) (string, error) {
	t, err := all.FindTemplate(ctx, bare(id))
	if err != nil {
		return "", err
	}
	_, tag, tagged := strings.Cut(id, ":")
	if !tagged {
		tag = template.DefaultTag
	}
	if t.Tags[tag] == "" {
		return "", op.Errorf(op.NotFound, "template '%.100s' has no finished build", id)
	}
	return t.Name + ":" + tag, nil
}

// CreateTemplateIn is a new template.
type CreateTemplateIn struct {
	Name   string   `json:"name" default:"" nullable:"true" doc:"NAME or NAME:TAG"`
	Alias  string   `json:"alias" default:"" nullable:"true" doc:"Older form of name"`
	Tags   []string `json:"tags" nullable:"true" maxItems:"64" doc:"Additional tags"`
	CPU    int64    `json:"cpuCount" default:"0" nullable:"true" minimum:"0" maximum:"1024" doc:"CPUs; lowered to those of the machine"`
	Memory int64    `json:"memoryMB" default:"0" nullable:"true" minimum:"0" maximum:"1048576" doc:"Memory in MiB"`
}

// NewTemplate is a template with a build that waits.
type NewTemplate struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Public     bool     `json:"public"`
	Names      []string `json:"names"`
	Aliases    []string `json:"aliases"`
	Tags       []string `json:"tags"`
}

// CreateTemplate creates a build.
func (s builds) CreateTemplate(ctx context.Context, in CreateTemplateIn) (NewTemplate, error) {
	name := cmp.Or(in.Name, in.Alias)
	if err := checkReference(name); err != nil {
		return NewTemplate{}, err
	}
	name = strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
	if base := bare(name); slices.Contains(standardTemplates, base) {
		return NewTemplate{}, op.Errorf(op.Conflict, "template name %q is reserved; choose another name", base)
	}
	t, b, err := s.Templates.Prepare(ctx, template.Draft{Name: name, Tags: in.Tags, CPU: in.CPU * 1000, Memory: in.Memory << 20})
	return NewTemplate{TemplateID: t.ID, BuildID: b.ID, Names: []string{t.Name}, Aliases: []string{t.Name}, Tags: b.Tags}, err
}

// TemplateFilesIn names the files of a step.
type TemplateFilesIn struct {
	ID   string `path:"id" doc:"ID of the template"`
	Hash string `path:"hash" doc:"Hash of the files, as the client computes it"`
}

// TemplateFiles returns where to upload files.
func (s builds) TemplateFiles(ctx context.Context, in TemplateFilesIn) (template.FilesOut, error) {
	if _, err := s.Templates.FindTemplate(ctx, in.ID); err != nil {
		return template.FilesOut{}, err
	}
	return s.Templates.Files(ctx, template.FilesIn{Hash: in.Hash})
}

// StartBuildIn is how a template is built.
type StartBuildIn struct {
	ID       string          `path:"id" doc:"ID of the template"`
	Build    string          `path:"build" doc:"ID of the build"`
	Image    string          `json:"fromImage" default:"" nullable:"true" doc:"OCI image"`
	Template string          `json:"fromTemplate" default:"" nullable:"true" doc:"Template"`
	Registry json.RawMessage `json:"fromImageRegistry,omitempty" doc:"Not supported"`
	Force    bool            `json:"force" default:"false" nullable:"true" doc:"Run all steps again"`
	Start    string          `json:"startCmd" default:"" nullable:"true" doc:"Command that runs in each sandbox"`
	Ready    string          `json:"readyCmd" default:"" nullable:"true" doc:"Command that succeeds when the sandbox is ready"`
	Steps    []BuildStep     `json:"steps" nullable:"true" maxItems:"500" doc:"Steps"`
}

// BuildStep is a step.
type BuildStep struct {
	Type  string   `json:"type" doc:"RUN, COPY, ENV, WORKDIR or USER"`
	Args  []string `json:"args" nullable:"true" doc:"Arguments of the step"`
	Hash  string   `json:"filesHash" default:"" nullable:"true" doc:"Hash of the files of a copy"`
	Force bool     `json:"force" default:"false" nullable:"true" doc:"Run this step and those after it again"`
}

// StartBuild starts a build.
func (s builds) StartBuild(ctx context.Context, in StartBuildIn) (op.None, error) {
	if text := string(in.Registry); text != "" && text != "null" {
		return op.None{}, op.Errorf(op.Unsupported,
			"fromImageRegistry: credentials for one build are not supported; the operator configures registry credentials for all builds")
	}
	r := recipe.Recipe{Start: in.Start, Ready: in.Ready, Force: in.Force, Login: true}
	switch {
	case in.Template != "":
		own, err := findTemplate(ctx, s.Templates, in.Template)
		name, _, other := s.template(ctx, in.Template)
		switch {
		case err == nil:
			r.Base.Template = own
		case other != nil || name == "" && !slices.Contains(standardTemplates, bare(in.Template)):
			return op.None{}, op.Errorf(op.NotFound, "base template '%.100s' not found", in.Template)
		default:
			r.Base.Environment = name
		}
	case !isStandardImage(in.Image):
		r.Base.Image = in.Image
	}
	for i, step := range in.Steps {
		converted, err := step.recipe()
		if err != nil {
			return op.None{}, op.Errorf(op.Invalid, "step %d: %w", i+1, err)
		}
		r.Steps = append(r.Steps, converted)
	}
	_, err := s.Templates.Start(ctx, in.Build, r, template.Options{})
	return op.None{}, err
}

// isStandardImage reports whether an image is one of E2B's own. The default environment replaces them.
func isStandardImage(ref string) bool {
	name, _, _ := strings.Cut(path.Base(ref), ":")
	return ref == "" || strings.HasPrefix(ref, "e2bdev/") && (name == "base" || name == "code-interpreter")
}

// recipe converts a step.
func (b BuildStep) recipe() (recipe.Step, error) {
	arg := func(i int) string {
		if i < len(b.Args) {
			return b.Args[i]
		}
		return ""
	}
	s := recipe.Step{Force: b.Force, Text: strings.ToUpper(b.Type) + " " + strings.Join(b.Args, " ")}
	switch strings.ToUpper(b.Type) {
	case "RUN":
		s.Kind, s.Command, s.User = recipe.Run, arg(0), arg(1)
	case "COPY":
		s.Kind, s.Sources, s.To, s.Owner, s.Files = recipe.Copy, []string{arg(0)}, arg(1), arg(2), b.Hash
		if s.Mode = arg(3); len(s.Mode) > 4 {
			s.Mode = strings.TrimPrefix(s.Mode, "0")
		}
	case "ENV":
		s.Kind, s.Pairs = recipe.Env, b.Args
	case "WORKDIR":
		s.Kind, s.Path = recipe.Workdir, arg(0)
	case "USER":
		s.Kind, s.User = recipe.User, arg(0)
	default:
		return s, fmt.Errorf("type %.40q: use RUN, COPY, ENV, WORKDIR or USER", b.Type)
	}
	return s, nil
}

// BuildStatusIn selects the log of a build.
type BuildStatusIn struct {
	ID     string `path:"id" doc:"ID of the template"`
	Build  string `path:"build" doc:"ID of the build"`
	Offset int    `query:"logsOffset" default:"0" minimum:"0" doc:"Number of lines to skip"`
	Limit  int    `query:"limit" default:"100" minimum:"0" maximum:"100" doc:"Maximum number of lines"`
	Level  string `query:"level" default:"" doc:"Lowest level: debug, info, warn or error"`
}

// BuildEntry is a line of the log of a build.
type BuildEntry struct {
	Time    time.Time `json:"timestamp"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Step    string    `json:"step,omitempty"`
}

// BuildReason is why a build has failed.
type BuildReason struct {
	Message string       `json:"message"`
	Step    string       `json:"step,omitempty"`
	Entries []BuildEntry `json:"logEntries"`
}

// BuildState is the state of a build.
type BuildState struct {
	TemplateID string       `json:"templateID"`
	BuildID    string       `json:"buildID"`
	Status     string       `json:"status" enum:"waiting,building,ready,error"`
	Logs       []string     `json:"logs"`
	Entries    []BuildEntry `json:"logEntries"`
	Reason     *BuildReason `json:"reason,omitempty"`
}

func logEntries(list []templatestore.Entry, level string) []BuildEntry {
	out := []BuildEntry{}
	for _, e := range list {
		if slices.Index(levels, e.Level) >= slices.Index(levels, level) {
			out = append(out, BuildEntry{e.Time, e.Level, e.Text, e.Step})
		}
	}
	return out
}

// BuildStatus shows a build.
func (s builds) BuildStatus(ctx context.Context, in BuildStatusIn) (BuildState, error) {
	b, err := s.Templates.FindBuild(ctx, in.Build)
	if err != nil {
		return BuildState{}, err
	}
	op.CallOf(ctx).Recorded = true // clients poll
	list := logEntries(s.Templates.Entries(b, in.Offset, in.Limit), in.Level)
	out := BuildState{TemplateID: in.ID, BuildID: b.ID, Status: string(b.Status), Logs: []string{}, Entries: list}
	for _, e := range list {
		out.Logs = append(out.Logs, e.Message)
	}
	if b.Status == templatestore.Failed {
		out.Reason = &BuildReason{Message: b.Reason.Message, Step: b.Reason.Step, Entries: []BuildEntry{}}
	}
	return out, nil
}

// BuildLogsIn selects the log of a build.
type BuildLogsIn struct {
	BuildStatusIn
	Cursor    *int64 `query:"cursor" doc:"Time in milliseconds"`
	Direction string `query:"direction" default:"forward" enum:"forward,backward" doc:"Whether lines from cursor on or before it are shown"`
}

// BuildLogs is a log.
type BuildLogs struct {
	Logs []BuildEntry `json:"logs"`
}

// BuildLogs shows the log of a build.
func (s builds) BuildLogs(ctx context.Context, in BuildLogsIn) (BuildLogs, error) {
	b, err := s.Templates.FindBuild(ctx, in.Build)
	if err != nil {
		return BuildLogs{}, err
	}
	list := logEntries(s.Templates.Entries(b, 0, math.MaxInt32), in.Level)
	if in.Direction == "backward" {
		slices.Reverse(list)
	}
	if in.Cursor != nil {
		at := time.UnixMilli(*in.Cursor)
		list = slices.DeleteFunc(list, func(e BuildEntry) bool {
			return in.Direction == "backward" && e.Time.After(at) || in.Direction != "backward" && e.Time.Before(at)
		})
	}
	return BuildLogs{list[:min(len(list), in.Limit)]}, nil
}

// TemplateBuild is a build in a list.
type TemplateBuild struct {
	BuildID     string     `json:"buildID"`
	Status      string     `json:"status"`
	CreatedAt   time.Time  `json:"createdAt"`
	UpdatedAt   time.Time  `json:"updatedAt"`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
	CPUs        int64      `json:"cpuCount"`
	MemoryMB    int64      `json:"memoryMB"`
	EnvdVersion string     `json:"envdVersion"`
}

// TemplateDetail is a template with its builds.
type TemplateDetail struct {
	Template
	Builds []TemplateBuild `json:"builds"`
}

// GetTemplate shows a template.
func (s builds) GetTemplate(ctx context.Context, in TemplateIn) (TemplateDetail, error) {
	t, err := s.Templates.FindTemplate(ctx, bare(in.ID))
	if err != nil {
		return TemplateDetail{}, err
	}
	d := TemplateDetail{Template: templateOut(s.Templates, t), Builds: []TemplateBuild{}}
	for _, b := range slices.Backward(s.Templates.Builds(t)) {
		one := TemplateBuild{BuildID: b.ID, Status: string(b.Status), CreatedAt: b.Created, UpdatedAt: b.Created, CPUs: max(1, b.CPU/1000),
			MemoryMB: b.Memory >> 20, EnvdVersion: daemonVersion}
		if !b.Finished.IsZero() {
			one.FinishedAt, one.UpdatedAt = &b.Finished, b.Finished
		}
		d.Builds = append(d.Builds, one)
	}
	return d, nil
}

// templateOut shows a template in a list.
func templateOut(all *template.Service, t templatestore.Template) Template {
	out := Template{TemplateID: t.ID, Aliases: []string{t.Name}, Names: []string{t.Name}, CreatedAt: t.Created, UpdatedAt: t.Updated,
		EnvdVersion: daemonVersion, CPUs: 1, BuildStatus: string(templatestore.Waiting)}
	list := all.Builds(t)
	if out.BuildCount = len(list); len(list) > 0 {
		b := list[len(list)-1]
		out.BuildID, out.BuildStatus, out.CPUs, out.MemoryMB = b.ID, string(b.Status), int(max(1, b.CPU/1000)), b.Memory>>20
		out.DiskMB = b.Disk >> 20
	}
	return out
}
