//go:build linux

package cove

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// TestDoctorOfTheHub: an administrator sees the findings of doctor on the hub's machine, and the warm
// sandboxes. A tenant sees neither.
func TestDoctorOfTheHub(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *config.Cove) { c.Pool = 2 })
	admin, _ := r.key("boss", "admin")
	var reply struct{ Data []Finding }
	if err := json.Unmarshal([]byte(r.must(admin, "GET", "/api/v1/hub/doctor", "").body), &reply); err != nil {
		t.Fatal(err)
	}
	_, want := examine(t.Context(), r.cfg, config.Environ(), func(add adder) bool {
		addAbilities(r.hub.provider.Abilities(), add)
		return true
	})
	if len(reply.Data) != len(want) || len(want) < 10 {
		t.Fatalf("got %d findings, want %d as on the command line", len(reply.Data), len(want))
	}
	for i, f := range reply.Data {
		if f.OK != want[i].ok || f.What != want[i].what || f.OK && f.Fix != "" || !f.OK && f.Fix != want[i].fix {
			t.Errorf("got %+v, want %+v", f, want[i])
		}
	}
	user, _ := r.key("acme", "user")
	if a := r.do(user, "GET", "/api/v1/hub/doctor", ""); a.status != http.StatusForbidden || strings.Contains(a.body, r.cfg.State) {
		t.Errorf("got %d %s for a tenant, want 403", a.status, a.body)
	}
	if b := r.must(admin, "GET", "/api/v1/hub", "").body; !strings.Contains(b, `"pools":[{"environment":"aio","size":2,"ready":`) {
		t.Errorf("got %s, want the warm pool", b)
	}
	if b := r.must(user, "GET", "/api/v1/hub", "").body; strings.Contains(b, "pools") {
		t.Errorf("got %s for a tenant, want no pools", b)
	}
}

// TestDoctorExaminesTheRunningHub: without a setting, doctor shows the findings of the hub, with the hub's user and settings.
func TestDoctorExaminesTheRunningHub(t *testing.T) {
	aio, err := os.Executable() // any program
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *config.Cove) { c.Aio = aio })
	user, _ := r.key("acme", "user")
	out, code := r.runLine(host.Streams{}, "doctor")
	if code != 0 || !strings.HasPrefix(out, "hub       "+r.server.URL+", version 0\n") || strings.Contains(out, "a trial sandbox ran") {
		t.Errorf("got %d %s, want the findings of the hub", code, out)
	}
	for _, f := range []string{"limits", "pause and resume"} {
		ok, missing := strings.Contains(out, "ok        "+f), strings.Contains(out, "missing   "+f)
		if ok == missing {
			t.Errorf("got %s, want exactly one finding about %s", out, f)
		}
	}
	r.admin = user
	if out, _ := r.runLine(host.Streams{}, "doctor"); !strings.Contains(out, "administrators only") {
		t.Errorf("got %s, want a note that the findings are for administrators", out)
	}
}

// TestDoctorAdvisesUsersOfPackages: outside of the repository, no finding mentions its make targets.
func TestDoctorAdvisesUsersOfPackages(t *testing.T) {
	t.Parallel()
	cfg := standard(t)
	cfg.Aio, cfg.Venv = "/nowhere/aio", ""
	_, list := examine(t.Context(), cfg, nil, func(add adder) bool {
		addAbilities(sandbox.Abilities{}, add)
		return true
	})
	for _, f := range list {
		if text := f.what + f.fix; strings.Contains(text, "make ") || strings.Contains(text, "scripts/") {
			t.Errorf("got %q, want advice for an installed package", text)
		}
		if f.ok && strings.Contains(f.what, "all limits") {
			t.Errorf("got %q, want nothing about limits, which have a finding", f.what)
		}
	}
}

// TestDoctorFindsThatVenvIsMissing: Debian has the modules that create Python environments in another package than Python.
func TestDoctorFindsThatVenvIsMissing(t *testing.T) {
	t.Parallel()
	testenv.Need(t, isolate.Python)
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "ensurepip.py"), []byte("raise ImportError\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for environ, missing := range map[string]bool{"A=b": false, "PYTHONPATH=" + broken: true} {
		_, list := examine(t.Context(), standard(t), []string{environ}, func(adder) bool { return true })
		i := slices.IndexFunc(list, func(f finding) bool { return f.what == "Python environments (python3-venv)" })
		if i < 0 || list[i].ok == missing || !strings.HasSuffix(list[i].fix, ": apt-get install python3-venv") || list[i].pkg != "python3-venv" {
			t.Errorf("with %s: got %+v, want it missing: %v, with the command that installs it", environ, list, missing)
		}
	}
}
