package template

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/recipe"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	all    = "/api/v1/template"
	one    = all + "/{name}"
	builds = "/api/v1/build/{id}"
	// UploadPath is the path of uploads with a ticket.
	UploadPath = all + "/upload"
)

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "template_build", Tool: "buildTemplate", Route: "POST " + one + "/build", Tag: "template",
			Doc: "Build a template: run steps on a base and save the disk. Steps that have not changed since an earlier build " +
				"are not run again. Sandboxes are created from the template like from an environment."}, s.Build),
		op.New(op.Spec{Name: "template_build_get", Access: op.AccessRead, Tool: "getTemplateBuild", Route: "GET " + builds, Tag: "template",
			Verb: "template build-get", ReadOnly: true, Doc: "Show a build of a template."}, s.GetBuild),
		op.Stream[LogIn, templatestore.Entry](op.Spec{Name: "template_build_log", Access: op.AccessRead, Route: "GET " + builds + "/log",
			Tag: "template", Verb: "template log", ReadOnly: true,
			Doc: "Follow the log of a build as server-sent events until the build ends. Last-Event-ID resumes an interrupted stream."},
			s.FollowLog),
		op.New(op.Spec{Name: "template_build_cancel", Route: "DELETE " + builds, Tag: "template", Verb: "template cancel",
			Destructive: true, Doc: "Cancel a build. Its finished steps stay stored."}, s.Cancel),
		op.New(op.Spec{Name: "template_list", Access: op.AccessRead, Tool: "listTemplates", Route: "GET " + all, Tag: "template",
			Verb: "template ls", ReadOnly: true, Columns: []string{"name", "tags", "size", "updated"}, Doc: "List templates."}, s.List),
		op.New(op.Spec{Name: "template_get", Access: op.AccessRead, Route: "GET " + one, Tag: "template", Verb: "template get",
			ReadOnly: true, Doc: "Show a template with its latest builds and their steps."}, s.Get),
		op.New(op.Spec{Name: "template_history", Access: op.AccessRead, Route: "GET " + one + "/history", Tag: "template",
			Verb: "template history", ReadOnly: true, Columns: []string{"id", "status", "tags", "size", "created"},
			Doc: "List the builds of a template, newest first."}, s.History),
		op.New(op.Spec{Name: "template_tag", Route: "POST " + one + "/tag", Tag: "template", Verb: "template tag",
			Doc: "Give a build of a template another tag. Sandboxes are created from NAME:TAG."}, s.AddTag),
		op.New(op.Spec{Name: "template_untag", Route: "DELETE " + one + "/tag/{tag}", Tag: "template", Verb: "template untag",
			Destructive: true, Doc: "Remove a tag from a template. The tag default stays until the template is deleted."}, s.RemoveTag),
		op.New(op.Spec{Name: "template_delete", Tool: "deleteTemplate", Route: "DELETE " + one, Tag: "template", Verb: "template rm",
			Destructive: true, Doc: "Delete a template. Sandboxes created from it are not affected."}, s.Delete),
		op.New(op.Spec{Name: "template_files", Route: "POST " + all + "/files", Tag: "template", NoTool: true, NoVerb: true,
			Doc: "Get the URL to upload the files of a copy step, a tar archive that may be compressed with gzip or zstd."}, s.Files),
		op.Handle(op.Spec{Name: "template_upload", Route: "PUT " + UploadPath, Tag: "template", Content: op.ContentAPI, Public: true,
			Doc: "Upload the files of a copy step with a ticket."}, http.HandlerFunc(s.upload)),
	}
}

// BuildIn describes a build.
type BuildIn struct {
	Name   string         `path:"name" doc:"Name of the template, or NAME:TAG"`
	Base   recipe.Base    `json:"base,omitempty" doc:"What it starts from; default: the default environment"`
	Stages []recipe.Stage `json:"stages" nullable:"true" maxItems:"20" doc:"Disks to build first, as bases or sources of copies"`
	Steps  []recipe.Step  `json:"steps" nullable:"true" maxItems:"500" doc:"Steps, in order"`
	Start  string         `json:"start" default:"" nullable:"true" doc:"Shell command that runs in each sandbox"`
	Ready  string         `json:"ready" default:"" nullable:"true" doc:"Shell command that succeeds when the start command is ready"`
	Force  bool           `json:"force" default:"false" nullable:"true" doc:"Run all steps again, and pull the image again"`
	Pull   bool           `json:"pull" default:"false" nullable:"true" doc:"Pull the images again"`
	Login  bool           `json:"login" default:"false" nullable:"true" doc:"Run steps in a login shell as the user \"user\", like E2B"`
	Tags   []string       `json:"tags" nullable:"true" maxItems:"16" doc:"Additional tags"`
	// Secrets are not stored.
	Secrets map[string]string    `json:"secrets" nullable:"true" doc:"Values of the secrets that steps mount, by ID"`
	Keep    bool                 `json:"keep" default:"false" nullable:"true" doc:"Keep a copy of the sandbox of a failed step"`
	Wait    bool                 `json:"wait" default:"false" nullable:"true" doc:"Reply when the build has ended"`
	CPU     environment.Quantity `json:"cpu" default:"" nullable:"true" doc:"CPU limit of the build and of its sandboxes, such as 1000m"`
	Memory  environment.Quantity `json:"memory" default:"" nullable:"true" doc:"Memory limit of both, such as 1Gi"`
	Disk    environment.Quantity `json:"disk" default:"" nullable:"true" doc:"Disk limit of both, such as 10Gi"`
}

// StepOut is a finished step.
type StepOut struct {
	Text   string  `json:"text"`
	Cached bool    `json:"cached"`
	Took   float64 `json:"took_seconds"`
	Size   int64   `json:"size" doc:"Bytes of its layer"`
}

// BuildOut is a build.
type BuildOut struct {
	ID       string               `json:"id"`
	Template string               `json:"template"`
	Tags     []string             `json:"tags"`
	Status   templatestore.Status `json:"status" enum:"waiting,building,ready,error"`
	Error    string               `json:"error,omitempty"`
	Step     string               `json:"step,omitempty" doc:"Step that failed: base, or a number"`
	Steps    []StepOut            `json:"steps"`
	Size     int64                `json:"size" doc:"Bytes on top of the base"`
	Created  time.Time            `json:"created"`
	Finished *time.Time           `json:"finished,omitempty"`
}

func buildOut(b templatestore.Build) BuildOut {
	out := BuildOut{ID: b.ID, Template: b.Template, Tags: b.Tags, Status: b.Status, Error: b.Reason.Message, Step: b.Reason.Step,
		Steps: []StepOut{}, Size: b.Size, Created: b.Created}
	if !b.Finished.IsZero() {
		out.Finished = &b.Finished
	}
	for _, r := range b.Steps {
		out.Steps = append(out.Steps, StepOut{r.Text, r.Cached, r.Took.Seconds(), r.Size})
	}
	return out
}

// Build builds a template.
func (s *Service) Build(ctx context.Context, in BuildIn) (BuildOut, error) {
	var r sandbox.Resources
	amounts := environment.Amounts{CPULimit: in.CPU, MemoryLimit: in.Memory, Disk: in.Disk}
	if err := amounts.Apply(&r); err != nil {
		return BuildOut{}, op.Errorf(op.Invalid, "%w", err)
	}
	rec := recipe.Recipe{Stages: in.Stages, Base: in.Base, Steps: in.Steps, Start: in.Start, Ready: in.Ready, Force: in.Force,
		Pull: in.Pull, Login: in.Login}
	if err := rec.Validate(); err != nil {
		return BuildOut{}, op.Errorf(op.Invalid, "%w", err)
	}
	_, b, err := s.Prepare(ctx, Draft{Name: in.Name, Tags: in.Tags, CPU: r.CPULimit, Memory: r.MemoryLimit, Disk: r.Disk})
	if err != nil {
		return BuildOut{}, err
	}
	done, err := s.Start(ctx, b.ID, rec, Options{Keep: in.Keep, Secrets: in.Secrets})
	if err != nil {
		return BuildOut{}, err
	}
	if in.Wait {
		select {
		case <-done:
		case <-ctx.Done():
			return BuildOut{}, context.Cause(ctx)
		}
	}
	return s.GetBuild(ctx, BuildGetIn{b.ID})
}

// BuildGetIn names a build.
type BuildGetIn struct {
	ID string `path:"id" doc:"ID of the build"`
}

// GetBuild shows a build.
func (s *Service) GetBuild(ctx context.Context, in BuildGetIn) (BuildOut, error) {
	b, err := s.FindBuild(ctx, in.ID)
	return buildOut(b), err
}

// FindBuild finds a build of the caller.
func (s *Service) FindBuild(ctx context.Context, id string) (templatestore.Build, error) {
	owner, err := s.owner(ctx)
	if err != nil {
		return templatestore.Build{}, err
	}
	b, ok := s.Store.Build(owner, id)
	if !ok {
		return b, op.Errorf(op.NotFound, "no build %.60q", id)
	}
	op.CallOf(ctx).TargetName = b.Template
	return b, nil
}

// LogIn selects a log.
type LogIn struct {
	ID string `path:"id" doc:"ID of the build"`
}

// Entries returns lines of the log of a build.
func (s *Service) Entries(b templatestore.Build, from, limit int) []templatestore.Entry {
	list, _ := s.Store.Entries(b.Owner, b.ID, from, limit)
	return list
}

// FollowLog follows the log of a build.
func (s *Service) FollowLog(ctx context.Context, in LogIn, send func(op.Event) error) error {
	b, err := s.FindBuild(ctx, in.ID)
	if err != nil {
		return err
	}
	next, _ := strconv.Atoi(op.CallOf(ctx).LastEventID)
	for {
		list, more := s.Store.Entries(b.Owner, b.ID, next, 1000)
		for _, e := range list {
			next++
			if err := send(op.Event{ID: strconv.Itoa(next), Data: e}); err != nil {
				return err
			}
		}
		if len(list) > 0 {
			continue
		}
		if more == nil {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// Cancel cancels a build.
func (s *Service) Cancel(ctx context.Context, in BuildGetIn) (BuildOut, error) {
	if _, err := s.FindBuild(ctx, in.ID); err != nil {
		return BuildOut{}, err
	}
	if err := s.cancel(ctx, in.ID); err != nil {
		return BuildOut{}, err
	}
	return s.GetBuild(ctx, in)
}

// Out is a template.
type Out struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Tags    []string   `json:"tags" doc:"Tags with a finished build"`
	Size    int64      `json:"size" doc:"Bytes of its default build on top of the base"`
	Created time.Time  `json:"created"`
	Updated time.Time  `json:"updated"`
	Builds  []BuildOut `json:"builds,omitempty" doc:"Latest builds, newest first"`
}

func (s *Service) out(t templatestore.Template) Out {
	o := Out{ID: t.ID, Name: t.Name, Tags: []string{}, Created: t.Created, Updated: t.Updated}
	for tag := range t.Tags {
		o.Tags = append(o.Tags, tag)
	}
	slices.Sort(o.Tags)
	if b, ok := s.Store.Build(t.Owner, t.Tags[DefaultTag]); ok {
		o.Size = b.Size
	}
	return o
}

// List lists templates.
func (s *Service) List(ctx context.Context, _ op.None) ([]Out, error) {
	out := []Out{}
	if builds := s.ready() == nil; builds { // otherwise there are no templates
		for _, t := range s.Store.Templates(caller.Owner(ctx)) {
			out = append(out, s.out(t))
		}
	}
	return out, nil
}

// NameIn names a template.
type NameIn struct {
	Name string `path:"name" doc:"Name of the template"`
}

// FindTemplate finds a template of the caller by name or ID.
func (s *Service) FindTemplate(ctx context.Context, name string) (templatestore.Template, error) {
	owner, err := s.owner(ctx)
	if err != nil {
		return templatestore.Template{}, err
	}
	t, ok := s.Store.Template(owner, name)
	if !ok {
		return t, notFound(name)
	}
	op.CallOf(ctx).TargetName = t.Name
	return t, nil
}

// shownBuilds is the number of builds that are shown.
const shownBuilds = 10

// Get shows a template.
func (s *Service) Get(ctx context.Context, in NameIn) (Out, error) {
	t, err := s.FindTemplate(ctx, in.Name)
	if err != nil {
		return Out{}, err
	}
	o := s.out(t)
	for _, b := range slices.Backward(s.Store.Builds(t.Owner, t.Name)) {
		if len(o.Builds) < shownBuilds {
			o.Builds = append(o.Builds, buildOut(b))
		}
	}
	return o, nil
}

// History lists the builds of a template.
func (s *Service) History(ctx context.Context, in NameIn) ([]BuildOut, error) {
	t, err := s.FindTemplate(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	out := []BuildOut{}
	for _, b := range slices.Backward(s.Store.Builds(t.Owner, t.Name)) {
		out = append(out, buildOut(b))
	}
	return out, nil
}

// TagIn is a new tag.
type TagIn struct {
	Name string `path:"name" doc:"Template, NAME or NAME:TAG"`
	Tag  string `json:"tag" doc:"The new tag. If another build has it, it is moved"`
}

// maxTags is the maximum number of tags of a template.
const maxTags = 1000

// AddTag gives a build another tag.
func (s *Service) AddTag(ctx context.Context, in TagIn) (Out, error) {
	owner, err := s.owner(ctx)
	if err != nil {
		return Out{}, err
	}
	if err := checkTag(in.Tag); err != nil {
		return Out{}, err
	}
	found, b, err := s.current(owner, in.Name)
	if err != nil {
		return Out{}, err
	}
	op.CallOf(ctx).TargetName = found.Name
	t, err := s.Store.ChangeTemplate(owner, found.Name, func(t *templatestore.Template, exists bool) error {
		if !exists {
			return notFound(in.Name)
		}
		if len(t.Tags) >= maxTags && t.Tags[in.Tag] == "" {
			return op.Errorf(op.Exhausted, "tag limit reached (%d); remove tags first", maxTags)
		}
		t.Tags[in.Tag] = b.ID
		return nil
	})
	return s.out(t), err
}

// UntagIn names a tag.
type UntagIn struct {
	Name string `path:"name" doc:"Name of the template"`
	Tag  string `path:"tag" doc:"Tag"`
}

// RemoveTag removes a tag.
func (s *Service) RemoveTag(ctx context.Context, in UntagIn) (Out, error) {
	found, err := s.FindTemplate(ctx, in.Name)
	if err != nil {
		return Out{}, err
	}
	if in.Tag == DefaultTag {
		return Out{}, op.Errorf(op.Invalid, "the tag %s cannot be removed; delete the template, or build it again", DefaultTag)
	}
	t, err := s.Store.ChangeTemplate(found.Owner, found.Name, func(t *templatestore.Template, exists bool) error {
		if !exists || t.Tags[in.Tag] == "" {
			return op.Errorf(op.NotFound, "template %q has no tag %.80q", found.Name, in.Tag)
		}
		delete(t.Tags, in.Tag)
		return nil
	})
	return s.out(t), err
}

// Delete deletes a template.
func (s *Service) Delete(ctx context.Context, in NameIn) (string, error) {
	t, err := s.FindTemplate(ctx, in.Name)
	if err != nil {
		return "", err
	}
	var layers []string
	for _, b := range s.Store.Builds(t.Owner, t.Name) {
		if err := s.cancel(ctx, b.ID); err != nil {
			return "", err
		}
		for _, r := range b.Steps {
			layers = append(layers, r.Layer)
		}
	}
	if err := s.Store.DeleteTemplate(t.Owner, t.Name); err != nil {
		return "", err
	}
	// Layers that other templates use stay.
	if p, ok := s.Provider.(sandbox.Snapshotter); ok {
		unused := s.Store.Unused(time.Now().Add(time.Hour))[t.Owner]
		unused = slices.DeleteFunc(unused, func(id string) bool { return !slices.Contains(layers, id) })
		s.dropLayers(ctx, p, t.Owner, unused)
	}
	return "Template " + t.Name + " deleted successfully", nil
}

// FilesIn names files.
type FilesIn struct {
	Hash string `json:"hash" doc:"Name of the files: 64 hexadecimal digits that the client derives from their content"`
}

// FilesOut tells where to upload files.
type FilesOut struct {
	Present bool   `json:"present" doc:"Files with this hash are stored"`
	URL     string `json:"url" doc:"Send the archive here with PUT, without credentials, within an hour"`
}

// ticketLife is how long an upload can begin.
const ticketLife = time.Hour

// Files returns where to upload files.
func (s *Service) Files(ctx context.Context, in FilesIn) (FilesOut, error) {
	owner, err := s.owner(ctx)
	if err != nil {
		return FilesOut{}, err
	}
	if !recipe.IsHash(in.Hash) {
		return FilesOut{}, op.Errorf(op.Invalid, "hash %.80q: expected 64 hexadecimal digits", in.Hash)
	}
	_, present := s.Store.File(owner, in.Hash)
	ticket := s.Tokens.IssueUpload(token.Upload{Owner: owner, Hash: in.Hash, Until: time.Now().Add(ticketLife).Unix()})
	return FilesOut{present, op.CallOf(ctx).URL("http", UploadPath, "upload="+ticket)}, nil
}

// maxUploadTime ends slow uploads.
const maxUploadTime = time.Hour

// upload stores files. The ticket in the query is the only credential, because clients send no other.
func (s *Service) upload(w http.ResponseWriter, r *http.Request) {
	err := s.receive(w, r)
	if err == nil {
		w.WriteHeader(http.StatusOK)
		return
	}
	shown, ok := op.AsError(err)
	if !ok {
		shown = &op.Error{Code: op.Invalid, Msg: "cannot store the files: " + err.Error()}
		if errors.Is(err, templatestore.ErrTooLarge) {
			shown.Code = op.TooLarge
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(shown.Code.HTTPStatus())
	_ = json.NewEncoder(w).Encode(map[string]any{"code": shown.Code.HTTPStatus(), "message": shown.Error()}) // the client has closed
}

func (s *Service) receive(w http.ResponseWriter, r *http.Request) error {
	u, ok := s.Tokens.CheckUpload(r.URL.Query().Get("upload"), time.Now())
	if !ok || !recipe.IsHash(u.Hash) {
		return op.Errorf(op.Denied, "the ticket is invalid or has expired; request another one")
	}
	if err := s.ready(); err != nil {
		return err
	}
	until := time.Now().Add(maxUploadTime)
	if err := http.NewResponseController(w).SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	ctx, cancel := context.WithDeadline(r.Context(), until)
	defer cancel()
	room := s.Quota.OpenRoom(ctx, u.Owner)
	defer room.Release()
	f, err := s.Store.Receive(ctx, u.Owner, u.Hash, r.Body, room.Take)
	if err != nil {
		return err
	}
	s.Quota.CountDisk(uploadDisk(u.Owner, u.Hash), f.Size)
	return nil
}

// Builds lists the builds of a template, oldest first.
func (s *Service) Builds(t templatestore.Template) []templatestore.Build {
	return s.Store.Builds(t.Owner, t.Name)
}
