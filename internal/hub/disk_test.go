package hub

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/usage"
)

// TestDisks: snapshots, forks and volumes belong to their owner in every API.
func TestDisks(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{stores: stores{quota: limited(map[string]quota.Limits{"bert": {Sandboxes: 1}})()}})
	anna, bert := asUser("anna"), asUser("bert")
	o := r.create(`{"name":"a","labels":{"x":"1"},"timeout":30}`, anna...)
	must := func(want int, method, path, body string, who ...string) reply {
		t.Helper()
		a := r.do(method, path, body, who...)
		if a.Status != want {
			t.Errorf("%s %s %s: got %d %s, want status %d", method, path, body, a.Status, a.Body, want)
		}
		return a
	}
	must(200, "POST", "/api/v1/sandbox/a/snapshot", `{"snapshot":"s"}`, anna...)
	must(409, "POST", "/api/v1/sandbox/a/snapshot", `{"snapshot":"s"}`, anna...)
	must(400, "POST", "/api/v1/sandbox/a/snapshot", `{"snapshot":"../s"}`, anna...)
	must(200, "POST", "/api/v1/sandbox/a/snapshot", `{}`, anna...)
	if a := must(200, "GET", "/api/v1/snapshot", "", anna...); strings.Count(a.Body, o.ID) != 2 {
		t.Errorf("got %v, want body that contains %q 2 times", a.Body, o.ID)
	}
	if a := must(200, "GET", "/api/v1/snapshot", "", bert...); string(a.Data) != "[]" {
		t.Errorf(`got %v, want data "[]"`, a.Body)
	}
	must(404, "DELETE", "/api/v1/snapshot/s", "", bert...)
	must(404, "POST", "/api/v1/sandbox", `{"from_snapshot":"s"}`, bert...)
	must(200, "POST", "/api/v1/sandbox", `{"name":"from","from_snapshot":"s"}`, anna...)
	must(404, "POST", "/api/v1/sandbox/a/rollback", `{"snapshot":"none"}`, anna...)
	must(200, "POST", "/api/v1/sandbox/a/rollback", `{"snapshot":"s"}`, anna...)

	var forks []lifecycle.Object
	if err := json.Unmarshal(must(200, "POST", "/api/v1/sandbox/a/fork", `{"names":["f"],"count":2}`, anna...).Data,
		&forks); err != nil || len(forks) != 2 ||
		forks[0].Name != "f" || forks[1].Name == "" || forks[0].Labels["x"] != "1" || forks[0].ID == o.ID || forks[0].Timeout != 30 {
		t.Errorf("%+v %v", forks, err)
	}
	must(400, "POST", "/api/v1/sandbox/a/fork", `{"names":["x","y"],"count":1}`, anna...)
	must(422, "POST", "/api/v1/sandbox/a/fork", `{"count":101}`, anna...)
	must(200, "GET", "/api/v1/sandbox/a/diff", "", anna...)

	must(200, "POST", "/api/v1/volume", `{"name":"v"}`, anna...)
	must(409, "POST", "/api/v1/volume", `{"name":"v"}`, anna...)
	must(200, "POST", "/api/v1/volume", `{"name":"v"}`, bert...)
	must(200, "POST", "/api/v1/sandbox", `{"name":"with","volumes":[{"name":"v","target":"/data"}]}`, anna...)
	must(409, "DELETE", "/api/v1/volume/v", "", anna...)
	must(200, "DELETE", "/api/v1/volume/v", "", bert...)
	must(404, "DELETE", "/api/v1/volume/v", "", bert...)
	must(404, "GET", "/api/v1/volume?user=anna", "", bert...)
	must(200, "DELETE", "/api/v1/sandbox/with", "", anna...)
	must(200, "DELETE", "/api/v1/volume/v", "", anna...)
	// mem does not support exports and returns an error.
	if a := must(400, "GET", "/api/v1/sandbox/a/export", "", anna...); !strings.Contains(a.Error, "cannot export sandboxes") {
		t.Errorf(`got %v, want error that contains "cannot export sandboxes"`, a.Body)
	}
	agent := r.agent(as{"X-Test-Subject", "anna"})
	if res := agent.call("forkSandbox", object{"name": "a", "names": []string{"by-agent"}}); res.IsError ||
		!strings.Contains(said(res), "by-agent") {
		t.Errorf(`got %v, want no error and reply that contains "by-agent"`, said(res))
	}
	if res := agent.call("listSnapshots", object{}); res.IsError || !strings.Contains(said(res), `"s"`) {
		t.Errorf(`got %v, want no error and reply that contains "s"`, said(res))
	}
	for _, s := range []string{"s", "by"} {
		r.do("DELETE", "/api/v1/snapshot/"+s, "", anna...)
	}
}

// TestUsage: a tenant sees only its own usage.
func TestUsage(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a","memory_limit":"2Gi"}`, asUser("anna")...)
	r.create(`{"name":"b"}`, asUser("anna")...)
	r.create(`{"name":"c"}`, asUser("bert")...)
	var u []usage.UsageOut
	a := r.do("GET", "/api/v1/usage", "", asUser("anna")...)
	if err := json.Unmarshal(a.Data, &u); err != nil || len(u) != 1 {
		t.Fatalf("got %v %v, want 1 entry", a.Body, err)
	}
	if u[0].User != "anna" || u[0].Sandboxes != 2 || u[0].Memory != "3072Mi" || u[0].CPU != "2000m" ||
		u[0].CPUSeconds != 3 || u[0].MemoryBytes != 84 || u[0].DiskBytes != 0 || u[0].Calls != 1 {
		t.Errorf("%+v", u[0])
	}
	if a := r.do("GET", "/api/v1/usage?user=bert", "", asUser("anna")...); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	var text strings.Builder
	if _, err := r.hub.cfg.Metrics.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`cove_tenant_sandboxes{tenant="anna"} 2`, `cove_tenant_sandboxes{tenant="bert"} 1`, "cove_audit_lost 0"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in %s", want, text.String())
		}
	}
}
