package e2b

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestTemplates: the public clients of several releases build templates and create sandboxes from them.
func TestTemplates(t *testing.T) {
	t.Parallel()
	h := serve(t)
	for _, release := range []string{"1", "2", "3"} { // of requirements-N.txt
		t.Run("python "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, release == "1")
			key := h.tenant(t, "acme-"+release, "user") // tenants share no layers
			h.run(t, key, testenv.NeedFile(t, ".venv-"+release+"/bin/python"), "template.py", release)
		})
	}
}

// TestTemplatesOfTenants: no tenant uses or sees a template of another, viewers cannot build, and a deleted template leaves
// nothing behind.
func TestTemplatesOfTenants(t *testing.T) {
	t.Parallel()
	h := serve(t)
	ann, bob, viewer := h.tenant(t, "ann", "user"), h.tenant(t, "bob", "user"), h.tenant(t, "ann", "viewer")
	do := func(key, method, path, body string, want int) string {
		t.Helper()
		status, text := h.call(t, method, path, body, "X-API-Key", key)
		if status != want {
			t.Errorf("%s %s: got %d %s, want %d", method, path, status, text, want)
		}
		return text
	}
	const recipe = `{"steps":[{"kind":"run","command":"echo secret of ann > /opt/note; (while :; do date > /opt/later; done) &"}],` +
		`"wait":true}`
	var made struct {
		Data struct{ ID, Status, Error string }
	}
	text := do(ann, "POST", "/api/v1/template/own/build", recipe, 200)
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.Data.Status != "ready" {
		t.Fatalf("got %+v, %v, want a finished build", made, err)
	}
	do(ann, "POST", "/api/v1/sandbox", `{"name":"a","environment":"own"}`, 200)
	const read = `{"command":"cat /opt/note"}`
	if out := do(ann, "POST", "/sandbox/a/v1/bash/exec", read, 200); !strings.Contains(out, "secret of ann") {
		t.Errorf("the sandbox has %s, want the file of the template", out)
	}
	if out := do(ann, "GET", "/api/v1/snapshot", "", 200); strings.Contains(out, "size") {
		t.Errorf("layers are listed as snapshots: %s", out)
	}
	build := "/api/v1/build/" + made.Data.ID
	do(bob, "POST", "/api/v1/sandbox", `{"environment":"own"}`, 400)
	do(bob, "POST", "/api/v1/template/mine/build", `{"base":{"template":"own"},"steps":[],"wait":true}`, 200)
	if out := do(bob, "GET", "/api/v1/template/mine", "", 200); !strings.Contains(out, `no template \"own\"`) {
		t.Errorf("a template of another tenant as base: got %s, want a failed build", out)
	}
	do(bob, "GET", build, "", 404)
	do(bob, "DELETE", build, "", 404)
	do(bob, "DELETE", "/api/v1/template/own", "", 404)
	do(viewer, "GET", build, "", 200)
	do(viewer, "POST", "/api/v1/template/own/build", recipe, 403)
	do(viewer, "DELETE", "/api/v1/template/own", "", 403)
	do(ann, "POST", "/api/v1/template/aio/build", recipe, 409) // the name of an environment
	do(ann, "POST", "/api/v1/template/..%2Fx/build", recipe, 400)

	do(ann, "DELETE", "/api/v1/template/own", "", 200)
	do(ann, "POST", "/sandbox/a/v1/bash/exec", read, 200)
	layers := 0
	err := filepath.WalkDir(filepath.Join(h.state, "snapshots"), func(_ string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			layers++
		}
		return err
	})
	if err != nil || layers != 0 {
		t.Errorf("%d layers are left, %v", layers, err)
	}
	if status, text := h.call(t, http.MethodPut, "/api/v1/template/upload?upload=forged.ticket", "x"); status != http.StatusForbidden {
		t.Errorf("a forged ticket: got %d %s, want 403", status, text)
	}
}
