package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Table is the in-memory state of a provider that keeps its own records: sandboxes,
// names in use, calls in progress and watchers. It serializes the calls on a sandbox. T
// is the provider's own data for each sandbox.
type Table[T any] struct {
	life context.Context // ends with Close
	end  context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // grows only while not closed
	rows   map[string]*Row[T]
	names  map[key]string // to the ID
	feed   Feed
}

// NewTable returns an empty table.
func NewTable[T any]() *Table[T] {
	t := &Table[T]{rows: map[string]*Row[T]{}, names: map[key]string{}}
	t.life, t.end = context.WithCancelCause(context.Background())
	return t
}

// Begin starts a call. The returned context ends with ctx or with the cause of Close, which waits until
// done is called.
func (t *Table[T]) Begin(ctx context.Context) (_ context.Context, done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	t.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.life, func() { cancel(context.Cause(t.life)) })
	return ctx, func() { stop(); cancel(nil); t.work.Done() }, nil
}

// Go runs f in the background until Close, which waits for it. It does nothing on a closed table.
func (t *Table[T]) Go(f func(ctx context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.work.Go(func() { f(t.life) })
	}
}

// Close ends watchers, calls and background work with cause, and waits for them. Later calls return
// ErrClosed.
func (t *Table[T]) Close(cause error) {
	t.mu.Lock()
	t.closed = true
	t.feed.Close()
	t.mu.Unlock()
	t.end(cause)
	t.work.Wait()
}

type key struct{ owner, name string }

// Row is one sandbox of a Table. Acquire it before a change.
type Row[T any] struct {
	// Data is the provider's own; acquire the row before use.
	Data T

	table     *Table[T]
	turn      chan struct{} // full while acquired
	interrupt context.CancelCauseFunc
	sb        Sandbox
}

// ErrDeleted is the result of a create whose sandbox was deleted before it was ready.
var ErrDeleted = errors.New("sandbox was deleted meanwhile")

// Add adds a new sandbox and returns its acquired row. The returned context ends with ctx, with Release, or
// with ErrDeleted when a caller deletes the sandbox.
func (t *Table[T]) Add(ctx context.Context, sb Sandbox) (context.Context, *Row[T], error) {
	ctx, cancel := context.WithCancelCause(ctx)
	r, err := t.add(sb, cancel)
	if err != nil {
		cancel(err)
		return nil, nil, err
	}
	return ctx, r, nil
}

// Adopt adds an existing sandbox, without an event.
func (t *Table[T]) Adopt(sb Sandbox, data T) (*Row[T], error) {
	r, err := t.add(sb, nil)
	if err != nil {
		return nil, err
	}
	r.Data = data
	r.Release()
	return r, nil
}

func (t *Table[T]) add(sb Sandbox, interrupt context.CancelCauseFunc) (*Row[T], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	k := key{sb.Spec.Owner, sb.Spec.Name}
	if _, ok := t.names[k]; ok {
		return nil, fmt.Errorf("%w: %q; choose another or delete that sandbox", ErrConflict, sb.Spec.Name)
	}
	r := &Row[T]{table: t, turn: make(chan struct{}, 1), interrupt: interrupt, sb: sb.Clone()}
	r.turn <- struct{}{}
	t.rows[sb.ID], t.names[k] = r, sb.ID
	if interrupt != nil {
		t.publish(Created, r.sb, "")
	}
	return r, nil
}

// publish sends an event; t.mu is held, so that events stay in order.
func (t *Table[T]) publish(kind EventKind, sb Sandbox, message string) {
	t.feed.Publish(Event{Kind: kind, Time: time.Now(), Sandbox: sb, Message: message})
}

func (t *Table[T]) row(id string) (*Row[T], error) {
	if t.closed {
		return nil, ErrClosed
	}
	if r, ok := t.rows[id]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("%w: %.60q", ErrNotFound, id)
}

// Get returns a copy of the sandbox.
func (t *Table[T]) Get(id string) (Sandbox, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.row(id)
	if err != nil {
		return Sandbox{}, err
	}
	return r.sb.Clone(), nil
}

// List returns copies of the sandboxes that f selects, oldest first.
func (t *Table[T]) List(f Filter) ([]Sandbox, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	return t.list(f), nil
}

// selected returns the rows that f selects, unsorted.
func (t *Table[T]) selected(f Filter) []*Row[T] {
	if f.Owner != "" && f.Name != "" { // at most one, found by its key
		if r, ok := t.rows[t.names[key{f.Owner, f.Name}]]; ok && f.Match(r.sb) {
			return []*Row[T]{r}
		}
		return nil
	}
	rows := make([]*Row[T], 0, len(t.rows))
	for _, r := range t.rows {
		if f.Match(r.sb) {
			rows = append(rows, r)
		}
	}
	return rows
}

func (t *Table[T]) list(f Filter) []Sandbox {
	rows := t.selected(f)
	// Sort before copying: a Sandbox is large, and a hub can have thousands.
	slices.SortFunc(rows, func(a, b *Row[T]) int {
		return cmp.Or(a.sb.Created.Compare(b.sb.Created), cmp.Compare(a.sb.ID, b.sb.ID))
	})
	out := make([]Sandbox, len(rows))
	for i, r := range rows {
		out[i] = r.sb.Clone()
	}
	return out
}

// Watch implements Provider.Watch.
func (t *Table[T]) Watch(ctx context.Context) (<-chan Event, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var existing []Event
	for _, sb := range t.list(Filter{}) {
		existing = append(existing, Event{Kind: Existing, Time: time.Now(), Sandbox: sb})
	}
	return t.feed.Watch(ctx, existing)
}

// Acquire waits for its turn on a sandbox. The caller must Release the row.
func (t *Table[T]) Acquire(ctx context.Context, id string) (*Row[T], error) {
	t.mu.Lock()
	r, err := t.row(id)
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case r.turn <- struct{}{}:
	}
	t.mu.Lock()
	_, err = t.row(id)
	t.mu.Unlock()
	if err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// AcquireIdle acquires the row of a sandbox. It returns ErrState immediately if the sandbox is being created
// or deleted.
func (t *Table[T]) AcquireIdle(ctx context.Context, id string) (*Row[T], error) {
	sb, err := t.Get(id)
	if err != nil {
		return nil, err
	}
	if err := sb.settled(); err != nil {
		return nil, err
	}
	r, err := t.Acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := r.Sandbox().settled(); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// TryAcquire is AcquireIdle without waiting.
func (t *Table[T]) TryAcquire(id string) (*Row[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.row(id)
	if err != nil || r.sb.settled() != nil {
		return nil, false
	}
	select {
	case r.turn <- struct{}{}:
		return r, true
	default:
		return nil, false
	}
}

// IDs lists the sandboxes in a state.
func (t *Table[T]) IDs(state State) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []string
	for id, r := range t.rows {
		if r.sb.State == state {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s Sandbox) settled() error {
	if s.State == Creating || s.State == Deleting {
		return fmt.Errorf("%w: sandbox %q is %s", ErrState, s.Spec.Name, s.State)
	}
	return nil
}

// AcquireForDelete acquires the row of a sandbox to delete. It cancels a create in progress. It returns nil,
// nil if the create or another delete has removed the sandbox.
func (t *Table[T]) AcquireForDelete(ctx context.Context, id string) (*Row[T], error) {
	t.mu.Lock()
	r, err := t.row(id)
	if err == nil && r.sb.State == Creating && r.interrupt != nil {
		r.interrupt(ErrDeleted)
	}
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	row, err := t.Acquire(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return row, err
}

// Release releases the row for the next caller, and ends the context of Add.
func (r *Row[T]) Release() {
	r.table.mu.Lock()
	if r.interrupt != nil {
		r.interrupt(nil)
		r.interrupt = nil
	}
	r.table.mu.Unlock()
	<-r.turn
}

// Sandbox returns a copy of the sandbox.
func (r *Row[T]) Sandbox() Sandbox {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	return r.sb.Clone()
}

// Change edits the sandbox and notifies the watchers. A new state sets Changed.
func (r *Row[T]) Change(edit func(*Sandbox)) Sandbox {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	before := r.sb.State
	edit(&r.sb)
	if r.sb.State != before {
		r.sb.Changed = time.Now()
	}
	r.table.publish(Changed, r.sb, r.sb.Message)
	return r.sb.Clone()
}

// Publish sends an event without a change.
func (r *Row[T]) Publish(kind EventKind, message string) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.table.publish(kind, r.sb, message)
}

// Update implements Provider.Update. keep, if not nil, stores the change before it takes effect; if it
// fails, the sandbox does not change.
func (r *Row[T]) Update(change func(*Spec) error, keep func(Sandbox) error) (Sandbox, error) {
	next := r.Sandbox()
	before := next.Spec.Clone()
	if err := change(&next.Spec); err != nil {
		return Sandbox{}, err
	}
	if err := before.CheckUpdate(next.Spec); err != nil {
		return Sandbox{}, err
	}
	next.Spec = next.Spec.Clone()
	t, was, will := r.table, key{before.Owner, before.Name}, key{next.Spec.Owner, next.Spec.Name}
	t.mu.Lock()
	if id, ok := t.names[will]; ok && id != r.sb.ID {
		t.mu.Unlock()
		return Sandbox{}, fmt.Errorf("%w: %q", ErrConflict, will.name)
	}
	t.names[will] = r.sb.ID
	t.mu.Unlock()

	free := was
	var err error
	if keep != nil {
		if err = keep(next.Clone()); err != nil {
			free = will
		}
	}
	if err == nil {
		next = r.Change(func(sb *Sandbox) { sb.Spec = next.Spec })
	}
	if was != will {
		t.mu.Lock()
		delete(t.names, free)
		t.mu.Unlock()
	}
	return next, err
}

// Remove removes the sandbox from the table and frees its name.
func (r *Row[T]) Remove() {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.rows[r.sb.ID]; !ok {
		return
	}
	delete(t.rows, r.sb.ID)
	delete(t.names, key{r.sb.Spec.Owner, r.sb.Spec.Name})
	r.sb.State = Deleting
	t.publish(Deleted, r.sb, "")
}

// Each calls f with the provider's own data of every sandbox. Call it only after Close, when no other
// goroutine uses the data.
func (t *Table[T]) Each(f func(T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rows {
		f(r.Data)
	}
}
