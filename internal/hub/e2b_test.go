package hub

import (
	"encoding/json"
	"strings"
	"testing"

	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
)

// ruleSecrets returns the names of a user's secrets.
func (r *rig) ruleSecrets(header ...string) (names []string) {
	r.t.Helper()
	a := r.do("GET", "/api/v1/secret", "", header...)
	var list []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(a.Data, &list); err != nil || strings.Contains(a.Body, "hunter") {
		r.t.Fatalf("secrets: got %s and error %v, want a list without values", a.Body, err)
	}
	for _, x := range list {
		names = append(names, x.Name)
	}
	return names
}

// ruleRig is a hub whose clients use rules. All values begin with hunter.
type ruleRig struct{ *rig }

const e2bRules = `"rules":{"api.example.com":[{"transform":{"headers":{"X-Key":"hunter1"}}}]}`

// make creates a sandbox of anna.
func (r *ruleRig) make(more string) (id string) {
	r.t.Helper()
	return created(r.t, r.must(201, "POST", "/v2/sandboxes", `{"templateID":"base"`+more+`}`)).SandboxID
}

// must sends a request of anna and checks the status, and that the reply contains no value.
func (r *ruleRig) must(status int, method, path, body string) reply {
	r.t.Helper()
	a := r.do(method, path, body, asUser("anna")...)
	if a.Status != status || strings.Contains(a.Body, "hunter") {
		r.t.Errorf("%s %s %s: got %d %s, want %d without a value", method, path, body, a.Status, a.Body, status)
	}
	return a
}

// TestE2BRules: requests to a host get the headers of the rules of an E2B client, as long as a sandbox has the rule. No reply
// contains the values.
func TestE2BRules(t *testing.T) {
	t.Parallel()
	var inside initServers
	with := setup{more: inside.add, stores: openSecrets(t), hub: Config{changeEgress: world(t, "X-Key")}}
	with.stores.audit, with.stores.auditDir = openAudit(t)
	r := &ruleRig{newRig(t, with)}
	anna := asUser("anna")
	check := func(n int, host, want string) {
		t.Helper()
		if got := r.fetchOut(n, host); got != "got "+want {
			t.Errorf("sandbox %d, %s: got %q, want %q", n, host, got, "got "+want)
		}
	}
	first := r.make(`,"network":{` + e2bRules + `}`)
	check(0, "api.example.com", "hunter1")
	check(0, "other.example.com", "")
	shown := `"api.example.com":[{"transform":{"headers":{"X-Key":"[redacted]"}}}]`
	if a := r.must(200, "GET", "/sandboxes/"+first, ""); !strings.Contains(a.Body, shown) {
		t.Errorf("got %s, want the rule without its value", a.Body)
	}
	second := r.make(`,"network":{` + e2bRules + `}`)
	check(1, "api.example.com", "hunter1")
	if names := r.ruleSecrets(anna...); len(names) != 1 {
		t.Errorf("got the secrets %q, want one for both sandboxes", names)
	}
	if names := r.ruleSecrets(asUser("bert")...); len(names) != 0 {
		t.Errorf("another user: got the secrets %q, want none", names)
	}
	r.must(204, "PUT", "/sandboxes/"+first+"/network", "{"+strings.Replace(e2bRules, "hunter1", "hunter2", 1)+"}")
	check(0, "api.example.com", "hunter2")
	check(1, "api.example.com", "hunter1")
	r.must(204, "PUT", "/sandboxes/"+first+"/network", "{}")
	check(0, "api.example.com", "")
	if names := r.ruleSecrets(anna...); len(names) != 1 {
		t.Errorf("after the rule was removed: got the secrets %q, want that of the other sandbox", names)
	}
	r.must(201, "POST", "/sandboxes/"+second+"/fork", "{}")
	r.must(204, "DELETE", "/sandboxes/"+second, "")
	check(2, "api.example.com", "hunter1")
	for _, sb := range r.names() {
		r.must(200, "DELETE", "/api/v1/sandbox/"+sb, "")
	}
	r.must(404, "DELETE", "/sandboxes/"+first, "")
	if names := r.ruleSecrets(anna...); len(names) != 0 {
		t.Errorf("without sandboxes: got the secrets %q, want none", names)
	}
	for _, line := range lines(t, with.stores.auditDir, auditlog.Filter{}) {
		if b, _ := json.Marshal(line); strings.Contains(string(b), "hunter") || strings.Contains(string(b), "e2b-rule") {
			t.Errorf("audit log: got %s, want no value of a rule, and the name of the sandbox", b)
		}
	}
}

// TestE2BRuleErrors: rules that the hub cannot apply are refused, and leave no secret.
func TestE2BRuleErrors(t *testing.T) {
	t.Parallel()
	var inside initServers
	r := &ruleRig{newRig(t, setup{more: inside.add, stores: openSecrets(t)})}
	plain := r.make("")
	r.must(409, "PUT", "/sandboxes/"+plain+"/network", "{"+e2bRules+"}")
	for _, bad := range []string{`{"api.example.com":[{"transform":{"headers":{"Host":"hunter"}}}]}`,
		`{"192.0.2.1":[{"transform":{"headers":{"X-Key":"hunter"}}}]}`,
		`{"api.example.com":[{"transform":{"headers":{"X-Key":"hunter\r\nX: y"}}}]}`,
		`{"a.example":[{"transform":{"headers":{"X-Key":"hunter3"}}}],"*.com":[{"transform":{"headers":{"X-Key":"hunter3"}}}]}`} {
		a := r.must(400, "POST", "/v2/sandboxes", `{"templateID":"base","network":{"rules":`+bad+`}}`)
		if !strings.Contains(a.Body, `"code":400,"message":"network.rules: `) {
			t.Errorf("%s: got %s, want E2B's error form", bad, a.Body)
		}
	}
	r.must(400, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"!","path":"/v"}],"network":{`+
		strings.Replace(e2bRules, "hunter1", "hunter4", 1)+`}}`)
	if names := r.ruleSecrets(asUser("anna")...); len(names) != 0 {
		t.Errorf("after failed creates: got the secrets %q, want none", names)
	}
}

// TestE2BMask: requests of E2B clients to ports have the Host header that the sandbox's creator selected, and no others.
func TestE2BMask(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{hub: Config{Domains: []string{"localhost"}, PublicPorts: true}})
	made := created(t, r.do("POST", "/v2/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"app.example:${PORT}"}}`))
	port, daemon := "3000-"+made.SandboxID+".localhost", "49983-"+made.SandboxID+".localhost"
	token := []string{"E2b-Sandbox-Id", made.SandboxID, "E2b-Traffic-Access-Token", made.TrafficToken}
	for what, c := range map[string]struct {
		want   string
		header []string
	}{
		"port":            {"app.example:3000", []string{"Host", port}},
		"port by header":  {"app.example:4000", append(token, "E2b-Sandbox-Port", "4000")},
		"processes":       {daemon, []string{"Host", daemon, "X-Access-Token", made.AccessToken}},
		"interpreter":     {"hub.example", append(token, "E2b-Sandbox-Port", "49999", "Host", "hub.example")},
		"another address": {"3000-" + r.names()[0] + ".localhost", []string{"Host", "3000-" + r.names()[0] + ".localhost"}},
	} {
		s := r.seen("GET", "/x", "", c.header...)
		if s.Host != c.want {
			t.Errorf("%s: got the host %q, want %q", what, s.Host, c.want)
		}
		if what == "port" && s.Header.Get("X-Forwarded-Host") != port {
			t.Errorf("%s: got X-Forwarded-Host %q, want %q", what, s.Header.Get("X-Forwarded-Host"), port)
		}
	}
	if a := r.do("PUT", "/sandboxes/"+made.SandboxID+"/network", "{}"); a.Status != 204 {
		t.Fatalf("got %d %s, want 204", a.Status, a.Body)
	}
	if s := r.seen("GET", "/x", "", "Host", port); s.Host != "app.example:3000" {
		t.Errorf("after a change of the egress policy: got the host %q, want the same", s.Host)
	}
}

// TestE2BErrors: E2B clients can read the errors of all their routes, also of those that the hub does not have.
func TestE2BErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	made := created(t, r.do("POST", "/v2/sandboxes", `{"templateID":"base"}`))
	one := "/sandboxes/" + made.SandboxID
	for request, want := range map[string]int{
		"GET /sandboxes/none": 404, "DELETE /sandboxes/none": 404, "GET /templates/aliases/none": 404, "POST " + one + "/resume": 409,
		"POST /v2/sandboxes x": 400, "POST /v2/sandboxes": 400, "POST /v3/templates": 400, "GET /teams": 501, "GET /volumes": 501,
		"GET " + one + "/secrets": 404, "POST " + one + "/none": 404, "GET /v2/none/x": 404, "GET /v2": 404, "GET /v3/sandboxes": 404,
		"GET /volumes/x": 404, "GET /volumecontent/x/file": 404, "DELETE /secrets/x": 404, "GET /teams/x/metrics": 404,
		"PUT /sandboxes": 405, "PATCH " + one: 405, "GET " + one + "/pause": 405, "PUT /templates/x": 405, "DELETE /snapshots": 405,
		"POST /v2/sandboxes/metrics": 404, "OPTIONS /sandboxes": 405,
	} {
		fields := append(strings.Fields(request), "")
		body := "{}"
		if fields[2] != "" {
			body = "{x"
		}
		a := r.do(fields[0], fields[1], body)
		var got struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal([]byte(a.Body), &got); a.Status != want || err != nil || got.Code != want || got.Message == "" {
			t.Errorf("%s: got %d %s, want %d in E2B's form", request, a.Status, a.Body, want)
		}
	}
	if a := r.do("PATCH", one, ""); !strings.Contains(a.Body, "use GET or DELETE") {
		t.Errorf("wrong method: got %s, want the methods of the path", a.Body)
	}
	if a := r.do("GET", "/v1/none", ""); a.Status != 404 || a.Code != "404" {
		t.Errorf("path of another API: got %d %s, want its own form", a.Status, a.Body)
	}
}

// TestE2BMetricsAreKept: sandboxes of E2B clients are measured without a request for metrics, also forks, and after a restart of
// the hub.
func TestE2BMetricsAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"own"}`)
	a := r.do("POST", "/sandboxes/"+r.sandbox("own").ID+"/fork", "{}")
	var copies []struct {
		Sandbox struct {
			ID string `json:"sandboxID"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal([]byte(a.Body), &copies); a.Status != 201 || err != nil || len(copies) != 1 {
		t.Fatalf("fork: got %d %s, want one copy", a.Status, a.Body)
	}
	own := func(id string) string { return strings.Replace(id, "sb", "sb-", 1) }
	fork := own(copies[0].Sandbox.ID)
	poll(t, "the fork is measured", func() bool { return r.provider.measured(fork) })
	made := own(created(t, r.do("POST", "/v2/sandboxes", `{"templateID":"base"}`)).SandboxID)
	r.close()
	r.provider.measured(made)
	r.open(setup{})
	poll(t, "the sandbox is measured by the next hub", func() bool { return r.provider.measured(made) })
	if r.provider.measured(r.sandbox("own").ID) {
		t.Error("a sandbox of no E2B client is measured without a request, want none")
	}
}
