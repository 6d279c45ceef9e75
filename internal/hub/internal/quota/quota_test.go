package quota

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func fixed(l Limits) func(string) Limits { return func(string) Limits { return l } }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check is must for goroutines other than the test's, which must not call Fatal.
func check(t testing.TB, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// exceeded fails unless err reports that the limit of what was exceeded.
func exceeded(t testing.TB, err error, what What) *Exceeded {
	t.Helper()
	var e *Exceeded
	if !errors.As(err, &e) || e.What != what {
		t.Errorf("got %v, want %s exceeded", err, what)
		return &Exceeded{}
	}
	return e
}

func empty(t testing.TB, k *Keeper) {
	t.Helper()
	if left := k.Tenants(); len(left) > 0 {
		t.Errorf("left: %v, first %+v", left, k.Usage(left[0]))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, a := range k.tenants {
		if a.used != (Amount{}) {
			t.Errorf("%s still uses %+v", name, a.used)
		}
	}
	n := len(k.items) + len(k.open.graves) + len(k.open.dug) + k.open.order.Len()
	if n += len(k.queue.rows) + len(k.queue.turns) + k.queue.running; n != 0 {
		t.Errorf("%d records left", n)
	}
}

var one = Amount{Sandboxes: 1, CPU: 1000, Memory: 1 << 30, Disk: 10 << 30}

// Two hundred concurrent creates of three tenants: no tenant exceeds a limit, as counted by a separate
// observer, and all quota is released at the end.
func TestReservesAreExact(t *testing.T) {
	t.Parallel()
	limits := map[string]Limits{
		"a": {Sandboxes: 7}, "b": {Memory: 5 << 30}, "c": {CPU: 9000, Disk: 60 << 30},
	}
	most := map[string]int64{"a": 7, "b": 5, "c": 6}
	k := New(Config{Limits: func(tenant string) Limits { return limits[tenant] }})
	live := map[string]int64{}
	var mu sync.Mutex
	count := func(tenant string, n int64) {
		mu.Lock()
		defer mu.Unlock()
		if live[tenant] += n; live[tenant] > most[tenant] {
			t.Errorf("%s holds %d of %d", tenant, live[tenant], most[tenant])
		}
	}
	var wg sync.WaitGroup
	start := make(chan struct{})
	taken := map[string]int{}
	for i := range 200 {
		tenant := string(rune('a' + i%3))
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			<-start
			for round := range 50 {
				h, err := k.Reserve(tenant, one)
				if err != nil {
					if e := exceeded(t, err, map[string]What{"a": Sandboxes, "b": Memory, "c": Disk}[tenant]); e.RetryAfter <= 0 {
						t.Errorf("no retry delay: got %v, want a positive retry delay", e)
					}
					continue
				}
				count(tenant, 1)
				mu.Lock()
				taken[tenant]++
				mu.Unlock()
				id := fmt.Sprint(i, "-", round)
				// The observer counts a release before the keeper does, so it never counts too much.
				switch rng.IntN(5) {
				case 0: // failed
					count(tenant, -1)
					h.Release()
					h.Release()
					h.Commit(id)
				case 1: // succeeded
					h.Commit(id)
					h.Release()
					count(tenant, -1)
					k.Free(id)
					k.Free(id)
				case 2: // deleted before the reply
					count(tenant, -1)
					k.Free(id)
					h.Commit(id)
				case 3: // seen by the watcher before the reply
					check(t, k.Adopt(tenant, id, Amount{Sandboxes: 0}))
					count(tenant, -1)
					h.Commit(id) // the adopted amount counts, which is zero
					k.Free(id)
				case 4: // measured again before the reply
					h.Commit(id)
					count(tenant, -1)
					check(t, k.Adopt(tenant, id, Amount{Disk: 1}))
					k.Free(id)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for tenant := range limits {
		if taken[tenant] == 0 || live[tenant] != 0 {
			t.Errorf("%s: %d taken, %d live", tenant, taken[tenant], live[tenant])
		}
	}
	empty(t, k)
}

// A limit can be used up completely.
func TestLimitIsUsedUp(t *testing.T) {
	t.Parallel()
	k := New(Config{Limits: fixed(Limits{Sandboxes: 20})})
	got := make(chan *Hold, 200)
	var wg sync.WaitGroup
	for range cap(got) {
		wg.Go(func() {
			if h, err := k.Reserve("a", one); err == nil {
				got <- h
			}
		})
	}
	wg.Wait()
	close(got)
	if len(got) != 20 {
		t.Errorf("%d of 20", len(got))
	}
	for h := range got {
		h.Release()
	}
	empty(t, k)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limits Limits
		used   Amount
		ask    Amount
		what   What // empty: fits
		text   string
	}{
		"no limits":         {Limits{}, one, one, "", ""},
		"just fits":         {Limits{Sandboxes: 2, CPU: 2000, Memory: 2 << 30, Disk: 20 << 30}, one, one, "", ""},
		"sandboxes":         {Limits{Sandboxes: 1}, one, one, Sandboxes, "1 of 1 in use and 1 more"},
		"cpu":               {Limits{CPU: 1999}, one, one, CPU, "1000m of 1999m"},
		"memory":            {Limits{Memory: 1536 << 20}, one, one, Memory, "1Gi of 1536Mi in use and 1Gi more"},
		"disk":              {Limits{Disk: 1}, Amount{}, one, Disk, "0 of 1 in use and 10Gi more"},
		"nothing":           {Limits{Sandboxes: -1}, Amount{}, one, Sandboxes, "0 of 0"},
		"lowered":           {Limits{Memory: 1}, one, Amount{Sandboxes: 1}, "", ""},
		"above the lowered": {Limits{Memory: 1}, one, Amount{Memory: 1}, Memory, ""},
		"would overflow":    {Limits{}, Amount{CPU: math.MaxInt64}, Amount{CPU: 1}, CPU, ""},
		"a huge request":    {Limits{Memory: 1 << 40}, one, Amount{Memory: math.MaxInt64}, Memory, ""},
	} {
		k := New(Config{Limits: fixed(tt.limits)})
		must(t, k.Adopt("a", "x", tt.used))
		h, err := k.Reserve("a", tt.ask)
		if tt.what == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			h.Release()
		} else if e := exceeded(t, err, tt.what); !strings.Contains(e.Error(), tt.text) ||
			!strings.Contains(e.Error(), string(tt.what)+" exceeded") || e.Tenant != "a" {
			t.Errorf(`%s: got %v, want an error that contains %q, %q and tenant "a"`, name, e, tt.text, string(tt.what)+" exceeded")
		}
		if u := k.Usage("a"); u.Amount != tt.used || u.Held != 0 {
			t.Errorf("%s: got %+v, want amount %+v and held 0", name, u, tt.used)
		}
	}
	k := New(Config{})
	if _, err := k.Reserve("a", Amount{CPU: -1}); err == nil {
		t.Error("a negative amount was accepted")
	}
	if k.Adopt("a", "x", Amount{Disk: -1}) == nil {
		t.Error("a negative amount was accepted")
	}
}

func TestAdoptAndFree(t *testing.T) {
	t.Parallel()
	k := New(Config{Limits: fixed(Limits{Sandboxes: 1, Memory: 2 << 30})})
	must(t, k.Adopt("a", "x", one))
	must(t, k.Adopt("a", "y", one)) // above the limit, because it already runs
	must(t, k.Adopt("a", "y", one))
	if u := k.Usage("a"); u.Amount != one.plus(one) {
		t.Errorf("got %+v, want amount %+v", u, one.plus(one))
	}
	must(t, k.Adopt("b", "y", one)) // now owned by another tenant
	if u := k.Usage("a"); u.Sandboxes != 1 {
		t.Errorf("got %+v, want sandboxes 1", u)
	}
	if got := k.Tenants(); len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("%v", got)
	}
	k.Free("x")
	k.Free("y")
	k.Free("z")
	empty(t, k)
}

// The watcher may see a sandbox, and its deletion, before its creator does.
func TestCommitAfterTheEvent(t *testing.T) {
	t.Parallel()
	k := New(Config{})
	other, err := k.Reserve("b", one)
	must(t, err)
	h, err := k.Reserve("a", one)
	must(t, err)
	must(t, k.Adopt("a", "x", one))
	h.Commit("x")
	if u := k.Usage("a"); u.Amount != one {
		t.Errorf("counted twice: got %+v, want amount %+v", u, one)
	}
	h, err = k.Reserve("a", one)
	must(t, err)
	must(t, k.Adopt("a", "y", one))
	k.Free("y")
	k.Free("x")
	other.Release() // older than the watcher's state
	h.Commit("y")
	if u := k.Usage("a"); u.Amount != (Amount{}) {
		t.Errorf("counted forever: got %+v, want amount %+v", u, Amount{})
	}
	empty(t, k)
}

func TestCreateRate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	limits := Limits{CreateRate: 6, Burst: 3}
	k := New(Config{Limits: func(string) Limits { return limits }, Now: func() time.Time { return now }})
	create := func(n int) error {
		h, err := k.Reserve("a", Amount{Sandboxes: n})
		if err == nil {
			h.Release()
		}
		return err
	}
	for range 3 {
		must(t, create(1))
	}
	e := exceeded(t, create(1), Rate)
	if e.RetryAfter != 10*time.Second || !strings.Contains(e.Error(), "the limit is 6 sandboxes per minute; retry in 10s") {
		t.Errorf("%v after %v", e, e.RetryAfter)
	}
	must(t, create(0)) // only creates are rate limited
	now = now.Add(e.RetryAfter)
	must(t, create(1))
	now = now.Add(4 * time.Second)
	if e := exceeded(t, create(1), Rate); e.RetryAfter != 6*time.Second {
		t.Errorf("got %v, want retry delay %v", e.RetryAfter, 6*time.Second)
	}
	now = now.Add(time.Hour)
	must(t, create(9)) // more than the burst at once: the debt is paid later
	if e := exceeded(t, create(1), Rate); e.RetryAfter != 70*time.Second {
		t.Errorf("got %v, want retry delay %v", e.RetryAfter, 70*time.Second)
	}
	now = now.Add(-time.Hour) // a clock set back
	exceeded(t, create(1), Rate)
	limits = Limits{CreateRate: -1}
	exceeded(t, create(1), Rate)
	limits = Limits{CreateRate: math.NaN()}
	exceeded(t, create(1), Rate)
	limits = Limits{}
	must(t, create(1))
	limits = Limits{CreateRate: 1e-9}
	must(t, create(1))
	if e := exceeded(t, create(1), Rate); e.RetryAfter != 24*time.Hour {
		t.Errorf("got %v, want retry delay %v", e.RetryAfter, 24*time.Hour)
	}
	// A rejected create does not use the rate limit.
	limits = Limits{CreateRate: 1, Sandboxes: 1}
	for range 3 {
		_, err := k.Reserve("b", Amount{Sandboxes: 2})
		exceeded(t, err, Sandboxes)
	}
	h, err := k.Reserve("b", Amount{Sandboxes: 1})
	must(t, err)
	h.Release()
	empty(t, k)
}

func TestCalls(t *testing.T) {
	t.Parallel()
	k := New(Config{Limits: fixed(Limits{Calls: 2})})
	done, err := k.Call("a")
	must(t, err)
	last, err := k.Call("a")
	must(t, err)
	_, err = k.Call("a")
	if e := exceeded(t, err, Calls); e.RetryAfter <= 0 || !strings.Contains(e.Error(), "2 of 2 in use") {
		t.Errorf(`got %v, want a positive retry delay and an error that contains "2 of 2 in use"`, e)
	}
	other, err := k.Call("b")
	must(t, err)
	other()
	done()
	done()
	if n := k.Usage("a").Calls; n != 1 {
		t.Errorf("%d calls", n)
	}
	last()
	empty(t, k)
	k = New(Config{Limits: fixed(Limits{Calls: -1})})
	_, err = k.Call("a")
	exceeded(t, err, Calls)
}

// Tenants without sandboxes use no memory, no matter how many there were. Only those
// whose create rate has not recovered are kept until it has.
func TestTenantsAreForgotten(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	k := New(Config{Limits: fixed(Limits{CreateRate: 60}), Now: func() time.Time { return now }})
	most := 0
	for i := range 10000 {
		tenant := fmt.Sprint(i)
		h, err := k.Reserve(tenant, one)
		must(t, err)
		h.Commit(tenant)
		k.Free(tenant)
		_, err = k.Reserve(tenant, one)
		exceeded(t, err, Rate)
		now = now.Add(10 * time.Millisecond) // a hundred are within their second
		most = max(most, len(k.tenants))
	}
	if most > 500 {
		t.Errorf("%d tenants were kept", most)
	}
	empty(t, k)
}

// A tenth of a tenant's calls, at least one, is reserved for the tenant and not available to guests.
func TestGuestsLeaveCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ limit, want int }{{40, 36}, {2, 1}, {1, 0}, {-1, 0}, {0, maxGuests}} {
		k := New(Config{Limits: func(string) Limits { return Limits{Calls: c.limit} }})
		var leave []func()
		for {
			done, err := k.Guest("ann")
			if err != nil {
				break
			}
			leave = append(leave, done)
		}
		if len(leave) != c.want {
			t.Errorf("limit %d: got %d guests, want %d", c.limit, len(leave), c.want)
		}
		if _, err := k.Call("ann"); (err == nil) != (c.limit >= 0) {
			t.Errorf("limit %d: got error %v for the tenant itself, want %v", c.limit, err, c.limit < 0)
		}
		for _, done := range leave {
			done()
			done() // idempotent
		}
		if _, err := k.Guest("ann"); (err == nil) != (c.want > 0) {
			t.Errorf("limit %d: got error %v after all guests have left", c.limit, err)
		}
	}
}
