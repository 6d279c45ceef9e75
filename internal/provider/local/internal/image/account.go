package image

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
)

// Charge counts the data that a call stores for an owner.
type Charge struct {
	// Take reserves space before bytes are stored; a negative number releases it. An error ends the call.
	Take func(bytes int64) error
	// Owned returns the IDs of the layers that count for the owner already; nil: none. It is called only if Take fails,
	// because it may read many records.
	Owned func() (map[string]bool, error)
}

type chargeKey struct{}

// WithCharge charges calls with the returned context.
func WithCharge(ctx context.Context, c Charge) context.Context {
	return context.WithValue(ctx, chargeKey{}, c)
}

// account counts the layers of one call. A nil account counts nothing.
type account struct {
	charge Charge

	mu    sync.Mutex
	paid  map[string]int64 // by layer
	owned map[string]bool  // nil: not read yet
}

func newAccount(ctx context.Context) *account {
	c, ok := ctx.Value(chargeKey{}).(Charge)
	if !ok || c.Take == nil {
		return nil
	}
	return &account{charge: c, paid: map[string]int64{}}
}

// refusal is the error of an owner without remaining space.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func isRefusal(err error) bool {
	_, ok := errors.AsType[refusal](err)
	return ok
}

// pay counts a complete layer once.
func (a *account) pay(id string, bytes int64) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	_, done := a.paid[id]
	if !done {
		a.paid[id] = bytes
	}
	a.mu.Unlock()
	if done {
		return nil
	}
	return a.take(id, bytes)
}

// take reserves space for a layer, unless the layer counts for the owner already.
func (a *account) take(id string, bytes int64) error {
	if a.has(id) {
		return nil
	}
	err := a.charge.Take(bytes)
	if err == nil {
		return nil
	}
	if known := a.readOwned(); known != nil || !a.has(id) {
		return errors.Join(refusal{err}, known)
	}
	return nil
}

func (a *account) has(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owned[id]
}

func (a *account) readOwned() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owned != nil || a.charge.Owned == nil {
		return nil
	}
	owned, err := a.charge.Owned()
	a.owned = owned
	return err
}

// bill counts a layer while it is unpacked.
type bill struct {
	account *account
	id      string
	sum     int64
}

// open starts to count a layer, which may be discarded.
func (a *account) open(id string) *bill {
	if a == nil {
		return &bill{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, done := a.paid[id]; done {
		return &bill{} // the image has the layer more than once
	}
	a.paid[id] = 0
	return &bill{account: a, id: id}
}

func (b *bill) take(bytes int64) error {
	if b.account == nil {
		return nil
	}
	if err := b.account.take(b.id, bytes); err != nil {
		return err
	}
	b.sum += bytes
	return nil
}

// close ends the count; a discarded layer does not count.
func (b *bill) close(kept bool) error {
	if b.account == nil || kept {
		return nil
	}
	b.account.mu.Lock()
	delete(b.account.paid, b.id)
	b.account.mu.Unlock()
	if b.account.has(b.id) {
		return nil
	}
	return b.account.charge.Take(-b.sum)
}

// payFor counts the layers of a stored image.
func (a *account) payFor(s *Store, img Image) error {
	if a == nil {
		return nil
	}
	for _, dir := range img.Layers {
		id := layerID(dir)
		u, err := s.readLayerInfo(id)
		if err == nil {
			err = a.pay(id, u.footprint())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// layerID returns the ID of the layer with a root folder.
func layerID(dir string) string { return filepath.Base(filepath.Dir(dir)) }

// IDs returns the IDs of layers, given by the root folders in Image.Layers.
func IDs(dirs []string) map[string]bool {
	ids := map[string]bool{}
	for _, dir := range dirs {
		ids[layerID(dir)] = true
	}
	return ids
}

// Footprint returns the total size of layers, given by the root folders in Image.Layers. It counts duplicates once, and
// missing layers as 0.
func (s *Store) Footprint(dirs []string) (bytes int64) {
	for id := range IDs(dirs) {
		if u, err := s.readLayerInfo(id); err == nil {
			bytes += u.footprint()
		}
	}
	return bytes
}
