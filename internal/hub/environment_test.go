package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEnvironmentsAreReadAnew: a change counts at once; a fault changes nothing
// and ends nothing.
func TestEnvironmentsAreReadAnew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env.json")
	r := newRig(t, setup{hub: Config{Environments: file}})
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(env, want string) {
		t.Helper()
		if a := r.do("POST", "/api/v1/sandbox", `{"environment":"`+env+`"}`); a.Status != 400 || !strings.Contains(a.Error, want) {
			t.Errorf("%s: %d %s", env, a.Status, a.Body)
		}
	}
	// There is no file yet: the default is there all the same.
	r.create(`{}`)
	refused("py", `there is no environment "py"; use one of: aio, custom`)
	refused("py", "has a fault")

	write(`[{"name":"py","image":"","description":"Python","env":{"A":"1"},"cpu_limit":"500m","memory_limit":268435456,"timeout":5,"idle_policy":"pause","network":{"mode":"none"},"unknown":true}]`)
	if o := r.create(`{"environment":"py"}`); o.Env["A"] != "1" || o.CPULimit != "500m" || o.CPU != "100m" || o.MemoryLimit != "256Mi" || o.Timeout != 5 || o.IdlePolicy != "pause" || o.Network.Mode != "none" {
		t.Errorf("%+v", o)
	}
	if state, why := r.hub.State(); state != "ready" || why != "" {
		t.Error(state, why)
	}
	if a := r.do("GET", "/api/v1/environment", ""); !strings.Contains(a.Body, `"description":"Python"`) || !strings.Contains(a.Body, `"name":"custom"`) {
		t.Error(a.Body)
	}
	for _, bad := range []string{``, `{`, `{"name":"py"}`, `[{"image":"x"}]`, `[{"name":"a"},{"name":"a"}]`, `[{"name":"a","cpu":"x"}]`, `[{"name":"a/b"}]`, `[{"name":"a","idle_policy":"x"}]`, `[{"name":"a","image":"x\ny"}]`, `[{"name":"a","timeout":"soon"}]`, strings.Repeat(" ", maxCatalog+1)} {
		write(bad)
		if o := r.create(`{"environment":"py"}`); o.Env["A"] != "1" {
			t.Errorf("%q: %+v", bad[:min(len(bad), 40)], o)
		}
		if _, why := r.hub.State(); why == "" {
			t.Errorf("%q is no fault", bad[:min(len(bad), 40)])
		}
	}
	if a := r.do("GET", "/api/v1/hub", ""); !strings.Contains(a.Body, "environments_fault") {
		t.Error(a.Body)
	}
	write(`[{"name":"go","labels":{"x":"y"}}]`)
	if o := r.create(`{"environment":"go"}`); o.Labels["x"] != "y" {
		t.Errorf("%+v", o)
	}
	refused("py", "use one of: go, aio, custom")
	os.Remove(file)
	r.create(`{"environment":"go"}`)
}

// TestImages: only an image is the environment custom; both keep the environment.
func TestImages(t *testing.T) {
	t.Parallel()
	h := New(Config{Provider: &provider{}, Defaults: Defaults{Image: "base:1"}})
	for _, c := range []struct{ in, env, image string }{
		{"", "aio", "base:1"}, {"my:2", "custom", "my:2"},
	} {
		s, err := h.spec(t.Context(), CreateIn{Image: c.in})
		if err != nil || s.Environment != c.env || s.Image != c.image {
			t.Errorf("%+v %v", s, err)
		}
	}
	if s, err := h.spec(t.Context(), CreateIn{Environment: "aio", Image: "my:2"}); err != nil || s.Environment != "aio" || s.Image != "my:2" {
		t.Errorf("%+v %v", s, err)
	}
}

func TestQuantity(t *testing.T) {
	t.Parallel()
	for q, want := range map[Quantity]int64{"100m": 100, "1": 1000, "0.5": 500, "2": 2000, "1.5": 1500, "": 0} {
		if n, err := q.parse("cpu", 1000); n != want || err != nil {
			t.Errorf("%s: %d %v", q, n, err)
		}
	}
	for q, want := range map[Quantity]int64{"128Mi": 128 << 20, "1Gi": 1 << 30, "1.5Gi": 3 << 29, "1G": 1e9, "512Ki": 512 << 10, "1000": 1000, "1Ti": 1 << 40} {
		if n, err := q.parse("memory", 1); n != want || err != nil {
			t.Errorf("%s: %d %v", q, n, err)
		}
	}
	for _, q := range []Quantity{"x", "-1", "0", "1Q", "Mi", "1e400", "NaN", "Inf", "0x10", "1_0", "9999Ti9", "1 Gi"} {
		if n, err := q.parse("memory", 1); err == nil {
			t.Errorf("%s is %d", q, n)
		}
	}
}

func FuzzCatalog(f *testing.F) {
	for _, s := range []string{`[]`, `[{"name":"a","cpu":1}]`, `[{"name":"a","network":{"allow":["*"]}}]`, `null`, `[null]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseCatalog(b, New(Config{}).cfg.Log)
		for _, e := range list {
			s, bad := e.spec(Defaults{})
			if err == nil && (bad != nil || s.Validate() != nil) {
				t.Errorf("%q was accepted", b)
			}
		}
	})
}
