package cove

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
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
