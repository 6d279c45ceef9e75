// Package watch observes the Pods of the hub: it keeps a cache of their states and reports changes.
package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
)

// Watcher keeps a cache up to date.
type Watcher struct {
	*cluster.Session
	*Cache
	// Changed is called when the Pod of a sandbox has changed.
	Changed func(id string)
	// Listed is called when all Pods were listed after changes were missed.
	Listed func()
}

// List lists the Pods of a namespace, and returns the version of the list.
func (w *Watcher) List(ctx context.Context, ns *api.Client) ([]Pod, string, error) {
	moment := w.Moment()
	all, version, err := api.ListAll[Pod](ctx, ns, cluster.Pods, w.Selector(cluster.KindSandbox))
	if err != nil {
		return nil, "", fmt.Errorf("list Pods: %w", err)
	}
	w.ReplaceAll(ns.Namespace, all, moment)
	return all, version, nil
}

// FollowRemovals drops Pods that are removed from a namespace after a version, until stop is called. It does
// not reconnect.
func (w *Watcher) FollowRemovals(ctx context.Context, ns *api.Client, version string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		// An error is harmless: removals also query their Pod.
		_, _ = ns.Watch(ctx, cluster.Pods, w.Selector(cluster.KindSandbox), version, func(kind string, o json.RawMessage) error {
			var p Pod
			if err := json.Unmarshal(o, &p); err == nil && kind == "DELETED" {
				w.Drop(p.Metadata.Name)
			}
			return nil
		})
	})
	return func() { cancel(); watching.Wait() }
}

// Follow keeps the cache up to date with a namespace, from a version on, until ctx ends.
func (w *Watcher) Follow(ctx context.Context, ns *api.Client, version string) {
	pause := api.MinRetry
	for ctx.Err() == nil {
		began := time.Now()
		var err error
		if version == "" {
			if _, version, err = w.List(ctx, ns); err == nil {
				w.Listed()
			}
		} else {
			version, err = ns.Watch(ctx, cluster.Pods, w.Selector(cluster.KindSandbox), version, w.handle)
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
			w.Config.Log.Warn("connection to the API server lost; reconnecting", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, api.MaxRetry)
	}
}

// handle handles a change of a Pod.
func (w *Watcher) handle(kind string, object json.RawMessage) error {
	var p Pod
	if err := json.Unmarshal(object, &p); err != nil {
		return err
	}
	if kind == "DELETED" {
		w.Drop(p.Metadata.Name)
	} else {
		w.Put(p)
	}
	if id := p.Metadata.Labels[cluster.LabelID]; id != "" {
		w.Changed(id)
	}
	return nil
}
