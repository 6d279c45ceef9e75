// Package trash keeps deleted sandboxes for an hour, so that their owner can restore them. They are
// stopped and hidden, and their names are free. The provider stores them, so they outlive the hub.
//
// It is limited: each owner has at most ten, and they are deleted earlier if their space is needed.
package trash

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// Keep is how long a deleted sandbox can be restored.
	Keep       = time.Hour
	maxOfOwner = 10
	note       = "cove/deleted"
)

// mark is the annotation of a deleted sandbox.
type mark struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

func markOf(sb sandbox.Sandbox) (m mark, ok bool) {
	text, ok := sb.Spec.Annotations[note]
	return m, ok && json.Unmarshal([]byte(text), &m) == nil
}

// Holds reports whether a sandbox is deleted and can be restored.
func Holds(sb sandbox.Sandbox) bool { _, ok := sb.Spec.Annotations[note]; return ok }

// Name is the name that a deleted sandbox had.
func Name(sb sandbox.Sandbox) string { m, _ := markOf(sb); return m.Name }

// Config of a Bin.
type Config struct {
	// Provider also returns deleted sandboxes.
	Provider sandbox.Provider
	// Count counts the disk of a deleted sandbox for its owner, until Free.
	Count, Free func(sandbox.Sandbox)
	Log         *slog.Logger
}

// Bin contains the deleted sandboxes of all owners.
type Bin struct {
	Config

	mu        sync.Mutex      // held while sandboxes are restored or finally deleted
	restoring map[string]bool // IDs of sandboxes that must not be deleted
}

// New returns a bin. It deletes nothing until Sweep is called.
func New(cfg Config) *Bin { return &Bin{Config: cfg, restoring: map[string]bool{}} }

// Put stops a sandbox and hides it. After an error it is unchanged or stopped, and can be deleted.
func (b *Bin) Put(ctx context.Context, sb sandbox.Sandbox) error {
	if !b.Provider.Abilities().Stop {
		return sandbox.ErrUnsupported
	}
	ctx = context.WithoutCancel(ctx)
	if err := b.Provider.Stop(ctx, sb.ID); err != nil {
		return err
	}
	text, err := json.Marshal(mark{sb.Spec.Name, time.Now().UTC()})
	if err != nil {
		return err
	}
	hidden, err := b.Provider.Update(ctx, sb.ID, func(s *sandbox.Spec) error {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Name, s.Annotations[note] = "deleted-"+strings.TrimPrefix(sb.ID, "sb-"), string(text)
		return nil
	})
	if err != nil {
		return err
	}
	b.Count(hidden)
	b.deleteAll(ctx, b.surplus(ctx, sb.Spec.Owner))
	return nil
}

// list returns the deleted sandboxes of an owner, or of all owners, the latest last.
func (b *Bin) list(ctx context.Context, owner string, all bool) ([]sandbox.Sandbox, error) {
	list, err := b.Provider.List(ctx, sandbox.Filter{Owner: owner, States: []sandbox.State{sandbox.Stopped}})
	list = slices.DeleteFunc(list, func(sb sandbox.Sandbox) bool { return !Holds(sb) || !all && sb.Spec.Owner != owner })
	slices.SortStableFunc(list, func(x, y sandbox.Sandbox) int {
		a, _ := markOf(x)
		b, _ := markOf(y)
		return a.At.Compare(b.At)
	})
	return list, err
}

// IDs returns the IDs of the sandboxes that can be restored.
func (b *Bin) IDs(ctx context.Context) map[string]bool {
	list, err := b.list(ctx, "", true)
	if err != nil {
		return nil
	}
	ids := make(map[string]bool, len(list))
	for _, sb := range list {
		ids[sb.ID] = true
	}
	return ids
}

// surplus lists the oldest deleted sandboxes of an owner that has too many.
func (b *Bin) surplus(ctx context.Context, owner string) []sandbox.Sandbox {
	list, err := b.list(ctx, owner, false)
	if err != nil {
		return nil
	}
	return list[:max(0, len(list)-maxOfOwner)]
}

// Take returns the latest deleted sandbox that matches. It is not deleted finally, and its disk is not
// counted, until done is called.
func (b *Bin) Take(ctx context.Context, match func(sandbox.Sandbox) bool) (sb sandbox.Sandbox, done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, err := b.list(ctx, "", true)
	if err != nil {
		return sb, nil, err
	}
	for _, sb := range slices.Backward(list) {
		if !b.restoring[sb.ID] && match(sb) {
			b.restoring[sb.ID] = true
			b.Free(sb)
			return sb, func() { b.done(ctx, sb) }, nil
		}
	}
	return sb, nil, sandbox.ErrNotFound
}

func (b *Bin) done(ctx context.Context, sb sandbox.Sandbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.restoring, sb.ID)
	if now, err := b.Provider.Get(context.WithoutCancel(ctx), sb.ID); err == nil && Holds(now) {
		b.Count(now)
	}
}

// Restore shows a sandbox from Take again, under its old name or another. It stays stopped.
func (b *Bin) Restore(ctx context.Context, id, name string) (sandbox.Sandbox, error) {
	return b.Provider.Update(ctx, id, func(s *sandbox.Spec) error {
		delete(s.Annotations, note)
		s.Name = name
		return nil
	})
}

// Purge finally deletes the deleted sandboxes that match; false if there are none.
func (b *Bin) Purge(ctx context.Context, match func(sandbox.Sandbox) bool) bool {
	list, err := b.list(ctx, "", true)
	if err != nil {
		return false
	}
	return b.deleteAll(ctx, slices.DeleteFunc(list, func(sb sandbox.Sandbox) bool { return !match(sb) }))
}

// Sweep finally deletes sandboxes that were deleted long ago, and counts the others.
func (b *Bin) Sweep(ctx context.Context) {
	list, err := b.list(ctx, "", true)
	if err != nil {
		return
	}
	var due []sandbox.Sandbox
	for _, sb := range list {
		if m, ok := markOf(sb); !ok || time.Since(m.At) >= Keep {
			due = append(due, sb)
		} else if !b.isRestoring(sb.ID) {
			b.Count(sb)
		}
	}
	b.deleteAll(ctx, due)
}

func (b *Bin) isRestoring(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.restoring[id]
}

func (b *Bin) deleteAll(ctx context.Context, list []sandbox.Sandbox) (any bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, sb := range list {
		if now, err := b.Provider.Get(ctx, sb.ID); b.restoring[sb.ID] || err == nil && !Holds(now) {
			continue
		}
		if err := b.Provider.Delete(ctx, sb.ID); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			b.Log.Warn("cannot delete a sandbox finally; retrying later", "sandbox", sb.ID, "error", err)
			continue
		}
		b.Free(sb)
		any = true
	}
	return any
}
