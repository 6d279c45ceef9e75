package cove

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestViewersHaveAList: the operations that a viewer may call are an explicit list. None of
// them runs, wakes or blocks a sandbox, and none shows a secret.
func TestViewersHaveAList(t *testing.T) {
	t.Parallel()
	want := strings.Fields(`sandbox_list sandbox_get sandbox_network sandbox_logs sandbox_stats sandbox_events hub_events
		egress_learned egress_pending
		sandbox_metrics hub_metrics sandbox_history sandbox_deleted
		hub_environments hub_info sandbox_proxy snapshot_list share_list share_open volume_list image_list network_list
		secret_list hub_usage mcp auth_check auth_create_ticket health_ready docs_openapi docs_llms e2b_get
		e2b_list e2b_list_v2 e2b_metrics e2b_metrics_all e2b_logs e2b_other e2b_snapshots e2b_templates e2b_alias
		e2b_build_status e2b_build_logs e2b_template_get
		template_list template_get template_history template_build_get template_build_log`)
	r := newRig(t, nil)
	var got []string
	for _, o := range r.hub.Table.All() {
		get, err := http.NewRequest(http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if o.RequiredAccess(get) == op.AccessRead && o.Tag != "pages" {
			got = append(got, o.Name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("viewers may call\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestReadersNeverWake: neither a viewer nor a read-only link wakes a sandbox or prevents
// its suspension, through any API.
func TestReadersNeverWake(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	user, _ := r.key("acme", "user")
	viewer, _ := r.key("acme", "viewer")
	sb := r.box("acme", "asleep")
	link, _ := r.share(user, sb.ID, `{"read_only":true}`)
	port, _ := r.share(user, sb.ID, `{"read_only":true,"port":3000}`)
	r.must(user, "POST", "/api/v1/sandbox/asleep/pause", "")
	for _, c := range []struct{ who, path string }{
		{viewer, "/sandbox/asleep/v1/sandbox"}, {viewer, "/sandbox/asleep/proxy/3000/"},
		{link, "/sandbox/" + sb.ID + "/v1/sandbox"}, {port, "/sandbox/" + sb.ID + "/proxy/3000/"},
	} {
		if a := r.do(c.who, "GET", c.path, ""); a.status != http.StatusConflict || !strings.Contains(a.body, "read-only") {
			t.Errorf("%s: got %d %s, want 409 that says read-only", c.path, a.status, a.body)
		}
	}
	for _, tool := range []string{"getSandbox", "listSandboxes"} {
		args := map[string]any{"name": "asleep"}
		if tool == "listSandboxes" {
			args = map[string]any{}
		}
		if status, text, failed := r.tool(viewer, tool, args); failed || !strings.Contains(text, "asleep") {
			t.Errorf("%s: got %d %s, want the sandbox", tool, status, text)
		}
	}
	if now, err := r.provider.Get(t.Context(), sb.ID); err != nil || now.State != sandbox.Paused {
		t.Errorf("got %s, %v, want it still paused", now.State, err)
	}
	// The same call from a user wakes it.
	if a := r.do(user, "GET", "/sandbox/asleep/x", ""); a.status != http.StatusOK {
		t.Errorf("got %d %s, want 200", a.status, a.body)
	}
	// The server inside learns that the caller is read-only, even if the request claims otherwise. Only a link lets its
	// holder watch.
	for who, want := range map[string]string{viewer: "read", user: "", link: "watch"} {
		if a := r.do(who, "GET", "/sandbox/"+sb.ID+"/access", "", op.AccessHeader, "admin"); a.body != want {
			t.Errorf("the server inside saw %q, want %q", a.body, want)
		}
	}
}

// TestSandboxLearnsItsCaller: the server inside learns the real caller, even if the request claims another.
// A service on a port does not.
func TestSandboxLearnsItsCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	user, id := r.key("acme", "user")
	sb := r.box("acme", "told")
	link, _ := r.share(user, sb.ID, `{}`)
	forged := []string{op.CallerHeader, "subject=boss&key=1"}
	if a := r.do(user, "GET", "/sandbox/told/caller", "", forged...); a.body != "key="+id+"&subject=acme" {
		t.Errorf("got %q, want the tenant and its key", a.body)
	}
	if a := r.do(link, "GET", "/sandbox/"+sb.ID+"/caller", "", forged...); !strings.HasPrefix(a.body, "key=") ||
		!strings.Contains(a.body, "&subject=link+") {
		t.Errorf("got %q, want the link", a.body)
	}
	if a := r.do(user, "GET", "/caller", "", append(forged, "Host", "3000-told.localhost")...); a.status != http.StatusOK || a.body != "" {
		t.Errorf("a port got %q, want nothing", a.body)
	}
}
