package pool_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/bind"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/provider/mem"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// guest is a server that waits for an owner: the real service behind the real API.
type guest struct {
	http.Handler
	exit func(int)

	mu  sync.Mutex
	got *bind.Settings
}

func (g *guest) Pause()       {}
func (g *guest) Resume()      {}
func (g *guest) Close() error { return nil }

func (g *guest) settings() *bind.Settings {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got
}

// rig is a pool on a machine in memory.
type rig struct {
	t     *testing.T
	store *mem.Store
	home  string
	p     *mem.Provider
	pool  *pool.Pool
	cfg   pool.Config

	fault atomic.Pointer[op.Error] // response of every guest, if not nil
	busy  atomic.Bool

	mu     sync.Mutex
	wants  map[string]pool.Want
	guests map[string]*guest
}

func spec() sandbox.Spec {
	return sandbox.Spec{Environment: "e", Env: map[string]string{"BASE": "1", "OLD": "x"}, Labels: map[string]string{"kind": "e"},
		Resources: sandbox.Resources{CPU: 100, MemoryLimit: 1 << 30, Disk: 1 << 30}, Network: sandbox.Network{Mode: sandbox.NetworkOpen}}
}

func newRig(t *testing.T, size int, change ...func(*pool.Config)) *rig {
	t.Helper()
	r := &rig{t: t, store: &mem.Store{}, home: t.TempDir(), guests: map[string]*guest{},
		wants: map[string]pool.Want{"e": {Size: size, Spec: spec(), Fingerprint: "1"}}}
	r.cfg = pool.Config{Size: r.size, Busy: r.busy.Load, Every: 10 * time.Millisecond, Parallel: 4,
		Log:  slog.New(slog.NewTextHandler(t.Output(), nil)),
		Bind: pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) { return r.p.Endpoint(ctx, id, 0) })}
	for _, c := range change {
		c(&r.cfg)
	}
	r.open()
	t.Cleanup(func() {
		r.pool.Close()
		list, _ := r.p.List(context.Background(), sandbox.Filter{})
		for _, sb := range list {
			r.p.Delete(context.Background(), sb.ID)
		}
		r.p.Close()
	})
	return r
}

// open opens provider and pool on the store.
func (r *rig) open() {
	r.t.Helper()
	p, err := mem.Open(mem.Config{Store: r.store, Run: r.run})
	if err != nil {
		r.t.Fatal(err)
	}
	r.p = p
	if r.cfg.Provider = sandbox.Provider(p); r.t.Context().Err() != nil {
		return
	}
	r.pool = pool.New(r.cfg)
	r.pool.Begin(r.t.Context())
}

func (r *rig) run(sb sandbox.Sandbox, _ *mem.Disk, exit func(int)) (mem.Guest, error) {
	g := &guest{exit: exit}
	c := bind.Config{Home: r.home}
	if sb.Spec.Env["AIO_INIT"] == "true" {
		c.Prepare = func(s bind.Settings) (bind.Commit, error) {
			if e := r.fault.Load(); e != nil {
				return nil, e
			}
			return func() (bool, error) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.got = &s
				return false, nil // so that the pool checks readiness
			}, nil
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/", rest.New(rest.Config{Table: op.NewTable(bind.New(c).Ops())}))
	g.Handler = mux
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guests[sb.ID] = g
	return g, nil
}

func (r *rig) size() map[string]pool.Want {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.wants)
}

// want changes the desired pools.
func (r *rig) want(size int, print string) {
	r.mu.Lock()
	r.wants["e"] = pool.Want{Size: size, Spec: spec(), Fingerprint: print}
	r.mu.Unlock()
	r.pool.Notify()
}

func (r *rig) guest(id string) *guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.guests[id]
}

// filled waits until exactly n members are ready and the pool has no others.
func (r *rig) filled(n int) {
	r.t.Helper()
	testenv.Poll(r.t, "the pool is as wanted", func() bool { return r.pool.Ready()["e"] == n && len(r.members()) == n })
}

func (r *rig) members() []string {
	list, err := r.p.List(context.Background(), sandbox.Filter{Owner: pool.Owner})
	if err != nil {
		r.t.Fatal(err)
	}
	var ids []string
	for _, sb := range list {
		ids = append(ids, sb.ID)
	}
	slices.Sort(ids)
	return ids
}

// binding is the request of a tenant.
func binding(name string, change ...func(*sandbox.Spec)) pool.Binding {
	s := spec()
	s.Name, s.Owner = name, "ann"
	for _, c := range change {
		c(&s)
	}
	return pool.Binding{Spec: s}
}
