package access

import (
	"context"
	"sync"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// locks serializes the writers of each file.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	ch    chan struct{} // holds one token while the file is locked
	users int
}

// take waits for the lock of a file. The returned function releases it.
func (l *locks) take(ctx context.Context, path string) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	t := l.held[path]
	if t == nil {
		t = &lock{ch: make(chan struct{}, 1)}
		l.held[path] = t
	}
	t.users++
	l.mu.Unlock()
	forget := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(l.held, path)
		}
	}
	select {
	case t.ch <- struct{}{}:
		return func() { <-t.ch; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}

// WithLocks runs do while it holds the locks of two paths. It always takes them in the
// same order, so that two moves in opposite directions do not deadlock.
func (f *Files) WithLocks(ctx context.Context, a, b string, do func() error) error {
	if b < a {
		a, b = b, a
	}
	first, err := f.locks.take(ctx, a)
	if err != nil {
		return err
	}
	defer first()
	second, err := f.locks.take(ctx, b)
	if err != nil {
		return err
	}
	defer second()
	return do()
}

// Lock waits for the lock of a path, without following a link. The returned function
// releases the lock.
func (f *Files) Lock(ctx context.Context, path string) (release func(), err error) {
	return f.locks.take(ctx, path)
}

// WithLock runs change while no other operation changes the same file. It passes the
// file that the path resolves to.
func (f *Files) WithLock(ctx context.Context, path string, change func(target string) error) error {
	target, err := atomicfile.Follow(path)
	if err != nil {
		return err
	}
	release, err := f.locks.take(ctx, target)
	if err != nil {
		return err
	}
	defer release()
	return change(target)
}
