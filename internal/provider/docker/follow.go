package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	engine "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// exits notifies waiting calls that a container may have ended. Events can be late or about an earlier run, so the calls
// must check the container.
type exits struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

// watch returns a channel that receives when the container ends.
func (e *exits) watch(id string) (ended <-chan struct{}, cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[string]chan struct{}{}
	}
	ch := make(chan struct{}, 1)
	e.waiting[id] = ch
	return ch, func() { e.mu.Lock(); defer e.mu.Unlock(); delete(e.waiting, id) }
}

func (e *exits) notify(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.waiting[id] <- struct{}{}:
	default: // no call waits, or a notification is pending
	}
}

// ids lists the containers for which calls wait.
func (e *exits) ids() (ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.waiting {
		ids = append(ids, id)
	}
	return ids
}

// Pauses between attempts to reach an engine that restarts.
const (
	minRetry = 50 * time.Millisecond
	maxRetry = 2 * time.Second
)

// follow keeps the table up to date with the engine until ctx ends. Events only trigger queries, so lost or late events
// are harmless.
func (p *Provider) follow(ctx context.Context) {
	for pause := minRetry; ctx.Err() == nil; pause = min(2*pause, maxRetry) {
		began := time.Now()
		err := p.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			pause = minRetry
		}
		p.cfg.Log.Warn("connection to the engine lost; reconnecting", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (p *Provider) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// An engine responds before the subscription is active. Requesting past events closes that gap.
	stream := p.engine.Events(ctx, client.EventsListOptions{Since: "2s", Filters: p.own().Add("type", string(events.ContainerEventType))})
	// Query changes that happened without a connection.
	list, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return err
	}
	for _, sb := range list {
		p.refresh(ctx, sb.ID)
	}
	for _, id := range p.runner.exits.ids() {
		p.runner.exits.notify(id)
	}
	created, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: p.own().Add("status", string(engine.StateCreated))})
	if err != nil {
		return err
	}
	for _, c := range created.Items {
		p.runner.removeStray(ctx, p.table, c.ID, c.Labels[labelID])
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-stream.Err:
			return err
		case m := <-stream.Messages:
			switch m.Action {
			case events.ActionDie:
				p.runner.exits.notify(m.Actor.ID)
			case events.ActionCreate:
				p.table.Go(func(ctx context.Context) { p.runner.removeStray(ctx, p.table, m.Actor.ID, m.Actor.Attributes[labelID]) })
				continue
			case events.ActionStart, events.ActionPause, events.ActionUnPause:
			case events.ActionDestroy, events.ActionRemove: // of Docker and of Podman
			default:
				continue
			}
			if id := m.Actor.Attributes[labelID]; id != "" {
				// In the background, because other calls may use the sandbox.
				p.table.Go(func(ctx context.Context) { p.refresh(ctx, id) })
			}
		}
	}
}

// removeStray removes a container of a sandbox that is not in the table: the engine has completed the request of a hub
// that was killed. It keeps containers that have run.
func (r *runner) removeStray(ctx context.Context, table *sandbox.Table[*box], container, id string) {
	// A container without an ID belongs to a user who runs the image of a snapshot.
	if _, err := table.Get(id); id == "" || !errors.Is(err, sandbox.ErrNotFound) {
		return
	}
	got, err := r.engine.ContainerInspect(ctx, container, client.ContainerInspectOptions{})
	if err != nil || got.Container.State == nil || got.Container.State.Status != engine.StateCreated {
		return
	}
	r.cfg.Log.Warn("removing a container of a killed hub", "container", container, "sandbox", id)
	if err := r.removeContainer(ctx, container); err != nil {
		r.cfg.Log.Error("cannot remove an unused container; the next start of the hub retries", "container", container, "error", err)
	}
}

// refresh queries the container of a sandbox and updates the state of the sandbox.
func (p *Provider) refresh(ctx context.Context, id string) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return // it is being created or deleted, which sets its state
	}
	defer row.Release()
	got, err := p.engine.ContainerInspect(ctx, row.Data.rec.Container, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		p.cfg.Log.Warn("the container of a sandbox was removed externally", "sandbox", id)
		if err := p.remove(ctx, row); err != nil {
			p.cfg.Log.Error("cannot remove a sandbox without a container", "sandbox", id, "error", err)
		}
		return
	case err != nil:
		return // the engine is unreachable; follow queries again after reconnecting
	}
	sb := row.Sandbox()
	state, message := observedState(sb, got.Container.State)
	if state == sb.State {
		return
	}
	if err := p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = state, message }); err != nil {
		p.cfg.Log.Error("cannot record the state of a sandbox", "sandbox", id, "error", err)
	}
}

// observedState returns the state of a sandbox according to its container.
func observedState(sb sandbox.Sandbox, s *engine.State) (sandbox.State, string) {
	switch {
	case s == nil:
		return sb.State, sb.Message
	case s.Paused:
		return sandbox.Paused, ""
	case s.Running:
		return sandbox.Running, ""
	case sb.State == sandbox.Stopped || sb.State == sandbox.Failed:
		return sb.State, sb.Message
	}
	return sandbox.Failed, exitMessage(s)
}

func exitMessage(s *engine.State) string {
	message := fmt.Sprintf("exited with status %d", s.ExitCode)
	if s.OOMKilled {
		message = "out of memory: " + message
	}
	if s.Error != "" {
		message += ": " + s.Error
	}
	return message
}

// ended reports whether a container that was started has ended, and how.
func (r *runner) ended(ctx context.Context, b *box) (reason string, ended bool) {
	call, cancel := steady(ctx)
	defer cancel()
	got, err := r.engine.ContainerInspect(call, b.rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return "was removed", errdefs.IsNotFound(err)
	}
	s := got.Container.State
	return exitMessage(s), s.Status == engine.StateExited || s.Status == engine.StateDead
}

// adopt adopts the sandboxes of the state folder and removes unfinished ones.
func (p *Provider) adopt(ctx context.Context) error {
	list, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: p.own()})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	found := map[string][]engine.Summary{}
	for _, c := range list.Items {
		found[c.Labels[labelID]] = append(found[c.Labels[labelID]], c)
	}
	folders, err := os.ReadDir(filepath.Join(p.cfg.Dir, boxesName))
	if err != nil {
		return err
	}
	for _, f := range folders {
		if _, ok := found[f.Name()]; !ok {
			found[f.Name()] = nil
		}
	}
	for id, containers := range found {
		if err := p.adoptOne(ctx, id, containers); err != nil {
			return fmt.Errorf("adopt sandbox %s: %w", id, err)
		}
	}
	return nil
}

func (p *Provider) adoptOne(ctx context.Context, id string, containers []engine.Summary) error {
	if err := sandbox.CheckName(id); err != nil { // it becomes a path
		p.cfg.Log.Error("ignoring an unknown object", "id", id, "error", err)
		return nil
	}
	b := &box{dir: p.runner.boxDir(id)}
	rec, err := loadRecord(b.dir)
	lost := errors.Is(err, fs.ErrNotExist) && len(containers) > 0
	switch {
	case lost:
		// The state folder was lost. The labels contain the original state of the sandbox.
		if rec, err = recordOf(containers[0]); err != nil {
			p.cfg.Log.Error("cannot read the labels of a container; ignoring it", "container", containers[0].ID, "error", err)
			return nil
		}
	case errors.Is(err, fs.ErrNotExist):
		return os.RemoveAll(b.dir)
	case err != nil:
		p.cfg.Log.Error("cannot read the record of a sandbox; ignoring the sandbox", "sandbox", id, "error", err)
		return nil
	}
	b.rec = rec
	b.rec.Sandbox.ID = id // it names the folder that is removed
	complete := rec.Sandbox.State != sandbox.Creating && rec.Sandbox.State != sandbox.Deleting
	for _, c := range containers {
		if !complete || c.ID != rec.Container { // of an interrupted rollback
			if err := p.runner.removeContainer(ctx, c.ID); err != nil {
				return err
			}
		}
	}
	if !complete {
		return p.runner.removeFiles(ctx, b)
	}
	got, err := p.engine.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		p.cfg.Log.Warn("the container of a sandbox was removed externally", "sandbox", id)
		return p.runner.removeFiles(ctx, b)
	}
	if err != nil {
		return err
	}
	b.rec.Sandbox.State, b.rec.Sandbox.Message = observedState(b.rec.Sandbox, got.Container.State)
	if lost { // with its sockets, so a running container is unreachable
		b.rec.Sandbox.State, b.rec.Sandbox.Message = sandbox.Failed,
			"the hub has lost its connection and its environment variables; set them and start it again"
		if err := errors.Join(b.makeFolders(), b.save(), p.runner.halt(ctx, b, p.cfg.StopGrace)); err != nil {
			return err
		}
	}
	_, err = p.table.Adopt(b.rec.Sandbox, b)
	return err
}

// recordOf reads the labels of a container.
func recordOf(c engine.Summary) (rec record, err error) {
	rec = record{Container: c.ID}
	if err := json.Unmarshal([]byte(c.Labels[labelSandbox]), &rec.Sandbox); err != nil {
		return rec, err
	}
	if err := json.Unmarshal([]byte(c.Labels[labelBase]), &rec.Base); err != nil {
		return rec, err
	}
	if err := rec.Sandbox.Spec.Validate(); err != nil {
		return rec, err
	}
	rec.Sandbox.State, rec.Sandbox.Changed = sandbox.Stopped, rec.Sandbox.Created
	return rec, nil
}
