package hub

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func asUser(name string) []string { return []string{"X-Test-Subject", name} }

// limited is a hub whose tenants have limits.
func limited(limits map[string]quota.Limits) func() *quota.Keeper {
	return func() *quota.Keeper {
		return quota.New(quota.Config{Creates: 8, Queue: 1000, Limits: func(who string) quota.Limits { return limits[who] }})
	}
}

// TestQuotasAreExact: with 200 concurrent creates by three tenants, each tenant gets exactly
// its quota.
func TestQuotasAreExact(t *testing.T) {
	t.Parallel()
	most := map[string]int{"anna": 7, "bert": 20, "cleo": 31}
	keeper := limited(map[string]quota.Limits{"anna": {Sandboxes: 7}, "bert": {Memory: 20 << 30}, "cleo": {Sandboxes: 100, CPU: 31000}})
	r := newRig(t, setup{stores: stores{quota: keeper()}})
	who := []string{"anna", "bert", "cleo"}
	var mu sync.Mutex
	made := map[string]int{}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			name := who[i%3]
			a := r.do("POST", "/api/v1/sandbox", fmt.Sprintf(`{"name":"s-%d"}`, i), asUser(name)...)
			mu.Lock()
			defer mu.Unlock()
			switch seconds, err := strconv.Atoi(a.Header.Get("Retry-After")); {
			case a.Status == http.StatusOK:
				made[name]++
			case a.Status != http.StatusTooManyRequests || err != nil || seconds < 1 || !strings.Contains(a.Error, "exceeded"):
				t.Errorf("%d %v %s", a.Status, a.Header, a.Body)
			}
		})
	}
	all.Wait()
	for name, n := range most {
		if u := r.hub.stores.quota.Usage(name); made[name] != n || u.Sandboxes != n || u.Held != 0 || u.Creating != 0 || u.Waiting != 0 {
			t.Errorf("%s: %d made, want %d; %+v", name, made[name], n, u)
		}
	}
	// A deletion frees one slot.
	list, err := r.provider.List(t.Context(), sandbox.Filter{Owner: "anna"})
	if err != nil || len(list) != 7 {
		t.Fatalf("got %v %v, want 7 entries", len(list), err)
	}
	if a := r.do("DELETE", "/api/v1/sandbox/"+list[0].Spec.Name, "", asUser("anna")...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	for _, want := range []int{200, 429} {
		if a := r.do("POST", "/api/v1/sandbox", `{}`, asUser("anna")...); a.Status != want {
			t.Errorf("got %d %s, want status %d", a.Status, a.Body, want)
		}
	}
	// After a hub is killed, the next hub counts slots exactly.
	r.server.CloseClientConnections()
	r.server.Close()
	r.provider.Abandon()
	r.hub.Close()
	r.open(setup{stores: stores{quota: keeper()}})
	if a := r.do("POST", "/api/v1/sandbox", `{}`, asUser("bert")...); a.Status != 429 {
		t.Errorf("got %d %s, want 429", a.Status, a.Body)
	}
	for name, n := range most {
		if u := r.hub.stores.quota.Usage(name); u.Sandboxes != n || u.Held != 0 {
			t.Errorf("%s: %+v, want %d", name, u, n)
		}
	}
}

// TestNoSlotLeaks: creates that fail or are canceled, and sandboxes that disappear, release
// their quota.
func TestNoSlotLeaks(t *testing.T) {
	t.Parallel()
	keeper := limited(map[string]quota.Limits{"anna": {Sandboxes: 3}})
	fail := make(chan struct{})
	r := newRig(t, setup{stores: stores{quota: keeper()}, more: func(g *guestServer) {
		if strings.HasPrefix(g.sb.Spec.Name, "never") {
			g.ready = func() bool {
				select {
				case <-fail:
					return true
				default:
					return false
				}
			}
		}
	}})
	defer close(fail)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", r.server.URL+"/api/v1/sandbox",
				strings.NewReader(fmt.Sprintf(`{"name":"never-%d"}`, i)))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-Test-Subject", "anna")
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
				if res.StatusCode != http.StatusTooManyRequests {
					t.Errorf("got %v, want status 429", res.StatusCode)
				}
			}
		})
	}
	testenv.Poll(t, "three are being made", func() bool { return r.hub.stores.quota.Usage("anna").Held == 3 })
	cancel()
	all.Wait()
	testenv.Poll(t, "all room is back", func() bool {
		u := r.hub.stores.quota.Usage("anna")
		return u.Sandboxes == 0 && u.Held == 0 && u.Creating == 0 && u.Waiting == 0
	})
	r.create(`{"name":"a"}`, asUser("anna")...)
	for range 5 { // conflicts and invalid requests
		if a := r.do("POST", "/api/v1/sandbox", `{"name":"a"}`, asUser("anna")...); a.Status != 409 {
			t.Errorf("got %d %s, want 409", a.Status, a.Body)
		}
		if a := r.do("POST", "/api/v1/sandbox", `{"environment":"none"}`, asUser("anna")...); a.Status != 400 {
			t.Errorf("got %d %s, want 400", a.Status, a.Body)
		}
	}
	// Forks count against the quota. Either all are created or none.
	if a := r.do("POST", "/api/v1/sandbox/a/fork", `{"count":3}`, asUser("anna")...); a.Status != 429 {
		t.Errorf("got %d %s, want 429", a.Status, a.Body)
	}
	if a := r.do("POST", "/api/v1/sandbox/a/fork", `{"names":["b","a"]}`, asUser("anna")...); a.Status != 409 {
		t.Errorf("got %d %s, want 409", a.Status, a.Body)
	}
	if u := r.hub.stores.quota.Usage("anna"); u.Sandboxes != 1 || u.Held != 0 {
		t.Errorf("got %+v, want sandboxes 1 and held 0", u)
	}
	if a := r.do("POST", "/api/v1/sandbox/a/fork", `{"names":["b","c"]}`, asUser("anna")...); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
	// The hub detects sandboxes that are deleted without it.
	list, err := r.provider.List(t.Context(), sandbox.Filter{Owner: "anna"})
	if err != nil || len(list) != 3 {
		t.Fatalf("got %v %v, want 3 entries", len(list), err)
	}
	for _, sb := range list {
		if err := r.provider.Delete(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Poll(t, "all room is back", func() bool { return r.hub.stores.quota.Usage("anna").Sandboxes == 0 })
}

// TestConcurrentCallsAreBounded: operations and requests to sandboxes count, separately
// for each tenant.
func TestConcurrentCallsAreBounded(t *testing.T) {
	t.Parallel()
	keeper := limited(map[string]quota.Limits{"anna": {Calls: 2}})
	block, inside := make(chan struct{}), make(chan struct{}, 10)
	r := newRig(t, setup{stores: stores{quota: keeper()}, more: func(g *guestServer) {
		g.mux.HandleFunc("/block", func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-block })
	}})
	r.create(`{"name":"a"}`, asUser("anna")...)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { r.do("GET", "/sandbox/a/block", "", asUser("anna")...) })
		<-inside
	}
	for _, path := range []string{"/sandbox/a/x", "/api/v1/sandbox/a"} {
		if a := r.do("GET", path, "", asUser("anna")...); a.Status != 429 || a.Header.Get("Retry-After") != "1" ||
			!strings.Contains(a.Body, "concurrent calls exceeded") {
			t.Errorf(`%s: got %d %v %s, want status 429, header Retry-After "1" and body that contains "concurrent calls exceeded"`,
				path, a.Status, a.Header, a.Body)
		}
	}
	if a := r.do("GET", "/api/v1/sandbox", "", asUser("bert")...); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
	close(block)
	all.Wait()
	testenv.Poll(t, "calls are over", func() bool { return r.hub.stores.quota.Usage("anna").Calls == 0 })
	if a := r.do("GET", "/sandbox/a/x", "", asUser("anna")...); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
}
