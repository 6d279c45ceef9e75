package hub

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/gateway"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/toolcatalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func openAudit(t *testing.T) (*auditlog.Log, string) {
	t.Helper()
	dir := t.TempDir()
	l, err := auditlog.Open(auditlog.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, dir
}

func lines(t *testing.T, dir string, f auditlog.Filter) (all []auditlog.Line) {
	t.Helper()
	if err := auditlog.Tail(t.Context(), dir, f, func(l auditlog.Line) error { all = append(all, l); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// wantLine is the part of a line of the audit log that tests compare.
type wantLine struct {
	op, method, path, sandbox, name, code, role string
	status                                      int
}

// recordedRig is a hub with an audit log of requests of all kinds about sandbox a.
type recordedRig struct {
	*rig
	dir   string
	key   []string
	id    string     // of sandbox a, which is deleted
	wants []wantLine // lines of the log
}

func newRecordedRig(t *testing.T) *recordedRig {
	t.Helper()
	l, dir := openAudit(t)
	r := newRig(t, setup{stores: stores{audit: l, auditDir: dir}, auth: &auth.Config{Token: "hunter2"}})
	key := []string{"Authorization", "Bearer hunter2"}
	o := r.create(`{"name":"a","env":{"PASSWORD":"hunter3"}}`, key...)
	r.do("POST", "/sandbox/a/v1/x?secret=hunter4", "hunter5", key...)
	r.do("GET", "/api/v1/sandbox/nowhere", "", key...)
	r.do("GET", "/sandbox/nowhere/x", "", key...)
	r.do("GET", "/api/v1/sandbox", "")
	r.do("POST", "/api/v1/sandbox/a/pause", "", key...)
	agent := r.agent(as{"Authorization", "Bearer hunter2"})
	agent.call(toolcatalog.Execute, object{"sandbox_name": "a", "tool_name": "say", "arguments": object{"x": "hunter6"}})
	r.do("DELETE", "/api/v1/sandbox/a", "", key...)

	wants := []wantLine{
		{op: "sandbox_create", sandbox: o.ID, name: "a", role: "admin", status: 200},
		{op: gateway.OpName, method: "POST", path: "/sandbox/a/v1/x", sandbox: o.ID, name: "a", role: "admin", status: 200},
		{op: "sandbox_get", name: "nowhere", code: "not_found", role: "admin", status: 404},
		{op: gateway.OpName, method: "GET", path: "/sandbox/nowhere/x", name: "nowhere", code: "not_found", role: "admin", status: 404},
		{method: "GET", path: "/api/v1/sandbox", status: 401},
		{op: "sandbox_pause", sandbox: o.ID, name: "a", role: "admin", status: 200},
		{op: "mcp:" + toolcatalog.Execute, path: "say", sandbox: o.ID, name: "a", role: "admin", status: 200},
		{op: "sandbox_delete", sandbox: o.ID, name: "a", role: "admin", status: 200},
	}
	testenv.Poll(t, "all lines are written", func() bool { return len(lines(t, dir, auditlog.Filter{})) >= len(wants) })
	return &recordedRig{r, dir, key, o.ID, wants}
}

// The audit log has a line for each request: operation, target, caller and result, also if the
// request was rejected.
func TestRequestsAreRecorded(t *testing.T) {
	t.Parallel()
	r := newRecordedRig(t)
	all := lines(t, r.dir, auditlog.Filter{})
	if len(all) != len(r.wants) {
		t.Errorf("got %d lines, want %d", len(all), len(r.wants))
	}
	for i, l := range all {
		if got := (wantLine{l.Op, l.Method, l.Path, l.Sandbox, l.Name, l.Code, l.Role, l.Status}); i < len(r.wants) && got != r.wants[i] {
			t.Errorf("line %d: got %+v, want %+v", i, got, r.wants[i])
		}
	}
	if l := all[1]; l.In != 7 || l.Out == 0 || l.TookUS == 0 {
		t.Errorf("got %+v, want 7 bytes in, and bytes out and a duration", l)
	}
	if n := len(lines(t, r.dir, auditlog.Filter{Sandbox: r.id})); n != 5 {
		t.Errorf("got %d lines about the sandbox, want 5", n)
	}
}

func TestAuditLogIsSearchedAndVerified(t *testing.T) {
	t.Parallel()
	r := newRecordedRig(t)
	key := r.key
	a := r.do("GET", "/api/v1/audit?sandbox=a", "", key...)
	if n := strings.Count(a.Body, "data: "); a.Status != 200 || n != 5 || strings.Contains(a.Body, "hunter") {
		t.Errorf("got %d with %d lines, want 200 with 5 lines and no secret: %s", a.Status, n, a.Body)
	}
	if a := r.do("GET", "/api/v1/audit?sandbox=a&lines=2", "", key...); strings.Count(a.Body, "data: ") != 2 ||
		!strings.Contains(a.Body, "sandbox_delete") {
		t.Errorf("got %s, want the last 2 lines", a.Body)
	}
	if a := r.do("GET", "/api/v1/audit?q=SANDBOX_PAUSE", "", key...); strings.Count(a.Body, "data: ") != 1 ||
		!strings.Contains(a.Body, "sandbox_pause") {
		t.Errorf("got %s, want the line that contains the text", a.Body)
	}
	if a := r.do("GET", "/api/v1/audit?q=404", "", key...); strings.Count(a.Body, "data: ") != 2 {
		t.Errorf("got %s, want the two lines with that status", a.Body)
	}
	if a := r.do("GET", "/api/v1/audit/verify", "", key...); a.Status != 200 ||
		strings.Contains(a.Body, `"problem"`) || !strings.Contains(a.Body, `"lines":`) {
		t.Errorf("got %d %s, want 200 and no problem", a.Status, a.Body)
	}
}

func TestAuditLogIsFollowed(t *testing.T) {
	t.Parallel()
	r := newRecordedRig(t)
	follow, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(follow, "GET", r.server.URL+"/api/v1/audit?lines=1&follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer hunter2")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r.do("POST", "/api/v1/sandbox", `{"name":"later"}`, r.key...)
	for in := bufio.NewScanner(res.Body); ; {
		if !in.Scan() {
			t.Fatalf("got the end of the stream (%v), want the line about the later sandbox", in.Err())
		}
		if strings.Contains(in.Text(), `"name":"later"`) {
			break
		}
	}
	cancel()
	if a := r.do("GET", "/api/v1/audit/verify", "", r.key...); a.Status != 200 || strings.Contains(a.Body, `"problem"`) {
		t.Errorf("got %d %s, want 200 and no problem", a.Status, a.Body)
	}
}

// TestUnrecordedSandboxIsDeleted: no sandbox exists without a record.
func TestUnrecordedSandboxIsDeleted(t *testing.T) {
	t.Parallel()
	l, dir := openAudit(t)
	r := newRig(t, setup{stores: stores{audit: l, auditDir: dir}})
	r.create(`{"name":"a"}`)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if a := r.do("POST", "/api/v1/sandbox", `{"name":"b"}`); a.Status != 503 || !strings.Contains(a.Error, "was deleted") {
		t.Errorf("got %d %s, want 503 and the sandbox deleted", a.Status, a.Body)
	}
	if a := r.do("POST", "/api/v1/sandbox/a/pause", ""); a.Status != 503 || !strings.Contains(a.Error, "could not be recorded") {
		t.Errorf("got %d %s, want 503 and an error that it could not be recorded", a.Status, a.Body)
	}
	list, err := r.provider.List(t.Context(), sandbox.Filter{})
	if err != nil || len(list) != 1 || r.hub.stores.quota.Usage("").Sandboxes != 1 {
		t.Errorf("got %d sandboxes, %v, usage %+v, want one", len(list), err, r.hub.stores.quota.Usage(""))
	}
}

// TestTimeoutsAreRecorded: actions of the hub without a request are recorded too.
func TestTimeoutsAreRecorded(t *testing.T) {
	t.Parallel()
	l, dir := openAudit(t)
	r := newRig(t, setup{stores: stores{audit: l, auditDir: dir}})
	sb, err := r.provider.Create(context.Background(),
		sandbox.Spec{Name: "short", Lifetime: sandbox.Lifetime{Timeout: time.Millisecond, IdleTimeout: sandbox.Never}})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "its deletion is recorded", func() bool {
		all := lines(t, dir, auditlog.Filter{Sandbox: sb.ID})
		return len(all) == 1 && all[0].Op == "clock_delete" && all[0].Role == "hub"
	})
}
