package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// podCache is what the cluster has said about our Pods.
type podCache struct {
	mu      sync.Mutex
	moves   int
	pods    map[string]cachedPod
	waiting map[string][]chan struct{}
}

type cachedPod struct {
	podState
	// added is when we created it, in moves, if the cluster has not yet told of it by itself.
	added int
	// answered says that its first process has answered, which we may know before the cluster does.
	answered bool
}

// add adds a Pod that we have created, unless more is known about it.
func (c *podCache) add(st podState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.pods[st.Metadata.Name]; !ok {
		c.moves++
		c.store(st, c.moves)
	}
}

// put notes what the cluster says by itself.
func (c *podCache) put(st podState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(st, 0)
}

// refresh notes what the cluster says when it is asked.
func (c *podCache) refresh(st podState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(st, c.pods[st.Metadata.Name].added)
}

func (c *podCache) store(st podState, added int) {
	if c.pods == nil {
		c.pods = map[string]cachedPod{}
	}
	st.Metadata.Annotations, st.Metadata.OwnerReferences = nil, nil // which are large
	c.pods[st.Metadata.Name] = cachedPod{st, added, c.pods[st.Metadata.Name].answered}
	c.tell(st.Metadata.Name)
}

func (c *podCache) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, name)
	c.tell(name)
}

// now is a moment for replaceAll.
func (c *podCache) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moves
}

// replaceAll notes that these are all Pods of a namespace; those that were added since may be missing.
func (c *podCache) replaceAll(namespace string, all []podState, since int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	listed := map[string]bool{}
	for _, st := range all {
		listed[st.Metadata.Name] = true
		c.store(st, 0)
	}
	for name, known := range c.pods {
		if known.Metadata.Namespace == namespace && !listed[name] && known.added <= since {
			delete(c.pods, name)
			c.tell(name)
		}
	}
}

func (c *podCache) get(name string) (podState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.pods[name]
	return known.podState, ok
}

// noteAnswer notes that the first process of a Pod has answered.
func (c *podCache) noteAnswer(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.pods[name]; ok {
		known.answered = true
		c.pods[name] = known
	}
}

// ahead reports whether we know of a Pod that it runs, and the cluster does not.
func (c *podCache) ahead(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.pods[name]
	return ok && known.answered && !known.hasRun()
}

// idle reports whether a Pod has not run anything yet.
func (c *podCache) idle(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.pods[name]
	return ok && !known.answered && !known.hasRun()
}

func (c *podCache) gone(name string) bool {
	_, ok := c.get(name)
	return !ok
}

// watch returns a channel that receives when something about a Pod has changed.
func (c *podCache) watch(name string) (changed <-chan struct{}, forget func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = map[string][]chan struct{}{}
	}
	ch := make(chan struct{}, 1)
	c.waiting[name] = append(c.waiting[name], ch)
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, w := range c.waiting[name] {
			if w == ch {
				c.waiting[name] = append(c.waiting[name][:i:i], c.waiting[name][i+1:]...)
			}
		}
		if len(c.waiting[name]) == 0 {
			delete(c.waiting, name)
		}
	}
}

func (c *podCache) tell(name string) {
	for _, ch := range c.waiting[name] {
		select {
		case ch <- struct{}{}:
		default: // knows already
		}
	}
}

// follow keeps the table true to what the cluster says about a namespace, until ctx ends.
func (p *Provider) follow(ctx context.Context, place *client, version string) {
	pause := api.MinRetry
	for ctx.Err() == nil {
		began := time.Now()
		var err error
		if version == "" {
			version, err = p.relist(ctx, place)
		} else {
			version, err = place.Watch(ctx, pods, p.selector(kindSandbox), version, p.heed)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, api.ErrExpired):
			version = ""
			continue
		case err == nil && time.Since(began) > api.MinRetry: // the server ends a watch from time to time
			pause = api.MinRetry
			continue
		case err != nil:
			p.cfg.Log.Warn("lost the connection to the API server; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, api.MaxRetry)
	}
}

// heed notes a change of a Pod.
func (p *Provider) heed(kind string, object json.RawMessage) error {
	var st podState
	if err := json.Unmarshal(object, &st); err != nil {
		return err
	}
	if kind == "DELETED" {
		p.runner.pods.drop(st.Metadata.Name)
	} else {
		p.runner.pods.put(st)
	}
	p.refreshLater(st.Metadata.Labels[labelID])
	return nil
}

// relist begins anew after changes were missed.
func (p *Provider) relist(ctx context.Context, place *client) (string, error) {
	since := p.runner.pods.now()
	all, version, err := api.ListAll[podState](ctx, place, pods, p.selector(kindSandbox))
	if err != nil {
		return "", err
	}
	p.runner.pods.replaceAll(place.Namespace, all, since)
	boxes, err := p.table.List(sandbox.Filter{})
	for _, sb := range boxes {
		p.refreshLater(sb.ID)
	}
	return version, err
}

// refreshLater looks at a sandbox in the background: it waits for its turn.
func (p *Provider) refreshLater(id string) {
	if id != "" {
		p.table.Go(func(ctx context.Context) { p.refresh(ctx, id) })
	}
}

// refresh changes a sandbox if its Pod is in another state.
func (p *Provider) refresh(ctx context.Context, id string) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return // it is created or deleted, which ends with its true state
	}
	defer row.Release()
	b, sb := row.Data, row.Sandbox()
	state, message := p.trueState(b.rec)
	if state == sandbox.Deleting {
		p.cfg.Log.Warn("the Pod of a sandbox was removed by someone else", "sandbox", id)
		if err := p.scrap(ctx, row); err != nil {
			p.cfg.Log.Error("cannot remove a sandbox without a Pod", "sandbox", id, "error", err)
		}
		return
	}
	if state == sb.State {
		return
	}
	if state != sandbox.Running {
		b.leave()
	}
	if err := p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = state, message }); err != nil {
		p.cfg.Log.Error("cannot record the state of a sandbox", "sandbox", id, "error", err)
	}
}

// trueState is the state of a sandbox as its Pod says; Deleting means that nothing is left of it.
func (p *Provider) trueState(rec record) (sandbox.State, string) {
	sb := rec.Sandbox
	st, ok := p.runner.pods.get(rec.podName())
	switch {
	case sb.State == sandbox.Stopped:
		return sb.State, sb.Message
	case !ok && !p.cfg.Persistent:
		return sandbox.Deleting, ""
	case !ok && sb.State == sandbox.Failed:
		return sb.State, sb.Message
	case !ok:
		return sandbox.Failed, "its Pod was removed; start it again"
	}
	if why, ended := st.ended(); ended {
		if sb.State == sandbox.Failed {
			why = sb.Message
		}
		return sandbox.Failed, why
	}
	return sandbox.Running, ""
}

// ended reports whether the program of a Pod has ended, and how.
func (st podState) ended() (why string, ended bool) {
	for _, c := range st.Status.ContainerStatuses {
		if c.Name == mainContainer && c.State.Terminated != nil {
			return c.State.Terminated.String(), true
		}
	}
	if st.Status.Phase != "Failed" && st.Status.Phase != "Succeeded" {
		return "", false
	}
	for _, c := range st.Status.InitContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return "the installation of the hub's programs " + t.String(), true
		}
	}
	why = "the Pod has ended"
	for _, more := range []string{st.Status.Reason, st.Status.Message} {
		if more != "" {
			why += ": " + more
		}
	}
	return why, true
}

func (t terminatedState) String() string {
	why := fmt.Sprintf("exited with status %d", t.ExitCode)
	if t.Reason == "OOMKilled" {
		why = "out of memory: " + why
	} else if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
		why += ": " + t.Reason
	}
	if t.Message != "" {
		why += ": " + t.Message
	}
	return why
}
