package hub

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
)

// TestEveryEntranceIsAuthorized: requests without a key are rejected for every path and host.
func TestEveryEntranceIsAuthorized(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{auth: &auth.Config{Token: "secret"}})
	key := []string{"Authorization", "Bearer secret"}
	r.create(`{"name":"a"}`, key...)
	table := op.NewTable(r.hub.Ops())
	for _, o := range table.All() {
		for _, route := range append([]string{o.Route}, o.Also...) {
			method, path, ok := strings.Cut(route, " ")
			if !ok {
				method, path = "GET", route
			}
			path = strings.NewReplacer("{name}", "a", "{path...}", "x").Replace(path)
			for _, host := range []string{"", "3000-a.localhost"} {
				if a := r.do(method, path, "", "Host", host); a.Status != 401 {
					t.Errorf("%s %s at %q: got %d, want status 401", method, path, host, a.Status)
				}
			}
		}
	}
	if _, res, err := websocket.Dial(t.Context(), r.server.URL+"/sandbox/a/ws", nil); err == nil || res.StatusCode != 401 {
		t.Errorf("got %v, want an error and status 401", err)
	}
	if s := r.statusAs("a", key); s != "running" {
		t.Errorf(`got %v, want "running"`, s)
	}
	// The hub's credentials are never forwarded to the sandbox.
	if s := r.seen("GET", "/sandbox/a/x", "", key...); s.Header.Get("Authorization") != "" {
		t.Error("the hub's token was forwarded")
	}
	if s := r.seen("GET", "/sandbox/a/x", "", append(key, "X-Api-Key", "theirs", "Cookie",
		"cove_session_1=x; mine=1")...); s.Header.Get("X-Api-Key") != "theirs" || s.Header.Get("Cookie") != "mine=1" {
		t.Errorf(`got %v, want header X-Api-Key "theirs" and header Cookie "mine=1"`, s.Header)
	}
}

func (r *rig) statusAs(name string, header []string) string {
	r.t.Helper()
	return r.object(r.do("GET", "/api/v1/sandbox/"+name, "", header...)).Status
}

// TestOtherOwnersAreInvisible: a sandbox is invisible to other owners in every API.
func TestOtherOwnersAreInvisible(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	anna, bert, nobody := []string{"X-Test-Subject", "anna"}, []string{"X-Test-Subject", "auth0|bert@x.org"}, []string{}
	r.create(`{"name":"a"}`, anna...)
	mine := r.create(`{"name":"a"}`, bert...) // names are unique per owner
	if !strings.HasPrefix(mine.User, "sub-") || len(mine.User) != 44 {
		t.Errorf(`got %q, want 44 bytes that start with "sub-"`, mine.User)
	}
	r.create(`{"name":"only-anna"}`, anna...)
	for _, who := range [][]string{bert, nobody} {
		for _, c := range []struct{ method, path string }{
			{"GET", ""}, {"DELETE", ""}, {"POST", "/extend"}, {"POST", "/pause"}, {"POST", "/resume"}, {"POST", "/stop"}, {"POST", "/start"},
			{"GET", "/network"}, {"PUT", "/network"}, {"GET", "/logs"}, {"GET", "/stats"}, {"GET", "/events"},
		} {
			if a := r.do(c.method, "/api/v1/sandbox/only-anna"+c.path, "", who...); a.Status != 404 {
				t.Errorf("%v %s %s: got %d %s, want 404", who, c.method, c.path, a.Status, a.Body)
			}
		}
		for _, path := range []string{"/sandbox/only-anna/x", "/sandbox/only-anna/ws", "/sandbox/only-anna", "/sandbox/only-anna/proxy/3000/"} {
			if a := r.do("GET", path, "", who...); a.Status != 404 {
				t.Errorf("%v %s: got %d %s, want 404", who, path, a.Status, a.Body)
			}
		}
		if a := r.do("GET", "/x", "", append(who, "Host", "3000-only-anna.localhost")...); a.Status != 404 {
			t.Errorf("%v: got %d %s, want 404", who, a.Status, a.Body)
		}
		if a := r.do("GET", "/api/v1/sandbox", "", who...); strings.Contains(a.Body, "only-anna") {
			t.Errorf(`%v: got %s, want body without "only-anna"`, who, a.Body)
		}
		agent := r.agent(as{"X-Test-Subject", append(who, "", "")[1]})
		for tool, args := range map[string]object{
			"getSandbox": {"name": "only-anna"}, "deleteSandbox": {"name": "only-anna"},
			"pauseSandbox": {"name": "only-anna"}, "resumeSandbox": {"name": "only-anna"},
			"sandboxExecutor": {"sandbox_name": "only-anna", "tool_name": "say"},
		} {
			if res := agent.call(tool, args); !res.IsError || !strings.Contains(said(res), "no sandbox") {
				t.Errorf(`%v %s: got %s, want an error and reply that contains "no sandbox"`, who, tool, said(res))
			}
		}
		if res := agent.call("listSandboxes", object{}); strings.Contains(said(res), "only-anna") {
			t.Errorf(`%v: got %s, want reply without "only-anna"`, who, said(res))
		}
	}
	if s := r.statusAs("only-anna", anna); s != "running" {
		t.Errorf(`got %v, want "running"`, s)
	}
	// A caller cannot set its identity with the header that passes it into the sandbox.
	req := as{"X-Cove-Internal-Call", `{"Subject":"anna","Role":"admin"}`}
	if res := r.agent(req).call("getSandbox", object{"name": "only-anna"}); !res.IsError {
		t.Errorf("got %v, want an error", said(res))
	}
	if o := r.object(r.do("GET", "/api/v1/sandbox/a", "", bert...)); o.ID != mine.ID {
		t.Error("got the other owner's sandbox of that name")
	}
}

func TestNoForwardProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	req, err := http.NewRequest("CONNECT", r.server.URL+"/sandbox/a/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "3000-a.localhost"
	if a := r.send(req); a.Status != 405 && a.Status != 404 {
		t.Errorf("got %d %s, want 405", a.Status, a.Body)
	}
}
