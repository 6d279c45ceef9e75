package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Foreign is access to objects of others in the cluster, with the rights of the hub. A kind is
// the path of its API without the namespace, such as "apis/example.com/v1/things". It knows nothing
// of what they mean. A hub that was replaced by another can do nothing with them any more.
type Foreign struct{ provider *Provider }

// Foreign returns access to objects of others.
func (p *Provider) Foreign() *Foreign { return &Foreign{p} }

// Follow calls replace with all objects of a kind in a namespace, and change with every object that
// has changed since; both again and again until ctx ends. It returns ErrNotFound if the cluster does not
// know the kind, and any other refusal as it is.
func (f *Foreign) Follow(ctx context.Context, kind, namespace string, replace func([]json.RawMessage), change func(deleted bool, object json.RawMessage)) error {
	ctx, done, err := f.provider.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c, version, pause := f.provider.client.in(namespace), "", minRetry
	for ctx.Err() == nil {
		began := time.Now()
		if version == "" {
			var all []json.RawMessage
			if all, version, err = listAll[json.RawMessage](ctx, c, kind, ""); err == nil {
				replace(all)
			}
		} else {
			version, err = c.watch(ctx, kind, "", version, func(what string, object json.RawMessage) error {
				change(what == "DELETED", object)
				return nil
			})
		}
		var refusal *Error
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errExpired):
			version = ""
			continue
		case isMissing(err):
			return fmt.Errorf("%w: %s", sandbox.ErrNotFound, kind)
		case errors.As(err, &refusal) && !worthRetrying(err):
			return err
		case err == nil && time.Since(began) > minRetry: // the server ends a watch from time to time
			pause = minRetry
			continue
		case err != nil:
			f.provider.cfg.Log.Warn("lost the connection to the API server; trying again", "kind", kind, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetry)
	}
	return context.Cause(ctx)
}

// SetStatus changes the status of an object, unless it is another by now. It returns ErrNotFound if
// the object is gone.
func (f *Foreign) SetStatus(ctx context.Context, kind, namespace, name, uid string, status any) error {
	return f.do(ctx, func(ctx context.Context) error {
		in := map[string]any{"metadata": map[string]any{"uid": uid}, "status": status}
		return f.provider.client.in(namespace).patch(ctx, kind, []string{name, "status"}, asMergePatch, in, nil)
	})
}

// Remove deletes an object, unless it is another by now.
func (f *Foreign) Remove(ctx context.Context, kind, namespace, name, uid string) error {
	return f.do(ctx, func(ctx context.Context) error {
		body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]any{"uid": uid}})
		if err != nil {
			return err
		}
		c := f.provider.client.in(namespace)
		_, err = c.do(ctx, call{method: http.MethodDelete, url: c.address(kind, []string{name}, nil), media: asJSON, body: body}, nil)
		return err
	})
}

// do carries out a call while this hub is the one that looks after the sandboxes.
func (f *Foreign) do(ctx context.Context, run func(context.Context) error) error {
	ctx, done, err := f.provider.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err = run(ctx); isMissing(err) || isConflict(err) {
		return fmt.Errorf("%w: %w", sandbox.ErrNotFound, err)
	}
	return err
}
