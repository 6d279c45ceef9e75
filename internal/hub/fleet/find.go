package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// idPrefix is the prefix of the IDs of sandboxes.
const idPrefix = "sb-"

// Find is the only lookup of a sandbox by name. It finds only the caller's own sandboxes. It also
// accepts an ID, by which admins find the sandboxes of all tenants, and callers with a link find the
// sandbox of the link.
func (f *Fleet) Find(ctx context.Context, name string) (sandbox.Sandbox, error) {
	call := op.CallOf(ctx)
	sb, err := f.directory.find(ctx, call, name)
	// E2B clients send IDs without a dash.
	if id, ok := naming.ParseE2BID(name); ok && err != nil {
		sb, err = f.directory.find(ctx, call, id)
	}
	if err != nil {
		call.TargetName = fault.Clip(name)
		return sandbox.Sandbox{}, err
	}
	call.Target, call.TargetName = sb.ID, sb.Spec.Name
	return sb, nil
}

// key identifies a sandbox by name: names are unique for each owner.
type key struct{ owner, name string }

func keyOf(sb sandbox.Sandbox) key { return key{sb.Spec.Owner, sb.Spec.Name} }

// directory caches the IDs of names. The provider is authoritative.
type directory struct {
	provider   sandbox.Provider
	tombstones *tombstone.Log

	mu  sync.Mutex
	ids map[key]string
}

func (d *directory) add(sb sandbox.Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids[keyOf(sb)] = sb.ID
}

func (d *directory) remove(sb sandbox.Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := keyOf(sb); d.ids[k] == sb.ID {
		delete(d.ids, k)
	}
}

func (d *directory) find(ctx context.Context, call *op.Call, name string) (sandbox.Sandbox, error) {
	if sandbox.CheckName(name) != nil {
		return sandbox.Sandbox{}, fault.NoSandbox(name)
	}
	if call.Share != nil {
		if call.Share.Sandbox != name {
			return sandbox.Sandbox{}, fault.NoSandbox(name)
		}
		sb, err := d.provider.Get(ctx, name)
		return sb, fault.FromProvider(name, err)
	}
	k := key{caller.Owner(ctx), name}
	// Most requests have an ID. A search for a sandbox with that name would cost more with every sandbox.
	if strings.HasPrefix(name, idPrefix) && !d.knows(k) {
		if sb, err := d.provider.Get(ctx, name); err == nil && (sb.Spec.Owner == k.owner || caller.IsAdmin(call)) {
			return sb, nil
		}
	}
	return d.findOwned(ctx, k)
}

// knows reports whether the directory has a name.
func (d *directory) knows(k key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.ids[k]
	return known
}

// findOwned finds a sandbox by its owner and name.
func (d *directory) findOwned(ctx context.Context, k key) (sandbox.Sandbox, error) {
	d.mu.Lock()
	id, known := d.ids[k]
	d.mu.Unlock()
	if known {
		sb, err := d.provider.Get(ctx, id)
		if err == nil && keyOf(sb) == k {
			return sb, nil
		}
		if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return sandbox.Sandbox{}, fault.FromProvider(k.name, err)
		}
	}
	list, err := d.provider.List(ctx, sandbox.Filter{Owner: k.owner, Name: k.name})
	if err != nil {
		return sandbox.Sandbox{}, fault.FromProvider(k.name, err)
	}
	for _, sb := range list {
		// A filter without an owner selects the sandboxes of all owners.
		if keyOf(sb) == k {
			d.add(sb)
			return sb, nil
		}
	}
	d.mu.Lock()
	delete(d.ids, k)
	d.mu.Unlock()
	if t, ok := d.tombstones.Find(k.owner, k.name, time.Now()); ok {
		return sandbox.Sandbox{}, fault.Deleted(k.name, t.At, t.Why)
	}
	return sandbox.Sandbox{}, fault.NoSandbox(k.name)
}
