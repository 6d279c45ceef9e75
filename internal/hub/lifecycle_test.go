package hub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestCompatibleReplies(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	if a := r.do("GET", "/api/v1/sandbox", ""); a.Body != `{"code":"0","data":[]}` {
		t.Errorf(`empty list: got %s, want body {"code":"0","data":[]}`, a.Body)
	}
	if a := r.do("POST", "/api/v1/sandbox", `{"name":"one"}`); a.Body != `{"code":"0","data":"Sandbox one created successfully"}` {
		t.Errorf(`create: got %s, want body {"code":"0","data":"Sandbox one created successfully"}`, a.Body)
	}
	a := r.do("POST", "/api/v1/sandbox", "")
	var said string
	if json.Unmarshal(a.Data, &said) != nil || !strings.HasPrefix(said, "Sandbox sb-") || !strings.HasSuffix(said, " created successfully") {
		t.Fatalf(`create without a name: got %s, want "Sandbox sb-… created successfully"`, a.Body)
	}
	name := strings.Fields(said)[1]
	if o := r.object(r.do("GET", "/api/v1/sandbox/"+name, "")); o.Name != name || o.Status != "running" || o.Environment != "aio" ||
		o.Timeout != 60 || o.IdleTimeout != 10 || o.IdlePolicy != "delete" || o.CPU != "100m" ||
		o.Memory != "128Mi" || o.CPULimit != "1000m" || o.MemoryLimit != "1024Mi" {
		t.Errorf("%+v", o)
	}
	if a := r.do("POST", "/api/v1/sandbox", `{"name":"one"}`); a.Status != 409 || a.Code != "409" || a.Error == "" || a.Data != nil {
		t.Errorf("twice: got %d %s, want 409", a.Status, a.Body)
	}
	if a := r.do("DELETE", "/api/v1/sandbox/one", ""); a.Body != `{"code":"0","data":"Sandbox one deleted successfully"}` {
		t.Errorf(`delete: got %s, want body {"code":"0","data":"Sandbox one deleted successfully"}`, a.Body)
	}
	if a := r.do("DELETE", "/api/v1/sandbox/one", ""); a.Status != 404 || a.Code != "404" {
		t.Errorf("delete twice: got %d %s, want 404", a.Status, a.Body)
	}
	for _, path := range []string{"/api/v1/sandbox/one", "/api/v1/sandbox/No_Name", "/api/v1/sandbox/one/stats"} {
		if a := r.do("GET", path, ""); a.Status != 404 || a.Code != "404" || !strings.Contains(a.Error, "no sandbox") {
			t.Errorf("%s: got %d %s, want 404", path, a.Status, a.Body)
		}
	}
}

// TestFieldsDoNotLeak: fields of one request never appear in the next.
func TestFieldsDoNotLeak(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env.json")
	os.WriteFile(file, []byte(`[{"name":"aio","env":{"BASE":"1"},"labels":{"team":"a"},"ports":[9000],"args":["base"]}]`), 0o600)
	r := newRig(t, setup{hub: Config{Environments: file}})
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			o := r.create(fmt.Sprintf(`{"name":"rich-%d","args":["x"],"env":{"SECRET":"%d","BASE":"2"},"workdir":"/w",
				"ports":[%d],"labels":{"n":"%d"},
				"timeout":5,"idle_timeout":-1,"idle_policy":"pause","memory_limit":"2Gi","app":"mine"}`, i, i, 3000+i, i))
			if o.Env["SECRET"] != fmt.Sprint(i) || o.Env["BASE"] != "2" || !slices.Equal(o.Ports, []int{3000 + i}) {
				t.Errorf("got %+v, want SECRET %d, BASE 2 and port %d", o, i, 3000+i)
			}
		})
		wait.Go(func() {
			o := r.create(fmt.Sprintf(`{"name":"plain-%d"}`, i))
			if !reflect.DeepEqual(o.Env, map[string]string{"BASE": "1"}) ||
				!reflect.DeepEqual(o.Labels, map[string]string{"team": "a"}) || !slices.Equal(o.Args, []string{"base"}) ||
				!slices.Equal(o.Ports, []int{9000}) || o.Workdir != "" || o.Timeout != 60 ||
				o.IdlePolicy != "delete" || o.MemoryLimit != "1024Mi" || o.App != "" {
				t.Errorf("%+v", o)
			}
		})
	}
	wait.Wait()
}

// TestEveryFieldTakesEffect compares the spec that the provider gets with the request.
func TestEveryFieldTakesEffect(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a","template":"aio","args":["-v","two words"],"env":{"K":"v=1"},"workdir":"/home/gem/x",
		"ports":[3000,8888],"timeout":90,"idle_timeout":5,"idle_policy":"scaledown",
		"cpu":"250m","memory":"64Mi","cpu_limit":2,"memory_limit":"1.5Gi","disk_limit":"2G","disk_rate_limit":"20Mi",
		"bandwidth_limit":"512Ki","labels":{"a":"b"},"network":{"mode":"allow","allow":["*.example.com:443"]},"isolation":"none"}`)
	list, err := r.provider.List(t.Context(), sandbox.Filter{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	got := list[0].Spec
	want := sandbox.Spec{
		Name: "a", Environment: "aio", Args: []string{"-v", "two words"}, Env: map[string]string{"K": "v=1"},
		Workdir: "/home/gem/x", Ports: []int{3000, 8888},
		Lifetime: sandbox.Lifetime{Timeout: 90 * time.Minute, IdleTimeout: 5 * time.Minute, IdlePolicy: sandbox.IdleStop},
		Resources: sandbox.Resources{CPU: 250, Memory: 64 << 20, CPULimit: 2000, MemoryLimit: 3 << 29, Disk: 2e9,
			DiskRate: 20 << 20, Bandwidth: 512 << 10},
		Labels: map[string]string{"a": "b"}, Network: sandbox.Network{Mode: sandbox.NetworkAllow,
			Allow: []string{"*.example.com:443"}}, Isolation: "none",
		Annotations: map[string]string{naming.AnnotationScaledown: "true"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	o := r.object(r.do("GET", "/api/v1/sandbox/a", ""))
	if o.IdlePolicy != "scaledown" || o.DiskLimit != "1953125Ki" || o.MemoryLimit != "1536Mi" ||
		o.DiskRate != "20Mi" || o.Bandwidth != "512Ki" || o.Endpoints["port-3000"] != r.server.URL+"/sandbox/a/proxy/3000/" ||
		o.URL != r.server.URL+"/sandbox/a/" || o.ExpiresAt == nil || !o.ExpiresAt.Equal(o.CreatedAt.Add(90*time.Minute)) || len(o.Stages) == 0 {
		t.Errorf("%+v", o)
	}
	if o := r.create(`{"name":"b","timeout":-1,"idle_timeout":-1,"env":null,"args":null,"image":null,` +
		`"network":null,"cpu":null}`); o.ExpiresAt != nil || o.Timeout != -1 || o.IdleTimeout != -1 {
		t.Errorf("got %+v, want no expiry, timeout -1 and idle timeout -1", o)
	}
}

// TestRatesAreInherited: the default rates apply to sandboxes without their own, copies have the rates of the
// original, and the egress proxy enforces them.
func TestRatesAreInherited(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var opened []int64
	r := newRig(t, setup{hub: Config{Defaults: Defaults{Resources: sandbox.Resources{DiskRate: 8 << 20,
		Bandwidth: 1 << 20}}, changeEgress: func(c *egress.Config) {
		mu.Lock()
		defer mu.Unlock()
		opened = append(opened, c.Bandwidth)
	}}})
	if o := r.create(`{"name":"a"}`); o.DiskRate != "8Mi" || o.Bandwidth != "1Mi" {
		t.Errorf("got %+v, want the default rates", o)
	}
	r.create(`{"name":"b","bandwidth_limit":"64Ki"}`)
	if a := r.do("POST", "/api/v1/sandbox/b/fork", `{"names":["c"]}`); a.Status != 200 {
		t.Fatalf("got %v, want 200", a.Body)
	}
	if o := r.object(r.do("GET", "/api/v1/sandbox/c", "")); o.DiskRate != "8Mi" || o.Bandwidth != "64Ki" {
		t.Errorf("got %+v, want the rates of the original", o)
	}
	testenv.Poll(t, "all have an egress proxy", func() bool { mu.Lock(); defer mu.Unlock(); return len(opened) == 3 })
	if slices.Sort(opened); !slices.Equal(opened, []int64{64 << 10, 64 << 10, 1 << 20}) {
		t.Errorf("got the bandwidths %d, want 65536 twice and 1048576", opened)
	}
	// Unsupported limits are rejected, not ignored.
	bare := newRig(t, setup{bare: true})
	for _, body := range []string{`{"name":"a","disk_rate_limit":"8Mi"}`, `{"name":"a","bandwidth_limit":"8Mi"}`} {
		if a := bare.do("POST", "/api/v1/sandbox", body); a.Status != 400 || !strings.Contains(a.Error, "cannot limit") {
			t.Errorf("%s: got %d %s, want 400", body, a.Status, a.Body)
		}
	}
}

// TestInvalidInputIsRejected: input is never interpreted as anything other than data.
func TestInvalidInputIsRejected(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	for body, want := range map[string]string{
		`{"name":"A"}`:                               "lower-case",
		`{"name":"a\nspec:\n  hostPID: true"}`:       "name",
		`{"name":"../a"}`:                            "name",
		`{"name":"` + strings.Repeat("a", 51) + `"}`: "name",
		`{"image":"x\n  privileged: true"}`:          "image",
		`{"image":"--privileged"}`:                   "image",
		`{"environment":"nowhere"}`:                  `no environment "nowhere"; use one of: aio, custom`,
		`{"environment":"../../etc/passwd"}`:         "no environment",
		`{"timeout":1441}`:                           "at most 1440 minutes",
		`{"timeout":-2}`:                             "use minutes",
		`{"idle_timeout":61}`:                        "at most 60 minutes",
		`{"idle_policy":"explode"}`:                  "idle_policy",
		`{"cpu":"much"}`:                             "cpu",
		`{"memory_limit":"-1Gi"}`:                    "memory_limit",
		`{"memory":"2Gi","memory_limit":"1Gi"}`:      "more than its limit",
		`{"ports":[0]}`:                              "port 0",
		`{"env":{"A B":"x"}}`:                        "env",
		`{"network":{"mode":"sometimes"}}`:           "network mode",
		`{"network":{"allow":["127.1"]}}`:            "network rule",
		`{"volumes":[{"name":"v","target":"/etc"}]}`: "volume target",
	} {
		if a := r.do("POST", "/api/v1/sandbox", body); a.Status != 400 || a.Code != "400" || !strings.Contains(a.Error, want) {
			t.Errorf("%s: got %d %s, want 400", body, a.Status, a.Body)
		}
	}
	for _, body := range []string{`{"env":"x"}`, `{"ports":["a"]}`, `[]`, `{`, `{"timeout":"soon"}`, `{"cpu":{}}`} {
		if a := r.do("POST", "/api/v1/sandbox", body); a.Status != 422 || a.Code != "422" || a.Error == "" {
			t.Errorf("%s: got %d %s, want 422", body, a.Status, a.Body)
		}
	}
	if left := r.store.Left(); len(left) > 0 {
		t.Errorf("got %v, want none", left)
	}
}

// TestFailedCreateLeavesNothing: not ready in time, canceled, or deleted during the create.
func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) { g.ready = func() bool { return false } }})
	answered := make(chan reply, 1)
	go func() { answered <- r.do("POST", "/api/v1/sandbox", `{"name":"never"}`) }()
	poll(t, "it is being made", func() bool { return len(r.store.Left()) > 0 })
	r.do("DELETE", "/api/v1/sandbox/never", "")
	if a := <-answered; a.Status != 409 || !strings.Contains(a.Error, "deleted before it was ready") {
		t.Errorf("got %d %s, want 409", a.Status, a.Body)
	}
	if left := r.store.Left(); len(left) > 0 {
		t.Errorf("got %v, want none", left)
	}
	req, err := http.NewRequest("POST", r.server.URL+"/api/v1/sandbox", strings.NewReader(`{"name":"gone"}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextUntil(t, func() bool { return len(r.store.Left()) > 0 })
	defer cancel()
	if _, err := http.DefaultClient.Do(req.WithContext(ctx)); err == nil {
		t.Error("answered")
	}
	poll(t, "nothing is left", func() bool { return len(r.store.Left()) == 0 })
}

func TestStates(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	for _, c := range []struct{ verb, want string }{
		{"pause", "paused"}, {"pause", "paused"}, {"resume", "running"}, {"resume", "running"},
		{"stop", "stopped"}, {"stop", "stopped"}, {"start", "running"}, {"start", "running"},
	} {
		if o := r.object(r.do("POST", "/api/v1/sandbox/a/"+c.verb, "")); o.Status != c.want {
			t.Errorf("%s: got %s, want status %q", c.verb, o.Status, c.want)
		}
	}
	r.do("POST", "/api/v1/sandbox/a/stop", "")
	if a := r.do("POST", "/api/v1/sandbox/a/pause", ""); a.Status != 409 {
		t.Errorf("pause while stopped: got %d %s, want 409", a.Status, a.Body)
	}
	if a := r.do("POST", "/api/v1/sandbox/b/pause", ""); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
}

func TestExtend(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	was := r.create(`{"name":"a","timeout":1}`)
	o := r.object(r.do("POST", "/api/v1/sandbox/a/extend", `{"timeout":30,"idle_timeout":7,"idle_policy":"pause"}`))
	if left := time.Until(*o.ExpiresAt); left < 29*time.Minute || left > 30*time.Minute || o.IdleTimeout != 7 || o.IdlePolicy != "pause" {
		t.Errorf(`got %v %+v, want expiry in %v to %v, idle timeout 7 and idle policy "pause"`,
			left, o, 29*time.Minute, 30*time.Minute)
	}
	if o := r.object(r.do("POST", "/api/v1/sandbox/a/extend", ``)); time.Until(*o.ExpiresAt) < 59*time.Minute || o.IdleTimeout != 7 {
		t.Errorf("got %+v, want expiry in 59 minutes or later and idle timeout 7", o)
	}
	if o := r.object(r.do("POST", "/api/v1/sandbox/a/extend",
		`{"idle_timeout":-1}`)); time.Until(*o.ExpiresAt) < 59*time.Minute || o.IdleTimeout != -1 {
		t.Errorf("got %+v, want expiry in 59 minutes or later and idle timeout -1", o)
	}
	if o := r.object(r.do("POST", "/api/v1/sandbox/a/extend", `{"timeout":-1}`)); o.ExpiresAt != nil || !o.CreatedAt.Equal(was.CreatedAt) {
		t.Errorf("got %+v, want no expiry and creation time %v", o, was.CreatedAt)
	}
	for _, body := range []string{`{"timeout":1441}`, `{"idle_policy":"x"}`, `{"timeout":-3}`} {
		if a := r.do("POST", "/api/v1/sandbox/a/extend", body); a.Status != 400 {
			t.Errorf("%s: got %d %s, want 400", body, a.Status, a.Body)
		}
	}
}

func TestListFiltersAndPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	for i := range 7 {
		r.create(fmt.Sprintf(`{"name":"s%d","labels":{"odd":"%d","n%d":""}}`, i, i%2, i))
	}
	r.do("POST", "/api/v1/sandbox/s6/pause", "")
	names := func(a reply) (out []string) {
		var list []lifecycle.Object
		if err := json.Unmarshal(a.Data, &list); err != nil {
			t.Fatalf("%s", a.Body)
		}
		for _, o := range list {
			out = append(out, o.Name)
		}
		return out
	}
	for query, want := range map[string][]string{
		"":                             {"s0", "s1", "s2", "s3", "s4", "s5", "s6"},
		"?label=odd=1":                 {"s1", "s3", "s5"},
		"?label=odd=0&status=paused":   {"s6"},
		"?status=paused&status=failed": {"s6"},
		"?label=n2":                    {"s2"},
		"?label=n2&label=odd=1":        nil,
		"?environment=custom":          nil,
	} {
		if got := names(r.do("GET", "/api/v1/sandbox"+query, "")); !slices.Equal(got, want) {
			t.Errorf("%s: %v", query, got)
		}
	}
	var all []string
	after := ""
	for range 5 {
		a := r.do("GET", "/api/v1/sandbox?limit=3&after="+after, "")
		var page lifecycle.Page
		if err := json.Unmarshal(a.Data, &page); err != nil {
			t.Fatal(a.Body)
		}
		for _, o := range page.Items {
			all = append(all, o.Name)
		}
		// The last sandbox of a page can be deleted before the next page is requested.
		if after == "" {
			r.do("DELETE", "/api/v1/sandbox/s2", "")
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if !slices.Equal(all, []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6"}) {
		t.Errorf("got %v, want s0 to s6", all)
	}
	for _, query := range []string{"?after=zzz", "?limit=-1", "?status=asleep"} {
		if a := r.do("GET", "/api/v1/sandbox"+query, ""); a.Status != 400 && a.Status != 422 {
			t.Errorf("%s: %d", query, a.Status)
		}
	}
}

func TestConcurrentCreatesAndDeletes(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	var ids sync.Map
	var wait sync.WaitGroup
	for i := range 200 {
		wait.Go(func() {
			name := fmt.Sprintf("s%d", i)
			o := r.create(fmt.Sprintf(`{"name":"%s","env":{"I":"%d"}}`, name, i))
			ids.Store(o.ID, true)
			if o.Env["I"] != fmt.Sprint(i) {
				t.Errorf("%s: got %v, want variable I %q", name, o.Env, fmt.Sprint(i))
			}
			if s := r.seen("GET", "/sandbox/"+name+"/x", ""); s.URI != "/x" {
				t.Errorf(`got %+v, want URI "/x"`, s)
			}
			var dels sync.WaitGroup
			gone := make(chan int, 2)
			for range 2 {
				dels.Go(func() { gone <- r.do("DELETE", "/api/v1/sandbox/"+name, "").Status })
			}
			dels.Wait()
			if a, b := <-gone, <-gone; a != 200 && b != 200 || a != 200 && a != 404 || b != 200 && b != 404 {
				t.Errorf("two deletes: %d %d", a, b)
			}
		})
	}
	wait.Wait()
	if left := r.store.Left(); len(left) > 0 {
		t.Errorf("got %v, want none", left)
	}
	poll(t, "nothing is kept of them", func() bool {
		known := false
		ids.Range(func(id, _ any) bool { known = known || r.hub.fleet.Knows(id.(string)); return true })
		return !known
	})
}

func TestObserve(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	if a := r.do("GET", "/api/v1/sandbox/a/logs?max=5", ""); a.Status != 200 || a.Body != "said\n" {
		t.Errorf(`got %d %q, want status 200 and body "said\n"`, a.Status, a.Body)
	}
	if a := r.do("GET", "/api/v1/sandbox/a/stats", ""); !strings.Contains(a.Body,
		`"cpu_seconds":1.5,"memory_bytes":42,"pids":3,"disk_bytes":-1`) {
		t.Errorf(`got %v, want body that contains "cpu_seconds":1.5,"memory_bytes":42,"pids":3,"disk_bytes":-1`, a.Body)
	}
	if a := r.do("GET", "/api/v1/hub", ""); !strings.Contains(a.Body, `"provider":"mem"`) {
		t.Errorf(`got %v, want body that contains "provider":"mem"`, a.Body)
	}
	if a := r.do("GET", "/api/v1/environment", ""); !strings.Contains(a.Body, `"name":"aio"`) {
		t.Errorf(`got %v, want body that contains "name":"aio"`, a.Body)
	}
}

// TestSmallProvider: operations that a provider does not support return a clear error.
func TestSmallProvider(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{bare: true})
	r.create(`{"name":"a"}`)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/api/v1/sandbox/a/logs", ""}, {"GET", "/api/v1/sandbox/a/stats", ""}, {"PUT", "/api/v1/sandbox/a/network", `{"mode":"none"}`},
		{"POST", "/api/v1/sandbox", `{"network":{"mode":"none"}}`}, {"POST", "/api/v1/sandbox", `{"image":"x"}`},
	} {
		if a := r.do(c.method, c.path, c.body); a.Status != 400 || !strings.Contains(a.Error, "mem") {
			t.Errorf("%s %s: got %d %s, want 400", c.method, c.path, a.Status, a.Body)
		}
	}
}
