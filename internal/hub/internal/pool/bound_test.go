package pool_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// counting is a provider that counts creates.
type counting struct {
	sandbox.Provider
	now, most, all atomic.Int64
	fail           error

	mu   sync.Mutex
	list []sandbox.Sandbox
}

func (c *counting) List(context.Context, sandbox.Filter) ([]sandbox.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list), nil
}

func (c *counting) Create(_ context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	c.all.Add(1)
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	time.Sleep(time.Second) // simulated time
	if c.fail != nil {
		return sandbox.Sandbox{}, c.fail
	}
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Running, Created: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, sb)
	return sb, nil
}

// TestBackoff: failing creates are retried with increasing delays.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{fail: errors.New("no room")}
		p := pool.New(pool.Config{Provider: c, Size: func() map[string]pool.Want { return map[string]pool.Want{"e": {Size: 1}} }})
		p.Begin(t.Context())
		time.Sleep(time.Hour)
		p.Close()
		p.Close()
		if n := c.all.Load(); n < 10 || n > 25 {
			t.Errorf("%d tries in an hour", n)
		}
	})
}

// TestBounds: the pool limits concurrent creates and the total number, and pauses while callers create.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, busy := &counting{}, true
		p := pool.New(pool.Config{Provider: c, Parallel: 3, Max: 7, Busy: func() bool { return busy },
			Every: 24 * time.Hour, Size: func() map[string]pool.Want {
				return map[string]pool.Want{"e": {Size: 5}, "f": {Size: 5}}
			}})
		p.Begin(t.Context())
		time.Sleep(time.Minute)
		if n := c.all.Load(); n != 0 {
			t.Errorf("%d were created while a caller created", n)
		}
		busy = false
		p.Notify()
		time.Sleep(time.Minute)
		if most, all := c.most.Load(), c.all.Load(); most != 3 || all != 7 {
			t.Errorf("%d at once, %d together", most, all)
		}
		p.Close()
	})
}
