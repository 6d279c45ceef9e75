package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// adoptAtOnce is how many unfinished sandboxes are removed at the same time.
const adoptAtOnce = 16

// adopt finds the sandboxes of a namespace and removes what is unfinished. It returns the
// version of the Pods that it has seen.
func (p *Provider) adopt(ctx context.Context, place *client) (string, error) {
	kept, _, err := api.ListAll[secret](ctx, place, secrets, p.selector(kindSandbox))
	if err != nil {
		return "", fmt.Errorf("list Secrets: %w", err)
	}
	running, version, err := api.ListAll[podState](ctx, place, pods, p.selector(kindSandbox))
	if err != nil {
		return "", fmt.Errorf("list Pods: %w", err)
	}
	homes, _, err := api.ListAll[claim](ctx, place, claims, p.selector(kindSandbox))
	if err != nil {
		return "", fmt.Errorf("list PersistentVolumeClaims: %w", err)
	}
	p.runner.pods.replaceAll(place.Namespace, running, 0)
	// Removals wait for Pods to end, which the watch tells.
	life, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		place.Watch(life, pods, p.selector(kindSandbox), version, func(kind string, o json.RawMessage) error {
			var st podState
			if err := json.Unmarshal(o, &st); err == nil && kind == "DELETED" {
				p.runner.pods.drop(st.Metadata.Name)
			}
			return nil
		})
	})
	defer watching.Wait()
	defer stop()

	var work batch
	current := map[string]string{} // the Pod of a sandbox; empty leaves all alone
	home := map[string]string{}    // the claim of its home
	for _, s := range kept {
		current[s.Metadata.Name] = ""
		rec, err := readRecord(s)
		if err != nil {
			p.cfg.Log.Error("cannot read the record of a sandbox; leaving it alone", "secret", s.Metadata.Name, "error", err)
			continue
		}
		current[rec.Sandbox.ID], home[rec.Sandbox.ID] = rec.podName(), rec.homeName()
		work.Go(func() error { return p.adoptOne(ctx, place, s, rec) })
	}
	for _, st := range running {
		id, name := st.Metadata.Labels[labelID], st.Metadata.Name
		if pod, known := current[id]; !known || pod != "" && pod != name { // of an earlier generation
			work.Go(func() error { return p.runner.endPod(ctx, place, name, 0) })
		}
	}
	for _, c := range homes {
		id, name := c.Metadata.Labels[labelID], c.Metadata.Name
		if pod, known := current[id]; !known || pod != "" && home[id] != name { // of a rollback that was cut short, or is over
			work.Go(func() error { return place.Remove(ctx, claims, name, -1) })
		}
	}
	return version, work.Wait()
}

// batch does several things at once, but not too many.
type batch struct {
	wg    sync.WaitGroup
	slots chan struct{}
	mu    sync.Mutex
	err   error
}

func (b *batch) Go(f func() error) {
	if b.slots == nil {
		b.slots = make(chan struct{}, adoptAtOnce)
	}
	b.slots <- struct{}{}
	b.wg.Go(func() {
		defer func() { <-b.slots }()
		err := f()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.err = errors.Join(b.err, err)
	})
}

func (b *batch) Wait() error {
	b.wg.Wait()
	return b.err
}

func readRecord(s secret) (rec record, err error) {
	if err := json.Unmarshal(s.Data[recordName], &rec); err != nil {
		return rec, err
	}
	if rec.Sandbox.ID != s.Metadata.Name {
		return rec, fmt.Errorf("it is the record of %q", rec.Sandbox.ID)
	}
	return rec, rec.Sandbox.Spec.Validate()
}

func (p *Provider) adoptOne(ctx context.Context, place *client, s secret, rec record) error {
	b := &box{rec: rec, api: place}
	b.remember(s)
	if err := p.runner.connect(b); err != nil {
		return fmt.Errorf("adopt sandbox %s: %w", rec.Sandbox.ID, err)
	}
	if rec.Sandbox.State == sandbox.Creating || rec.Sandbox.State == sandbox.Deleting {
		return p.runner.removeAll(ctx, b)
	}
	p.pin(rec.Restore)
	state, message := p.trueState(rec)
	switch {
	case state == sandbox.Deleting:
		p.cfg.Log.Warn("the Pod of a sandbox was removed by someone else", "sandbox", rec.Sandbox.ID)
		return p.runner.removeAll(ctx, b)
	case state == sandbox.Stopped && !p.runner.pods.gone(rec.podName()): // a stop, or start, that was cut short
		if err := p.runner.removePod(ctx, b, rec.podName(), p.cfg.StopGrace); err != nil {
			return err
		}
	case state == sandbox.Running:
		st, _ := p.runner.pods.get(rec.podName())
		b.where.set(st.Metadata.Name)
		if st.Metadata.Labels[labelOwner] != p.labels(rec.Sandbox)[labelOwner] { // the last hub had no time for it
			p.relabelLater(b, rec.Sandbox.ID)
		}
	}
	if state != rec.Sandbox.State {
		next := rec.Sandbox.Clone()
		next.State, next.Message = state, message
		if err := p.store(ctx, b, next); err != nil {
			return err
		}
	}
	_, err := p.table.Adopt(b.rec.Sandbox, b)
	return err
}
