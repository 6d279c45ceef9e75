package cove

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// kind says which callers may use an operation.
type kind int

const (
	public  kind = iota // all callers
	looks               // every key; shows only the caller's own objects
	makes               // keys with write access, for their own tenant
	reads               // callers with read access to the sandbox
	writes              // callers with write access to the sandbox
	governs             // admins
	enters              // into the sandbox, read-only
	uses                // into the sandbox, with write access
)

// request is how an operation is called. {name} is the sandbox, by ID for callers
// that do not own it.
type request struct {
	kind   kind
	method string
	path   string
	body   string
	ok     int // status if it is allowed; 0: any except a rejection
}

// pinned are the operations for all callers, and those for admins only. The access to all
// others follows from their Spec: an operation on a sandbox requires read or write access
// to it. Any other operation requires a key, or a key with write access.
var pinned = map[string]kind{
	"health_live": public, "template_upload": public,
	"key_add": governs, "key_list": governs, "key_revoke": governs, "audit_tail": governs,
	"audit_verify": governs, "health_metrics": governs, "hub_doctor": governs,
}

// special are requests that do not follow from the Spec.
var special = map[string]request{
	"egress_allow":     {writes, "POST", "/api/v1/sandbox/{name}/egress/allow", `{"rules":["example.com"]}`, 0},
	"egress_deny":      {writes, "POST", "/api/v1/sandbox/{name}/egress/deny", `{"hosts":["example.com"]}`, 0},
	"e2b_timeout":      {writes, "POST", "/sandboxes/{name}/timeout", `{"timeout":60}`, 204},
	"sandbox_proxy":    {enters, "GET", "/sandbox/{name}/x", "", 200},
	"sandbox_rollback": {writes, "POST", "/api/v1/sandbox/{name}/rollback", `{"snapshot":"of-{name}"}`, 200},
	"sandbox_rename":   {writes, "POST", "/api/v1/sandbox/{name}/rename", `{"new_name":"api"}`, 400},
	// The server inside the sandboxes of this test is not Cove's.
	"sandbox_ports":         {writes, "GET", ofSandbox + "/ports", "", 503},
	"sandbox_processes":     {writes, "GET", ofSandbox + "/processes", "", 503},
	"sandbox_activity_list": {writes, "GET", ofSandbox + "/activity", "", 503},
	"sandbox_signal":        {writes, "POST", ofSandbox + "/processes/1/signal", "{}", 503},

	"e2b_other": {looks, "GET", "/v2/none", "", 404},
	// The ticket in the query is the credential.
	"template_upload": {public, "PUT", "/api/v1/template/upload?upload=x", "", 403},

	"audit_tail":         {governs, "GET", "/api/v1/audit?minutes=0.001", "", 200},
	"auth_create_ticket": {looks, "POST", "/tickets", "", 200},
	"mcp":                {looks, "POST", "/mcp", `{"method":"tools/list"}`, 200},
}

const (
	ofSandbox = "/api/v1/sandbox/{name}"
	ofClient  = "/sandboxes/"
)

// requestFor derives how an operation is called, and which callers may call it.
func requestFor(t *testing.T, o op.Op) request {
	t.Helper()
	want, isPinned := pinned[o.Name]
	if o.Public != (isPinned && want == public) || (o.Access == op.AccessAdmin) != (isPinned && want == governs) {
		t.Errorf("operation %s: its access differs from what is pinned in this test; decide which callers may use it", o.Name)
	}
	if r, ok := special[o.Name]; ok {
		return r
	}
	method, path := o.MethodPath()
	// E2B's clients address sandboxes by a different path.
	path = strings.Replace(path, ofClient+"{id}", ofClient+"{name}", 1)
	r := request{kind: want, method: method, path: path}
	onSandbox, changes := strings.HasPrefix(path, ofSandbox) || strings.Contains(path, ofClient+"{name}"),
		o.RequiredAccess(httptest.NewRequest(method, "/", nil)) != op.AccessRead
	switch {
	case isPinned:
	case onSandbox && changes:
		r.kind = writes
	case onSandbox:
		r.kind = reads
	case changes:
		r.kind = makes
	default:
		r.kind = looks
	}
	if !onSandbox {
		r.path = regexp.MustCompile(`{[^}]*}`).ReplaceAllString(strings.TrimSuffix(path, "{$}"), "none-{n}")
	}
	if o.In != nil && method != http.MethodGet && method != http.MethodDelete {
		b, err := json.Marshal(required(o, func(f *op.Field) bool { return f.Source == op.Body }))
		if err != nil {
			t.Fatal(err)
		}
		r.body = string(b)
	}
	return r
}

// required sets each required field of an operation's input to some value.
func required(o op.Op, of func(*op.Field) bool) map[string]any {
	in := map[string]any{}
	for _, f := range o.In().AllFields() {
		if f.Required && of(f) {
			in[f.Name] = "none-{n}"
		}
	}
	return in
}

// lets reports whether a status means that the caller was admitted.
func (r request) lets(status int) bool {
	switch {
	case r.ok != 0:
		return status == r.ok
	case status == http.StatusNotFound:
		return r.kind != reads && r.kind != writes // not found is about another object, not the sandbox
	}
	return status != http.StatusUnauthorized && status != http.StatusForbidden && (status < 500 || status == http.StatusNotImplemented)
}

// doors are entry points of sandboxes that the table does not contain.
var doors = map[string]request{
	"proxy post":      {uses, "POST", "/sandbox/{name}/v1/x", `{}`, 200},
	"proxy head":      {enters, "HEAD", "/sandbox/{name}/x", "", 200},
	"proxy options":   {uses, "PATCH", "/sandbox/{name}/x", "", 200},
	"proxy root":      {enters, "GET", "/sandbox/{name}", "", 308},
	"proxy port":      {enters, "GET", "/sandbox/{name}/proxy/3000/", "", 200},
	"proxy websocket": {uses, "WS", "/sandbox/{name}/ws", "", 101},
	"port websocket":  {uses, "WS", "/sandbox/{name}/proxy/3000/ws", "", 101},
	"preview":         {enters, "GET", "host:/x", "", 200},
	"preview post":    {uses, "POST", "host:/x", "", 200},
}

// toolArgs are arguments of tools that need a real value.
var toolArgs = map[string]map[string]any{
	"sandboxExecutor": {"tool_name": "say"},
	"rollbackSandbox": {"snapshot": "of-{name}"},
}

// toolKind derives which callers may use a tool.
func toolKind(o op.Op) (k kind, onSandbox bool) {
	_, path := o.MethodPath()
	onSandbox = strings.HasPrefix(path, ofSandbox)
	for _, f := range o.In().AllFields() {
		// The hub's own tools use different names for the argument with the sandbox.
		onSandbox = onSandbox || path == "/mcp" && f.Required && (f.Name == "name" || f.Name == "sandbox_name")
	}
	access := o.RequiredAccess(nil)
	switch {
	case access == op.AccessAdmin:
		return governs, onSandbox
	case onSandbox && access == op.AccessRead:
		return reads, true
	case onSandbox:
		return writes, true
	case access == op.AccessRead:
		return looks, false
	}
	return makes, false
}

// caller is a client with its credentials.
type caller struct {
	name   string
	secret string
	sign   func(sandbox.Sandbox) string // creates the secret of a share
}

// at returns the caller with a secret for this sandbox.
func (c caller) at(sb sandbox.Sandbox) caller {
	if c.sign != nil {
		c.secret = c.sign(sb)
	}
	return c
}

// want is the status that a caller gets; 0 means that it is admitted.
func (k kind) want(who string) int {
	if k == public {
		return 0
	}
	switch who {
	case "nobody", "revoked", "expired share", "revoked share", "forged share":
		return http.StatusUnauthorized
	case "share":
		if k == enters || k == uses {
			return 0
		}
		return http.StatusForbidden
	case "looking share":
		if k == enters {
			return 0
		}
		return http.StatusForbidden
	case "share of another":
		if k == enters || k == uses {
			return http.StatusNotFound
		}
		return http.StatusForbidden
	case "other":
		if k == governs {
			return http.StatusForbidden
		}
		if k == looks || k == makes {
			return 0
		}
		return http.StatusNotFound
	case "viewer":
		if k == looks || k == reads || k == enters {
			return 0
		}
		return http.StatusForbidden
	case "user":
		if k == governs {
			return http.StatusForbidden
		}
	}
	return 0
}

// arena is a tenant with a sandbox, and all callers that try to enter it.
type arena struct {
	*rig
	n       int
	callers []caller
}

func newArena(t *testing.T) *arena {
	a := &arena{rig: newRig(t, nil)}
	user, _ := a.key("acme", "user")
	viewer, _ := a.key("acme", "viewer")
	other, _ := a.key("other", "user")
	admin, _ := a.key("root", "admin")
	revoked, id := a.key("acme", "admin")
	a.must(a.admin, "DELETE", "/api/v1/key/"+id, "")
	elsewhere := a.box("acme", "elsewhere")
	link := func(sb sandbox.Sandbox, body string) string {
		token, _ := a.share(user, sb.ID, body)
		return token
	}
	expired := link(elsewhere, `{"minutes":0.03}`) // times are stored in whole seconds
	testenv.Poll(t, "the link has expired", func() bool {
		return a.do(expired, "GET", "/sandbox/"+elsewhere.ID+"/", "").status == http.StatusUnauthorized
	})
	a.callers = []caller{
		{name: "nobody"}, {name: "other", secret: other}, {name: "viewer", secret: viewer},
		{name: "user", secret: user}, {name: "admin", secret: admin}, {name: "revoked", secret: revoked},
		{name: "share", sign: func(sb sandbox.Sandbox) string { return link(sb, `{}`) }},
		{name: "looking share", sign: func(sb sandbox.Sandbox) string { return link(sb, `{"read_only":true}`) }},
		{name: "share of another", sign: func(sandbox.Sandbox) string { return link(elsewhere, `{}`) }},
		{name: "revoked share", sign: func(sb sandbox.Sandbox) string {
			token, id := a.share(user, sb.ID, `{}`)
			a.must(user, "DELETE", "/api/v1/share/"+id, "")
			return token
		}},
		{name: "forged share", sign: func(sb sandbox.Sandbox) string {
			token := link(sb, `{}`)
			return token[:len(token)-2] + "xx"
		}},
		{name: "expired share", secret: expired},
	}
	return a
}

// fresh creates a sandbox of acme and a snapshot of it.
func (a *arena) fresh() sandbox.Sandbox {
	a.t.Helper()
	a.n++
	sb := a.box("acme", fmt.Sprintf("box-%d", a.n))
	if _, err := a.provider.Snapshot(a.t.Context(), sb.ID, "of-"+sb.Spec.Name); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.provider.Snapshot(a.t.Context(), sb.ID, "of-"+sb.ID); err != nil {
		a.t.Fatal(err)
	}
	return sb
}

// spoken returns the name that a caller uses for the sandbox.
func spoken(c caller, sb sandbox.Sandbox) string {
	if strings.Contains(c.name, "share") || c.name == "admin" || c.name == "other" {
		return sb.ID
	}
	return sb.Spec.Name
}

// knock sends a request as a caller.
func (a *arena) knock(c caller, sb sandbox.Sandbox, r request) int {
	a.t.Helper()
	name := spoken(c, sb)
	a.n++
	fill := strings.NewReplacer("{name}", name, "{n}", fmt.Sprint(a.n))
	path, body := fill.Replace(r.path), fill.Replace(r.body)
	if r.method == "WS" {
		o := &websocket.DialOptions{HTTPHeader: http.Header{}}
		if c.secret != "" {
			o.HTTPHeader.Set("Authorization", "Bearer "+c.secret)
		}
		conn, res, err := websocket.Dial(a.t.Context(), a.server.URL+path, o)
		if err == nil {
			conn.CloseNow()
		}
		if res == nil {
			a.t.Fatalf("got %v, want a response", err)
		}
		return res.StatusCode
	}
	if rest, ok := strings.CutPrefix(path, "host:"); ok {
		return a.do(c.secret, r.method, rest, body, "Host", "3000-"+name+".localhost").status
	}
	return a.do(c.secret, r.method, path, body).status
}

// TestMatrix: every route, for every kind of caller.
func TestMatrix(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	rows := maps.Clone(doors)
	for _, o := range a.hub.Table.All() {
		rows[o.Name] = requestFor(t, o)
	}
	for name := range pinned {
		if _, ok := a.hub.Table.Get(name); !ok {
			t.Errorf("%s is pinned, but the table does not have it", name)
		}
	}
	// Rejected and read-only callers change nothing, so they share one sandbox.
	sb := a.fresh()
	var here []caller
	for _, c := range a.callers {
		here = append(here, c.at(sb))
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		r := rows[name]
		let := []caller{}
		for i, c := range here {
			want := r.kind.want(c.name)
			if want == 0 {
				let = append(let, a.callers[i])
				continue
			}
			if got := a.knock(c, sb, r); got != want {
				t.Errorf("%s as %s: got %d, want %d", name, c.name, got, want)
			}
		}
		if now, err := a.provider.Get(t.Context(), sb.ID); err != nil || now.State != sandbox.Running {
			t.Errorf("%s: a caller without permission changed it: got %v %v, want state running", name, now.State, err)
		}
		for _, c := range let {
			own := sb
			if r.kind == writes {
				own = a.fresh()
			}
			if got := a.knock(c.at(own), own, r); !r.lets(got) {
				t.Errorf("%s as %s: got %d, want it admitted", name, c.name, got)
			}
		}
	}
}

// TestToolMatrix: every tool, for every kind of caller.
func TestToolMatrix(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, tool := range a.hub.hub.Tools() {
		o, name := tool.Op, tool.Op.Name
		kind, onSandbox := toolKind(o)
		for _, c := range a.callers {
			sb := a.fresh()
			c = c.at(sb)
			args := required(o, func(*op.Field) bool { return true })
			if onSandbox {
				for _, field := range []string{"name", "sandbox_name"} {
					if _, ok := args[field]; ok {
						args[field] = "{name}"
					}
				}
			}
			maps.Copy(args, toolArgs[name])
			a.n++
			for k, v := range args {
				args[k] = strings.NewReplacer("{name}", spoken(c, sb), "{n}", fmt.Sprint(a.n)).Replace(v.(string))
			}
			status, text, failed := a.tool(c.secret, name, args)
			switch want := kind.want(c.name); {
			case strings.Contains(c.name, "share") && want != http.StatusUnauthorized:
				if status != http.StatusForbidden {
					t.Errorf("%s as %s: got %d %s, want 403", name, c.name, status, text)
				}
			case want == http.StatusUnauthorized:
				if status != want {
					t.Errorf("%s as %s: got %d %s, want %d", name, c.name, status, text, want)
				}
			case want == http.StatusNotFound:
				if !failed || !strings.Contains(text, "no sandbox") {
					t.Errorf("%s as %s: got %s, want an error that the sandbox does not exist", name, c.name, text)
				}
			case want == http.StatusForbidden:
				if !failed || !strings.Contains(text, "role") {
					t.Errorf("%s as %s: got %s, want a rejection because of its role", name, c.name, text)
				}
			case failed && (strings.Contains(text, "role") || strings.Contains(text, "no sandbox")):
				t.Errorf("%s as %s: got %s, want it admitted", name, c.name, text)
			}
			if _, err := a.provider.Get(t.Context(), sb.ID); err != nil && kind.want(c.name) != 0 {
				t.Errorf("%s as %s: got no sandbox, want it unchanged", name, c.name)
			}
		}
	}
}

// TestNothingOfOthersShows: lists and events contain only the caller's own objects.
func TestNothingOfOthersShows(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	sb := a.fresh()
	secret := map[string]string{}
	for _, c := range a.callers {
		secret[c.name] = c.secret
	}
	if r := a.do(secret["user"], "POST", "/api/v1/volume", `{"name":"box-volume"}`); r.status != 200 {
		t.Fatalf("got %v, want status 200", r.body)
	}
	if r := a.do(secret["user"], "POST", "/api/v1/sandbox/"+sb.Spec.Name+"/share", `{}`); r.status != 200 {
		t.Fatalf("got %v, want status 200", r.body)
	}
	for _, path := range []string{"/api/v1/sandbox", "/api/v1/snapshot", "/api/v1/volume", "/api/v1/share"} {
		if r := a.do(secret["other"], "GET", path, ""); r.status != 200 || strings.Contains(r.body, "box") || strings.Contains(r.body, sb.ID) {
			t.Errorf(`%s: got %s, want status 200, body without "box" and %q`, path, r.body, sb.ID)
		}
		if r := a.do(secret["other"], "GET", path+"?user=acme", ""); strings.Contains(r.body, "box-") || strings.Contains(r.body, sb.ID) {
			t.Errorf(`%s: got %s, want body without "box-" and %q`, path, r.body, sb.ID)
		}
		if r := a.do(secret["viewer"], "GET", path, ""); r.status != 200 || !strings.Contains(r.body, "box") && !strings.Contains(r.body, sb.ID) {
			t.Errorf("%s: %s", path, r.body)
		}
		if r := a.do(secret["admin"], "GET", path+"?user=*", ""); r.status != 200 ||
			!strings.Contains(r.body, "box") && !strings.Contains(r.body, sb.ID) {
			t.Errorf("%s: %s", path, r.body)
		}
	}
	// An admin reaches it at the address in the list.
	if r := a.do(secret["admin"], "GET", "/api/v1/sandbox?user=acme", ""); !strings.Contains(r.body, "/sandbox/"+sb.ID+"/") {
		t.Errorf("got %v, want body that contains %q", r.body, "/sandbox/"+sb.ID+"/")
	}
}

// TestSharesOfAPort: a link to a port gives access to that port only, for any path.
func TestSharesOfAPort(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	sb := a.fresh()
	user := a.callers[slices.IndexFunc(a.callers, func(c caller) bool { return c.name == "user" })].secret
	r := a.do(user, "POST", "/api/v1/sandbox/"+sb.Spec.Name+"/share", `{"port":3000,"minutes":5}`)
	token := field(t, r.data, "token")
	if r.status != 200 || !strings.HasPrefix(token, "covs_") {
		t.Fatalf(`got %v, want status 200 and token that starts with "covs_"`, r.body)
	}
	at := "/sandbox/" + sb.ID
	if got := a.do(token, "GET", at+"/proxy/3000/x", ""); got.status != 200 || got.body != "inside "+sb.ID+" port 3000" {
		t.Errorf("got %d %s, want 200", got.status, got.body)
	}
	for _, path := range []string{"", "/", "/v1/shell/exec", "/proxy/3001/", "/proxy/30000/",
		"/proxy/3000%2f..%2f..%2fv1/x", "/proxy", "//proxy/3000/", "/x/../proxy/3000/"} {
		if got := a.do(token, "GET", at+path, ""); got.status != 404 {
			t.Errorf("%s: got %d %s, want 404", path, got.status, got.body)
		}
	}
	// Dot segments below the port are passed through.
	if got := a.do(token, "GET", at+"/proxy/3000/../../v1/x", "", "X-Aio-Proxy-Port", "22"); got.status != 200 ||
		got.body != "inside "+sb.ID+" port 3000" {
		t.Errorf("got %d %s, want 200", got.status, got.body)
	}
	if got := a.do(token, "GET", "/x", "", "Host", "3001-"+sb.ID+".localhost"); got.status != 404 {
		t.Errorf("got %d %s, want 404", got.status, got.body)
	}

	// The link itself sets a cookie for this sandbox and redirects to the port.
	link := strings.TrimPrefix(field(t, r.data, "url"), a.server.URL)
	opened := a.do("", "GET", link, "")
	if opened.status != 303 || opened.header.Get("Location") != at+"/proxy/3000/" {
		t.Fatalf("got %d %v, want status 303 and header Location %q", opened.status, opened.header, at+"/proxy/3000/")
	}
	cookie, rest, _ := strings.Cut(opened.header.Get("Set-Cookie"), ";")
	if !strings.Contains(rest, "Path="+at+"/") {
		t.Errorf("got %v, want %q in it", rest, "Path="+at+"/")
	}
	if got := a.do("", "GET", at+"/proxy/3000/", "", "Cookie", cookie); got.status != 200 {
		t.Errorf("got %d %s, want 200", got.status, got.body)
	}
	if got := a.do("", "GET", "/api/v1/sandbox", "", "Cookie", cookie); got.status != 403 {
		t.Errorf("got %d %s, want 403", got.status, got.body)
	}
	if got := a.do(user, "DELETE", "/api/v1/share/"+field(t, r.data, "id"), ""); got.status != 200 {
		t.Fatal(got.body)
	}
	if got := a.do("", "GET", at+"/proxy/3000/", "", "Cookie", cookie); got.status != 401 {
		t.Errorf("got %d %s, want 401", got.status, got.body)
	}
	if got := a.do("", "GET", link, ""); got.status != 403 {
		t.Errorf("got %d %s, want 403", got.status, got.body)
	}
}

// TestSharesEndWithTheirKeyAndSandbox: a share expires with its key and with its sandbox.
func TestSharesEndWithTheirKeyAndSandbox(t *testing.T) {
	t.Parallel()
	a := newRig(t, nil)
	one, id := a.key("acme", "user")
	two, _ := a.key("acme", "user")
	share := func(key, name string) string {
		t.Helper()
		return field(t, a.do(key, "POST", "/api/v1/sandbox/"+name+"/share", `{}`).data, "token")
	}
	sb, gone := a.box("acme", "a"), a.box("acme", "b")
	ofOne, ofTwo, ofGone := share(one, "a"), share(two, "a"), share(two, "b")
	a.must(a.admin, "DELETE", "/api/v1/key/"+id, "")
	if r := a.do(two, "DELETE", "/api/v1/sandbox/b", ""); r.status != 200 {
		t.Fatalf("got %v, want status 200", r.body)
	}
	for token, want := range map[string]int{ofOne: 401, ofTwo: 200} {
		if r := a.do(token, "GET", "/sandbox/"+sb.ID+"/", ""); r.status != want {
			t.Errorf("%d, want %d", r.status, want)
		}
	}
	if r := a.do(ofGone, "GET", "/sandbox/"+gone.ID+"/", ""); r.status != 401 {
		t.Errorf("got %d, want status 401", r.status)
	}
}

// TestFirstKey: a hub with tenants creates the first key itself, once.
func TestFirstKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var out strings.Builder
	if err := r.hub.hub.CreateFirstKey(&out); err != nil {
		t.Fatal(err)
	}
	path := r.cfg.State + "/admin.key"
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(out.String(), path) {
		t.Fatalf("got %v %v %v, want mode 0600 and %q in it", err, info, out.String(), path)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if a := r.do(strings.TrimSpace(string(secret)), "GET", "/api/v1/key", ""); a.status != 200 {
		t.Fatalf("got %v, want status 200", a.body)
	}
	// A hub does not start with the key of a client in its environment.
	cfg := r.cfg
	cfg.APIKey = strings.TrimSpace(string(secret))
	if err := checkSettings(cfg); err == nil || !strings.Contains(err.Error(), "tenant's key") {
		t.Errorf(`got %v, want an error that contains "tenant's key"`, err)
	}
	out.Reset()
	if err := r.hub.hub.CreateFirstKey(&out); err != nil || out.Len() > 0 {
		t.Errorf("got %v %v, want no output", err, out.String())
	}
}

// TestWhatIsOpenEndsWithItsKey: sockets and streams are closed when the key or
// link that opened them is revoked.
func TestWhatIsOpenEndsWithItsKey(t *testing.T) {
	t.Parallel()
	a := newRig(t, nil)
	secret, id := a.key("acme", "user")
	sb := a.box("acme", "a")
	lender, _ := a.key("acme", "user")
	token, share := a.share(lender, sb.ID, `{}`)
	dial := func(key, name string) *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(t.Context(), a.server.URL+"/sandbox/"+name+"/ws",
			&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	byKey, byShare := dial(secret, "a"), dial(token, sb.ID)
	defer byKey.CloseNow()
	defer byShare.CloseNow()
	req, err := http.NewRequestWithContext(t.Context(), "GET", a.server.URL+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	events, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	a.must(lender, "DELETE", "/api/v1/share/"+share, "")
	a.must(a.admin, "DELETE", "/api/v1/key/"+id, "")
	for name, c := range map[string]*websocket.Conn{"key": byKey, "share": byShare} {
		if _, _, err := c.Read(t.Context()); err == nil {
			t.Errorf("the socket of the %s is open, want it closed", name)
		}
	}
	if _, err := io.Copy(io.Discard, events.Body); err != nil && t.Context().Err() != nil {
		t.Error("the stream is open, want it closed")
	}
}
