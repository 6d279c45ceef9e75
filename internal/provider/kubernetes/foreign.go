package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Foreign gives access to objects of other controllers, with the rights of the hub. A kind is the path of its API
// without the namespace, such as "apis/example.com/v1/things". All methods fail after another hub has taken over.
type Foreign struct{ provider *Provider }

// Foreign returns access to objects of other controllers.
func (p *Provider) Foreign() *Foreign { return &Foreign{p} }

// bounded is an object in a list, which is in memory as a whole. If the object exceeds maxForeign bytes, only its
// identity and size are kept.
type bounded json.RawMessage

const maxForeign = 256 << 10

// UnmarshalJSON implements json.Unmarshaler.
func (b *bounded) UnmarshalJSON(raw []byte) (err error) {
	if len(raw) <= maxForeign {
		*b = bytes.Clone(raw)
		return nil
	}
	var o struct {
		Metadata struct {
			Name       string `json:"name"`
			UID        string `json:"uid"`
			Generation int64  `json:"generation"`
			Deleted    string `json:"deletionTimestamp,omitempty"`
		} `json:"metadata"`
		Size int `json:"size"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return err
	}
	o.Size = len(raw)
	*b, err = json.Marshal(o)
	return err
}

// Follow calls replace with all objects of a kind in a namespace, then change with every object that has changed.
// It repeats both until ctx ends. It returns ErrNotFound if the cluster does not know the kind, and other
// permanent errors unchanged.
func (f *Foreign) Follow(ctx context.Context, kind, namespace string, replace func([]json.RawMessage),
	change func(deleted bool, object json.RawMessage)) error {
	ctx, done, err := f.provider.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c, version, pause := f.provider.session.Client.In(namespace), "", api.MinRetry
	for ctx.Err() == nil {
		began := time.Now()
		if version == "" {
			var all []bounded
			if all, version, err = api.ListAll[bounded](ctx, c, kind, ""); err == nil {
				objects := make([]json.RawMessage, len(all))
				for i, o := range all {
					objects[i] = json.RawMessage(o)
				}
				replace(objects)
			}
		} else {
			version, err = c.Watch(ctx, kind, "", version, func(what string, object json.RawMessage) error {
				change(what == "DELETED", object)
				return nil
			})
		}
		var rejected *api.Error
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, api.ErrExpired):
			version = ""
			continue
		case api.IsMissing(err):
			return fmt.Errorf("%w: %s", sandbox.ErrNotFound, kind)
		case errors.As(err, &rejected) && !api.WorthRetrying(err):
			return err
		case err == nil && time.Since(began) > api.MinRetry: // the server ends a watch from time to time
			pause = api.MinRetry
			continue
		case err != nil:
			f.provider.session.Config.Log.Warn("connection to the API server lost; reconnecting", "kind", kind, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, api.MaxRetry)
	}
	return context.Cause(ctx)
}

// SetStatus changes the status of the object with a UID. It returns ErrNotFound if that object does not exist.
func (f *Foreign) SetStatus(ctx context.Context, kind, namespace, name, uid string, status any) error {
	return f.do(ctx, func(ctx context.Context) error {
		in := map[string]any{"metadata": map[string]any{"uid": uid}, "status": status}
		return f.provider.session.Client.In(namespace).Patch(ctx, kind, []string{name, "status"}, api.MergePatch, in, nil)
	})
}

// Remove deletes the object with a UID.
func (f *Foreign) Remove(ctx context.Context, kind, namespace, name, uid string) error {
	return f.do(ctx, func(ctx context.Context) error {
		body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]any{"uid": uid}})
		if err != nil {
			return err
		}
		c := f.provider.session.Client.In(namespace)
		_, err = c.Do(ctx, api.Call{Method: http.MethodDelete, URL: c.Address(kind, []string{name}, nil), Media: api.JSON, Body: body}, nil)
		return err
	})
}

// do runs a call if this hub holds the lease.
func (f *Foreign) do(ctx context.Context, run func(context.Context) error) error {
	ctx, done, err := f.provider.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, api.CallTime)
	defer cancel()
	if err = run(ctx); api.IsMissing(err) || api.IsConflict(err) {
		return fmt.Errorf("%w: %w", sandbox.ErrNotFound, err)
	}
	return err
}
