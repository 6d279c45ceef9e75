package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/disks"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// adopt adopts the sandboxes of a namespace and removes what is unfinished. It returns the version of its list of
// Pods.
func (p *Provider) adopt(ctx context.Context, ns *api.Client) (string, error) {
	records, _, err := api.ListAll[cluster.Secret](ctx, ns, cluster.Secrets, p.session.Selector(cluster.KindSandbox))
	if err != nil {
		return "", fmt.Errorf("list Secrets: %w", err)
	}
	running, version, err := p.watcher.List(ctx, ns)
	if err != nil {
		return "", err
	}
	homes, _, err := api.ListAll[disks.Claim](ctx, ns, cluster.Claims, p.session.Selector(cluster.KindSandbox))
	if err != nil {
		return "", fmt.Errorf("list PersistentVolumeClaims: %w", err)
	}
	stop := p.watcher.FollowRemovals(ctx, ns, version) // removals wait for Pods to end
	defer stop()

	var work batch
	pod := map[string]string{}  // the current Pod of a sandbox; empty: do not remove any of its objects
	home := map[string]string{} // the claim of its home
	for _, s := range records {
		pod[s.Metadata.Name] = ""
		rec, err := box.ReadRecord(s)
		if err != nil {
			p.session.Config.Log.Error("cannot read the record of a sandbox; ignoring the sandbox", "secret", s.Metadata.Name, "error", err)
			continue
		}
		pod[rec.Sandbox.ID], home[rec.Sandbox.ID] = rec.PodName(), rec.HomeName()
		work.Go(func() error { return p.adoptOne(ctx, ns, s, rec) })
	}
	for _, found := range running {
		id, name := found.Metadata.Labels[cluster.LabelID], found.Metadata.Name
		if current, known := pod[id]; !known || current != "" && current != name { // of an earlier generation
			work.Go(func() error { return p.creator.RemovePod(ctx, ns, name, 0) })
		}
	}
	for _, found := range homes {
		id, name := found.Metadata.Labels[cluster.LabelID], found.Metadata.Name
		if current, known := pod[id]; !known || current != "" && home[id] != name { // of a rollback
			work.Go(func() error { return ns.Remove(ctx, cluster.Claims, name, -1) })
		}
	}
	return version, work.Wait()
}

// maxConcurrentAdoptions is how many sandboxes are adopted, or removed, concurrently.
const maxConcurrentAdoptions = 16

// batch runs functions with limited concurrency.
type batch struct {
	wg    sync.WaitGroup
	slots chan struct{}
	mu    sync.Mutex
	err   error
}

func (b *batch) Go(f func() error) {
	if b.slots == nil {
		b.slots = make(chan struct{}, maxConcurrentAdoptions)
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

func (p *Provider) adoptOne(ctx context.Context, ns *api.Client, s cluster.Secret, rec box.Record) error {
	b := box.New(p.session, rec)
	b.API = ns
	b.Loaded(s)
	if err := p.connector.OpenTunnel(b); err != nil {
		return fmt.Errorf("adopt sandbox %s: %w", rec.Sandbox.ID, err)
	}
	if rec.Sandbox.State == sandbox.Creating || rec.Sandbox.State == sandbox.Deleting {
		return p.removeObjects(ctx, b)
	}
	p.pin(rec.Restore)
	state, message := p.observedState(rec)
	switch {
	case state == sandbox.Deleting:
		p.session.Config.Log.Warn("the Pod of a sandbox was removed externally", "sandbox", rec.Sandbox.ID)
		return p.removeObjects(ctx, b)
	case state == sandbox.Stopped && !p.watcher.Missing(rec.PodName()): // a stop or start was interrupted
		if err := p.creator.Remove(ctx, b, p.session.Config.StopGrace); err != nil {
			return err
		}
	case state == sandbox.Running:
		pod, _ := p.watcher.Get(rec.PodName())
		b.Pod.Set(pod.Metadata.Name)
		if pod.Metadata.Labels[cluster.LabelOwner] != p.session.Labels(rec.Sandbox)[cluster.LabelOwner] {
			p.relabelLater(b, rec.Sandbox.ID) // the previous hub ended before it did
		}
	}
	if state != rec.Sandbox.State {
		next := rec.Sandbox.Clone()
		next.State, next.Message = state, message
		if err := b.SaveSandbox(ctx, next, nil); err != nil {
			return err
		}
	}
	_, err := p.table.Adopt(b.Record.Sandbox, b)
	return err
}
