package quota

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// flood queues n creates of a tenant in order and records which are served. Each takes a second.
func flood(ctx context.Context, t *testing.T, k *Keeper, wg *sync.WaitGroup, tenant string, n int, served func(string)) {
	t.Helper()
	for range n {
		wg.Go(func() {
			done, err := k.Turn(ctx, tenant)
			if err != nil {
				t.Errorf("%s: %v", tenant, err)
				return
			}
			served(tenant)
			<-time.After(time.Second)
			done()
		})
	}
	synctest.Wait()
}

// Many creates of one tenant delay a single create of another by at most one round.
func TestFloodDoesNotStarve(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			k := New(Config{Creates: slots, Queue: 1000})
			began := time.Now()
			var mu sync.Mutex
			count := 0
			var others []time.Duration // when each of them was served
			served := func(tenant string) {
				mu.Lock()
				defer mu.Unlock()
				count++
				if tenant == "other" {
					others = append(others, time.Since(began))
				}
			}
			var wg sync.WaitGroup
			flood(t.Context(), t, k, &wg, "flood", 1000, served)
			flood(t.Context(), t, k, &wg, "other", 10, served)
			if u := k.Usage("flood"); u.Creating != slots || u.Waiting != 1000-slots {
				t.Errorf("got %+v, want creating %d and waiting %d", u, slots, 1000-slots)
			}
			// A slot is free once a second. At most one round is served first:
			// the creates in progress, then one of the flood and one of the other tenants.
			after := func(n int) time.Duration { return time.Duration(n/slots) * time.Second }
			done, err := k.Turn(t.Context(), "single")
			must(t, err)
			if took := time.Since(began); took > after(slots+2) {
				t.Errorf("the single create waited %v", took)
			}
			done()
			wg.Wait()
			// As long as both wait, they are served in turns.
			if count != 1010 || len(others) != 10 || others[0] > after(slots+1) || others[9] > after(slots+2*10+1) {
				t.Errorf("%d served, others at %v", count, others)
			}
			empty(t, k)
		})
	}
}

func TestTurnsAreInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := New(Config{Creates: 1, Queue: 100})
		var order []int
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				done, err := k.Turn(t.Context(), "a")
				if check(t, err) {
					order = append(order, i) // one at a time
					done()
					done()
				}
			})
			if i == 0 {
				synctest.Wait()
				done, err := k.Turn(t.Context(), "b")
				must(t, err)
				defer func() {
					done()
					wg.Wait()
					if !slices.IsSorted(order) || len(order) != 100 {
						t.Errorf("got %v, want 100 in order", order)
					}
					empty(t, k)
				}()
			}
			synctest.Wait()
		}
	})
}

func TestTurnQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := New(Config{Creates: 1, Queue: 2})
		done, err := k.Turn(t.Context(), "a")
		must(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := k.Turn(ctx, "a"); !errors.Is(err, gone) {
					t.Errorf("got %v, want %v", err, gone)
				}
			})
		}
		synctest.Wait()
		_, err = k.Turn(t.Context(), "a")
		if e := exceeded(t, err, Waiting); e.RetryAfter <= 0 || e.Used != 2 {
			t.Errorf("got %+v, want a positive retry delay and used 2", e)
		}
		wg.Go(func() { // each tenant has its own queue
			other, err := k.Turn(t.Context(), "b")
			if check(t, err) {
				other()
			}
		})
		synctest.Wait()
		if got := k.Tenants(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%v", got)
		}
		cancel(gone)
		synctest.Wait()
		if u := k.Usage("a"); u.Waiting != 0 || u.Creating != 1 {
			t.Errorf("got %+v, want waiting 0 and creating 1", u)
		}
		if _, err := k.Turn(ctx, "a"); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
		done()
		wg.Wait()
		empty(t, k)
	})
}

// Cancellation at any time loses no slot and never exceeds the number of concurrent creates.
func TestTurnsUnderCancels(t *testing.T) {
	t.Parallel()
	k := New(Config{Creates: 3, Queue: 1000})
	var mu sync.Mutex
	running, served := 0, 0
	var wg sync.WaitGroup
	for i := range 300 {
		rng := rand.New(rand.NewPCG(2, uint64(i)))
		wg.Go(func() {
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				done, err := k.Turn(ctx, fmt.Sprint(i%3))
				if err == nil {
					mu.Lock()
					running++
					served++
					if running > 3 {
						t.Errorf("%d in progress", running)
					}
					mu.Unlock()
					mu.Lock()
					running--
					mu.Unlock()
					done()
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want context.DeadlineExceeded", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if served == 0 {
		t.Error("no create was served")
	}
	empty(t, k)
}
