package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/builder"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/recipe"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Draft describes a new build.
type Draft struct {
	Name   string   // NAME or NAME:TAG
	Tags   []string // in addition to the tag of Name
	CPU    int64    // in thousandths; 0: default
	Memory int64    // in bytes; 0: default
	Disk   int64
}

// Prepare creates a build that waits for its recipe.
func (s *Service) Prepare(ctx context.Context, d Draft) (templatestore.Template, templatestore.Build, error) {
	var none templatestore.Build
	owner, err := s.owner(ctx)
	if err != nil {
		return templatestore.Template{}, none, err
	}
	name, tag, err := Split(d.Name)
	if err == nil {
		err = s.checkFree(name)
	}
	if err != nil {
		return templatestore.Template{}, none, err
	}
	tags := []string{tag}
	for _, t := range d.Tags {
		if err := checkTag(t); err != nil {
			return templatestore.Template{}, none, err
		}
		if !slices.Contains(tags, t) {
			tags = append(tags, t)
		}
	}
	count := len(s.Store.Templates(owner))
	t, err := s.Store.ChangeTemplate(owner, name, func(t *templatestore.Template, exists bool) error {
		if exists {
			return nil
		}
		if t.ID = newID(); count >= maxTemplates {
			return op.Errorf(op.Exhausted, "template limit reached (%d); delete templates first", maxTemplates)
		}
		return nil
	})
	if err != nil {
		return t, none, err
	}
	op.CallOf(ctx).TargetName = name
	b := templatestore.Build{ID: newBuildID(), Owner: owner, Template: name, Tags: tags, Status: templatestore.Waiting,
		CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Created: time.Now().UTC()}
	return t, b, s.Store.PutBuild(b)
}

// maxTemplates is the maximum number of templates of a tenant.
const maxTemplates = 1000

// errCanceled ends a build on request.
var errCanceled = op.Errorf(op.Canceled, "the build was canceled")

// Options of a build.
type Options = builder.Options

// Start starts a prepared build. Done is closed when it has ended.
func (s *Service) Start(ctx context.Context, id string, r recipe.Recipe, o Options) (done <-chan struct{}, err error) {
	owner, err := s.owner(ctx)
	if err != nil {
		return nil, err
	}
	b, ok := s.Store.Build(owner, id)
	if !ok {
		return nil, op.Errorf(op.NotFound, "no build %.60q", id)
	}
	if err := r.Validate(); err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	if err := checkSecrets(o.Secrets); err != nil {
		return nil, err
	}
	for _, stage := range append(slices.Clip(r.Stages), recipe.Stage{Steps: r.Steps}) {
		for i, step := range stage.Steps {
			if _, ok := s.Store.File(owner, step.Files); step.Kind == recipe.Copy && step.From == "" && !ok {
				return nil, op.Errorf(op.Invalid, "step %d (%.60q): upload its files first", i+1, step)
			}
		}
	}
	call := *op.CallOf(ctx)
	call.Progress, call.Target = nil, ""
	a := &active{done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, _ := s.Store.Build(owner, id); now.Status != templatestore.Waiting || s.active[id] != nil {
		return nil, op.Errorf(op.Invalid, "build is not in waiting state")
	}
	b.Recipe = r
	var life context.Context
	life, a.cancel = context.WithCancelCause(op.WithCall(s.Tasks.Context(), &call))
	s.active[id] = a
	s.Store.BeginLog(owner, id)
	if !s.Tasks.Go(func(context.Context) { s.run(life, b, o, a) }) {
		delete(s.active, id)
		return nil, op.Errorf(op.Unavailable, "the hub is stopping")
	}
	return a.done, nil
}

// run executes a build.
func (s *Service) run(ctx context.Context, b templatestore.Build, o Options, a *active) {
	defer func() {
		s.mu.Lock()
		delete(s.active, b.ID)
		s.mu.Unlock()
		a.cancel(nil)
		close(a.done)
	}()
	err := s.execute(ctx, &b, o)
	b.Finished = time.Now().UTC()
	if err == nil {
		b.Status = templatestore.Ready
		s.append(b, "info", "", fmt.Sprintf("template %s is ready", b.Template))
	} else {
		b.Status, b.Reason = templatestore.Failed, s.reason(ctx, err)
		s.append(b, "error", b.Reason.Step, b.Reason.Message)
	}
	if err := s.Store.PutBuild(b); err != nil {
		s.Log.Error("cannot store a build", "build", b.ID, "error", err)
		return
	}
	if b.Status != templatestore.Ready {
		return
	}
	_, err = s.Store.ChangeTemplate(b.Owner, b.Template, func(t *templatestore.Template, exists bool) error {
		if !exists {
			return errCanceled // it was deleted during the build
		}
		for _, tag := range b.Tags {
			t.Tags[tag] = b.ID
		}
		return nil
	})
	if err != nil && !errors.Is(err, errCanceled) {
		s.Log.Error("cannot tag a build", "build", b.ID, "error", err)
	}
}

func (s *Service) append(b templatestore.Build, level, step, text string) {
	s.Store.Append(b.Owner, b.ID, templatestore.Entry{Level: level, Step: step, Text: text})
}

func (s *Service) execute(ctx context.Context, b *templatestore.Build, o Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxBuild, op.Errorf(op.Exhausted, "the build did not end in %v", maxBuild))
	defer cancel()
	leave, err := s.builder.Enter(ctx, b.Owner)
	if err != nil {
		return err
	}
	defer leave()
	b.Status = templatestore.Building
	if err := s.Store.PutBuild(*b); err != nil {
		return err
	}
	err = s.builder.Build(ctx, b, o)
	if failed, ok := errors.AsType[*builder.BaseError](err); ok {
		return &builder.StepError{Step: "base", Message: s.reason(ctx, failed.Err).Message}
	}
	return err
}

// The limits of the secrets of a build.
const (
	maxSecrets = 32
	maxSecret  = 64 << 10
)

func checkSecrets(secrets map[string]string) error {
	if len(secrets) > maxSecrets {
		return op.Errorf(op.Invalid, "%d secrets, more than %d", len(secrets), maxSecrets)
	}
	for id, value := range secrets {
		if len(value) > maxSecret {
			return op.Errorf(op.Invalid, "secret %.60s: longer than %d bytes", id, maxSecret)
		}
	}
	return nil
}

// reason is why a build has failed, for its owner.
func (s *Service) reason(ctx context.Context, err error) templatestore.Reason {
	if failed, ok := errors.AsType[*builder.StepError](err); ok {
		return templatestore.Reason{Message: failed.Message, Step: failed.Step}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, builder.ErrBusy) || errors.Is(err, context.Canceled) {
		return templatestore.Reason{Message: err.Error()}
	}
	if shown, ok := op.AsError(fault.FromProvider("", err)); ok {
		return templatestore.Reason{Message: shown.Error()}
	}
	s.Log.Error("a build failed", "error", err)
	return templatestore.Reason{Message: "the hub failed; its log has the details"}
}

// Resolve implements builder.Sandboxes.
func (s boxes) Resolve(ctx context.Context, owner string, from recipe.Base, fresh bool) (builder.Base, error) {
	if from.Template != "" {
		_, b, err := s.current(owner, from.Template)
		if err != nil {
			return builder.Base{}, err
		}
		base := builder.Base{ID: "layer:" + b.Layer, Origin: b.Origin, Layer: b.Layer, Config: b.Config, Based: b.Recipe.Login}
		if b.Layer == "" {
			base.ID = "build:" + b.ID
		}
		return base, nil
	}
	var base builder.Base
	ref, err := naming.ResolveImage(owner, from.Image)
	if err != nil {
		return base, err
	}
	base.Origin.Image = ref
	if ref == "" {
		name := from.Environment
		if name == "" {
			name = s.Environments.Defaults().Environment
		}
		env, err := s.Environments.Find(name)
		if err != nil {
			return base, err
		}
		ref, base.Origin = env.Image, recipe.Base{Environment: name}
		base.Config.Env, base.Config.Workdir = env.Env, env.Workdir
	}
	p, ok := s.Provider.(sandbox.Imager)
	if !ok {
		return base, fault.CannotDo(s.Provider.Abilities().Provider, "describe images")
	}
	room := s.Quota.OpenRoom(ctx, owner)
	defer room.Release()
	img, err := p.ResolveImage(sandbox.WithBudget(ctx, room.Budget), owner, ref, fresh)
	if errors.Is(err, sandbox.ErrUnsupported) && ref == "" {
		img, err = sandbox.ImageConfig{Digest: "unknown"}, nil
	}
	if err != nil {
		return base, fault.FromProvider("", err)
	}
	base.ID = fmt.Sprintf("base:%s:%s", base.Origin.Environment, img.Digest)
	if base.Origin.Image != "" {
		base.Config = recipe.Config{Env: img.Env, Workdir: img.Workdir, User: img.User}
	}
	return base, nil
}

// Cancel ends a build, and waits for its end.
func (s *Service) cancel(ctx context.Context, id string) error {
	s.mu.Lock()
	a := s.active[id]
	s.mu.Unlock()
	if a == nil {
		return nil
	}
	a.cancel(errCanceled)
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
