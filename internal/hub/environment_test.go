package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEnvironmentsAreReloaded: a change takes effect at once. An invalid file has no effect and
// does not stop the hub.
func TestEnvironmentsAreReloaded(t *testing.T) {
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
			t.Errorf("%s: got %d %s, want 400", env, a.Status, a.Body)
		}
	}
	// Without a file, the default exists.
	r.create(`{}`)
	refused("py", `no environment "py"; use one of: aio, custom`)
	refused("py", "is invalid")

	write(`[{"name":"py","image":"","description":"Python","env":{"A":"1"},"cpu_limit":"500m",` +
		`"memory_limit":268435456,"timeout":5,"idle_policy":"pause","network":{"mode":"none"},"unknown":true}]`)
	if o := r.create(`{"environment":"py"}`); o.Env["A"] != "1" || o.CPULimit != "500m" || o.CPU != "100m" ||
		o.MemoryLimit != "256Mi" || o.Timeout != 5 || o.IdlePolicy != "pause" || o.Network.Mode != "none" {
		t.Errorf("%+v", o)
	}
	if state, why := r.hub.State(); state != "ready" || why != "" {
		t.Errorf(`got %v %v, want state "ready" and no reason`, state, why)
	}
	if a := r.do("GET", "/api/v1/environment", ""); !strings.Contains(a.Body, `"description":"Python"`) ||
		!strings.Contains(a.Body, `"name":"custom"`) {
		t.Errorf(`got %v, want "description":"Python" and "name":"custom" in the body`, a.Body)
	}
	for _, bad := range []string{``, `{`, `{"name":"py"}`, `[{"image":"x"}]`, `[{"name":"a"},{"name":"a"}]`,
		`[{"name":"a","cpu":"x"}]`, `[{"name":"a/b"}]`, `[{"name":"a","idle_policy":"x"}]`,
		`[{"name":"a","image":"x\ny"}]`, `[{"name":"a","timeout":"soon"}]`, strings.Repeat(" ", 1<<20+1)} {
		write(bad)
		if o := r.create(`{"environment":"py"}`); o.Env["A"] != "1" {
			t.Errorf(`%q: got %+v, want variable A "1"`, bad[:min(len(bad), 40)], o)
		}
		if _, why := r.hub.State(); why == "" {
			t.Errorf("%q is no fault", bad[:min(len(bad), 40)])
		}
	}
	if a := r.do("GET", "/api/v1/hub", ""); !strings.Contains(a.Body, "environments_fault") {
		t.Errorf(`got %v, want body that contains "environments_fault"`, a.Body)
	}
	write(`[{"name":"go","labels":{"x":"y"}}]`)
	if o := r.create(`{"environment":"go"}`); o.Labels["x"] != "y" {
		t.Errorf(`got %+v, want label x "y"`, o)
	}
	refused("py", "use one of: go, aio, custom")
	os.Remove(file)
	r.create(`{"environment":"go"}`)
}
