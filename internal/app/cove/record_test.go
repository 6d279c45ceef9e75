package cove

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/config"
)

// TestRecordOutlivesItsSandbox: only its tenant and admins read the record of a deleted sandbox.
func TestRecordOutlivesItsSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *config.Cove) { c.KeepActivity = time.Hour })
	user, _ := r.key("acme", "user")
	viewer, _ := r.key("acme", "viewer")
	other, _ := r.key("other", "user")
	boss, _ := r.key("boss", "admin")
	sb := r.box("acme", "short")
	r.must(user, "POST", "/api/v1/sandbox/short/pause", "{}")
	r.must(user, "DELETE", "/api/v1/sandbox/short", "")
	r.box("other", "theirs")
	r.must(other, "DELETE", "/api/v1/sandbox/theirs", "")

	if b := r.must(user, "GET", "/api/v1/record", "").body; strings.Count(b, `"id"`) != 1 ||
		!strings.Contains(b, `"id":"`+sb.ID+`","name":"short","user":"acme"`) || !strings.Contains(b, `"entries":1`) {
		t.Errorf("got %s, want only the record of the deleted sandbox", b)
	}
	want := `{"id":1,"time":"t1","op":"bash_exec","input":"<script>of ` + sb.ID + `</script>"}` + "\n"
	a := r.must(user, "GET", "/api/v1/record/"+sb.ID, "")
	if a.body != want {
		t.Errorf("got %q, want %q", a.body, want)
	}
	if b := r.must(boss, "GET", "/api/v1/record?user=*", "").body; strings.Count(b, `"id"`) != 2 {
		t.Errorf("an admin got %s, want both", b)
	}
	r.must(boss, "GET", "/api/v1/record/"+sb.ID, "")
	if b := r.must(other, "GET", "/api/v1/record", "").body; strings.Contains(b, sb.ID) {
		t.Errorf("another tenant got %s, want its own", b)
	}
	for _, c := range []struct {
		who, method, path string
		want              int
	}{
		{other, "GET", "/api/v1/record/" + sb.ID, http.StatusNotFound}, {other, "DELETE", "/api/v1/record/" + sb.ID, http.StatusNotFound},
		{viewer, "GET", "/api/v1/record", http.StatusForbidden}, {viewer, "GET", "/api/v1/record/" + sb.ID, http.StatusForbidden},
		{user, "GET", "/api/v1/record/..%2Fkeys", http.StatusNotFound}, {user, "GET", "/api/v1/record/sb-none", http.StatusNotFound},
	} {
		if a := r.do(c.who, c.method, c.path, ""); a.status != c.want || strings.Contains(a.body, "script") {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.path, a.status, a.body, c.want)
		}
	}
	if info, err := os.Stat(filepath.Join(r.cfg.State, "records")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v, want a folder that other users cannot read", info, err)
	}
	r.must(user, "DELETE", "/api/v1/record/"+sb.ID, "")
	if a := r.do(user, "GET", "/api/v1/record/"+sb.ID, ""); a.status != http.StatusNotFound {
		t.Errorf("got %d %s after its deletion, want 404", a.status, a.body)
	}

	// A hub without records returns an error that names the setting, and stores nothing.
	off := newRig(t, func(c *config.Cove) { c.KeepActivity = 0 })
	user, _ = off.key("acme", "user")
	off.box("acme", "short")
	off.must(user, "DELETE", "/api/v1/sandbox/short", "")
	if a := off.do(user, "GET", "/api/v1/record", ""); a.status != http.StatusBadRequest || !strings.Contains(a.body, "keep_activity") {
		t.Errorf("got %d %s, want 400 that names the setting", a.status, a.body)
	}
	if _, err := os.Stat(filepath.Join(off.cfg.State, "records")); !os.IsNotExist(err) {
		t.Errorf("got %v, want no folder", err)
	}
}
