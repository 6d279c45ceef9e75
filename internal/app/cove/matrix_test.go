package cove

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/tenant"
)

// kind is who is let to do an operation.
type kind int

const (
	public  kind = iota // everybody
	looks               // whoever is signed in with a key; shows only what is the caller's
	makes               // those with a key who may change something; for their own tenant
	reads               // who may see the sandbox
	writes              // who may use the sandbox
	governs             // admins
	enters              // into the sandbox, to look
	uses                // into the sandbox, to change something
)

// row is how an operation is asked. {name} is the sandbox, by ID for those it is
// foreign to.
type row struct {
	kind   kind
	method string
	path   string
	body   string
	ok     int // status when it is allowed; 200 if zero
}

// matrix has a row for every operation of the table. An operation without one
// fails the test: decide who may use it first.
var matrix = map[string]row{
	"sandbox_create":      {makes, "POST", "/api/v1/sandbox", `{}`, 0},
	"sandbox_list":        {looks, "GET", "/api/v1/sandbox", "", 0},
	"sandbox_get":         {reads, "GET", "/api/v1/sandbox/{name}", "", 0},
	"sandbox_delete":      {writes, "DELETE", "/api/v1/sandbox/{name}", "", 0},
	"sandbox_extend":      {writes, "POST", "/api/v1/sandbox/{name}/extend", `{}`, 0},
	"sandbox_pause":       {writes, "POST", "/api/v1/sandbox/{name}/pause", "", 0},
	"sandbox_resume":      {writes, "POST", "/api/v1/sandbox/{name}/resume", "", 0},
	"sandbox_stop":        {writes, "POST", "/api/v1/sandbox/{name}/stop", "", 0},
	"sandbox_start":       {writes, "POST", "/api/v1/sandbox/{name}/start", "", 0},
	"sandbox_network":     {reads, "GET", "/api/v1/sandbox/{name}/network", "", 0},
	"sandbox_set_network": {writes, "PUT", "/api/v1/sandbox/{name}/network", `{"mode":"none"}`, 400},
	"sandbox_logs":        {reads, "GET", "/api/v1/sandbox/{name}/logs", "", 0},
	"sandbox_stats":       {reads, "GET", "/api/v1/sandbox/{name}/stats", "", 0},
	"sandbox_events":      {reads, "GET", "/api/v1/sandbox/{name}/events", "", 0},
	"hub_events":          {looks, "GET", "/api/v1/events", "", 0},
	"hub_environments":    {looks, "GET", "/api/v1/environment", "", 0},
	"hub_info":            {looks, "GET", "/api/v1/hub", "", 0},
	"sandbox_proxy":       {enters, "GET", "/sandbox/{name}/x", "", 0},
	"mcp":                 {looks, "POST", "/mcp", `{"method":"tools/list"}`, 0},
	"snapshot_create":     {writes, "POST", "/api/v1/sandbox/{name}/snapshot", `{}`, 0},
	"snapshot_list":       {looks, "GET", "/api/v1/snapshot", "", 0},
	"snapshot_delete":     {makes, "DELETE", "/api/v1/snapshot/none", "", 404},
	"sandbox_rollback":    {writes, "POST", "/api/v1/sandbox/{name}/rollback", `{"snapshot":"of-{name}"}`, 0},
	"sandbox_fork":        {writes, "POST", "/api/v1/sandbox/{name}/fork", `{}`, 0},
	"sandbox_diff":        {reads, "GET", "/api/v1/sandbox/{name}/diff", "", 0},
	"sandbox_export":      {reads, "GET", "/api/v1/sandbox/{name}/export", "", 0},
	"volume_create":       {makes, "POST", "/api/v1/volume", `{"name":"v-{n}"}`, 0},
	"volume_list":         {looks, "GET", "/api/v1/volume", "", 0},
	"volume_delete":       {makes, "DELETE", "/api/v1/volume/none", "", 404},
	"hub_usage":           {looks, "GET", "/api/v1/usage", "", 0},
	"image_import":        {makes, "POST", "/api/v1/image/none", "", 422},
	"image_list":          {looks, "GET", "/api/v1/image", "", 400},
	"image_delete":        {makes, "DELETE", "/api/v1/image/none", "", 400},
	"secret_set":          {makes, "PUT", "/api/v1/secret/s_{n}", `{"value":"x"}`, 0},
	"secret_list":         {looks, "GET", "/api/v1/secret", "", 0},
	"secret_delete":       {makes, "DELETE", "/api/v1/secret/none", "", 404},
	"share_create":        {writes, "POST", "/api/v1/sandbox/{name}/share", `{}`, 0},
	"share_list":          {looks, "GET", "/api/v1/share", "", 0},
	"share_revoke":        {makes, "DELETE", "/api/v1/share/none", "", 404},
	"share_open":          {looks, "GET", "/share", "", 400},
	"key_add":             {governs, "POST", "/api/v1/key", `{"tenant":"x"}`, 0},
	"key_list":            {governs, "GET", "/api/v1/key", "", 0},
	"key_revoke":          {governs, "DELETE", "/api/v1/key/none", "", 404},
	"audit_tail":          {governs, "GET", "/api/v1/audit?minutes=0.001", "", 0},
	"audit_verify":        {governs, "GET", "/api/v1/audit/verify", "", 0},
	"auth_create_ticket":  {looks, "POST", "/tickets", "", 0},
	"auth_check":          {looks, "GET", "/auth", "", 0},
	"health_live":         {public, "GET", "/healthz", "", 0},
	"health_ready":        {looks, "GET", "/readyz", "", 0},
	"health_metrics":      {governs, "GET", "/metrics", "", 0},
	"docs_openapi":        {looks, "GET", "/v1/openapi.json", "", 0},
	"docs_llms":           {looks, "GET", "/llms.txt", "", 0},
	"home_page":           {looks, "GET", "/", "", 307},
	"docs_page":           {looks, "GET", "/v1/docs", "", 0},
	"docs_asset":          {looks, "GET", "/v1/docs/none", "", 404},
	"vendor_asset":        {looks, "GET", "/vendor/none", "", 404},
}

// doors are further ways into sandboxes than the row of the table.
var doors = map[string]row{
	"proxy post":      {uses, "POST", "/sandbox/{name}/v1/x", `{}`, 0},
	"proxy head":      {enters, "HEAD", "/sandbox/{name}/x", "", 0},
	"proxy options":   {uses, "PATCH", "/sandbox/{name}/x", "", 0},
	"proxy root":      {enters, "GET", "/sandbox/{name}", "", 308},
	"proxy port":      {enters, "GET", "/sandbox/{name}/proxy/3000/", "", 0},
	"proxy websocket": {uses, "WS", "/sandbox/{name}/ws", "", 101},
	"port websocket":  {uses, "WS", "/sandbox/{name}/proxy/3000/ws", "", 101},
	"preview":         {enters, "GET", "host:/x", "", 0},
	"preview post":    {uses, "POST", "host:/x", "", 0},
}

// tools has every tool of the hub, with its arguments.
var toolMatrix = map[string]struct {
	kind kind
	args map[string]any
	fine string // what a refusal for another reason than access says
}{
	"createSandbox":   {makes, map[string]any{}, ""},
	"getSandbox":      {reads, map[string]any{"name": "{name}"}, ""},
	"listSandboxes":   {looks, map[string]any{}, ""},
	"sandboxExecutor": {writes, map[string]any{"sandbox_name": "{name}", "tool_name": "say"}, ""},
	"pauseSandbox":    {writes, map[string]any{"name": "{name}"}, ""},
	"resumeSandbox":   {writes, map[string]any{"name": "{name}"}, ""},
	"deleteSandbox":   {writes, map[string]any{"name": "{name}"}, ""},
	"forkSandbox":     {writes, map[string]any{"name": "{name}"}, ""},
	"snapshotSandbox": {writes, map[string]any{"name": "{name}"}, ""},
	"rollbackSandbox": {writes, map[string]any{"name": "{name}", "snapshot": "of-{name}"}, ""},
	"diffSandbox":     {reads, map[string]any{"name": "{name}"}, ""},
	"listSnapshots":   {looks, map[string]any{}, ""},
	"deleteSnapshot":  {makes, map[string]any{"snapshot": "none"}, "no snapshot"},
	"shareSandbox":    {writes, map[string]any{"name": "{name}"}, ""},
	"listShares":      {looks, map[string]any{}, ""},
	"revokeShare":     {makes, map[string]any{"id": "none"}, "no link"},
	"createVolume":    {makes, map[string]any{"name": "tool-{n}"}, ""},
	"listVolumes":     {looks, map[string]any{}, ""},
	"deleteVolume":    {makes, map[string]any{"volume": "none"}, "no volume"},
	"listImages":      {looks, map[string]any{}, "keeps no images"},
	"deleteImage":     {makes, map[string]any{"image": "none"}, "keeps no images"},
	"setSecret":       {makes, map[string]any{"name": "t_{n}", "value": "x"}, ""},
	"listSecrets":     {looks, map[string]any{}, ""},
	"deleteSecret":    {makes, map[string]any{"name": "none"}, "no such secret"},
	"addKey":          {governs, map[string]any{"tenant": "x"}, ""},
	"listKeys":        {governs, map[string]any{}, ""},
	"revokeKey":       {governs, map[string]any{"id": "none"}, "no such key"},
	"verifyAudit":     {governs, map[string]any{}, ""},
}

// caller is somebody who knocks.
type caller struct {
	name   string
	secret string
	sign   func(sandbox.Sandbox) string // makes the secret of a share
}

// at is the caller with a secret for this sandbox.
func (c caller) at(sb sandbox.Sandbox) caller {
	if c.sign != nil {
		c.secret = c.sign(sb)
	}
	return c
}

// want is the status that a caller gets; 0 means that it is let in.
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

// arena is a tenant with a sandbox, and all who knock at its doors.
type arena struct {
	*rig
	n       int
	callers []caller
}

func newArena(t *testing.T) *arena {
	a := &arena{rig: newRig(t, nil)}
	user, _ := a.key("acme", tenant.RoleUser)
	viewer, _ := a.key("acme", tenant.RoleViewer)
	other, _ := a.key("other", tenant.RoleUser)
	admin, _ := a.key("root", tenant.RoleAdmin)
	revoked, id := a.key("acme", tenant.RoleAdmin)
	if err := a.tenants.Revoke(id); err != nil {
		t.Fatal(err)
	}
	a.callers = []caller{
		{name: "nobody"}, {name: "other", secret: other}, {name: "viewer", secret: viewer}, {name: "user", secret: user}, {name: "admin", secret: admin}, {name: "revoked", secret: revoked},
		{name: "share", sign: func(sb sandbox.Sandbox) string { return a.sign(tenant.Share{Sandbox: sb.ID}) }},
		{name: "looking share", sign: func(sb sandbox.Sandbox) string { return a.sign(tenant.Share{Sandbox: sb.ID, ReadOnly: true}) }},
		{name: "share of another", sign: func(sandbox.Sandbox) string { return a.sign(tenant.Share{Sandbox: "sb-0000000000000000"}) }},
		{name: "revoked share", sign: func(sb sandbox.Sandbox) string { return a.sign(tenant.Share{Sandbox: sb.ID, Port: 1}) }},
		{name: "forged share", sign: func(sb sandbox.Sandbox) string {
			token := a.sign(tenant.Share{Sandbox: sb.ID})
			return token[:len(token)-2] + "xx"
		}},
		{name: "expired share", sign: func(sb sandbox.Sandbox) string { return a.expired(sb.ID) }},
	}
	return a
}

// fresh makes a sandbox of acme, with a snapshot of it.
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

// sign makes a share of acme's; one of port 1 is revoked at once.
func (a *arena) sign(sh tenant.Share) string {
	a.t.Helper()
	sh.Tenant, sh.Expires = "acme", time.Now().Add(time.Hour)
	token, made, err := a.tenants.Sign(sh)
	if err != nil {
		a.t.Fatal(err)
	}
	if sh.Port == 1 {
		err = a.tenants.RevokeShare(made.ID)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

// expired makes a share whose time is up, by a store whose clock is behind.
func (a *arena) expired(id string) string {
	a.t.Helper()
	past, err := tenant.Open(tenant.Config{Path: a.cfg.Keys, Now: func() time.Time { return time.Now().Add(-2 * time.Hour) }})
	if err != nil {
		a.t.Fatal(err)
	}
	token, _, err := past.Sign(tenant.Share{Sandbox: id, Tenant: "acme", Expires: time.Now().Add(-time.Hour)})
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

// spoken is how a caller calls the sandbox.
func spoken(c caller, sb sandbox.Sandbox) string {
	if strings.Contains(c.name, "share") || c.name == "admin" || c.name == "other" {
		return sb.ID
	}
	return sb.Spec.Name
}

// knock sends the row's request as a caller.
func (a *arena) knock(c caller, sb sandbox.Sandbox, r row) int {
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
			a.t.Fatal(err)
		}
		return res.StatusCode
	}
	if rest, ok := strings.CutPrefix(path, "host:"); ok {
		return a.do(c.secret, r.method, rest, body, "Host", "3000-"+name+".localhost").status
	}
	return a.do(c.secret, r.method, path, body).status
}

// TestMatrix: every route and door, for everybody who could knock.
func TestMatrix(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	rows := maps.Clone(matrix)
	for _, o := range a.hub.Table.All() {
		if _, ok := rows[o.Name]; !ok {
			t.Errorf("operation %s is not in the matrix: decide who may use it", o.Name)
		}
	}
	for name := range rows {
		if _, ok := a.hub.Table.Get(name); !ok {
			t.Errorf("the matrix has %s, which the table has not", name)
		}
	}
	maps.Copy(rows, doors)
	// Who may not, and who only looks, changes nothing: they all share one.
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
				t.Errorf("%s as %s: %d, want %d", name, c.name, got, want)
			}
		}
		if now, err := a.provider.Get(t.Context(), sb.ID); err != nil || now.State != sandbox.Running {
			t.Errorf("%s: somebody who may not has changed it: %v %v", name, now.State, err)
		}
		for _, c := range let {
			own := sb
			if r.kind == writes {
				own = a.fresh()
			}
			want := r.ok
			if want == 0 {
				want = http.StatusOK
			}
			if got := a.knock(c.at(own), own, r); got != want {
				t.Errorf("%s as %s: %d, want %d", name, c.name, got, want)
			}
		}
	}
}

// TestToolMatrix: every tool, for everybody.
func TestToolMatrix(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, tool := range a.hub.hub.Tools() {
		if _, ok := toolMatrix[tool.Name]; !ok {
			t.Errorf("tool %s is not in the matrix: decide who may use it", tool.Name)
		}
	}
	offered := a.hub.hub.Tools()
	for name, r := range toolMatrix {
		if !slices.ContainsFunc(offered, func(x *mcp.Tool) bool { return x.Name == name }) {
			t.Errorf("the matrix has the tool %s, which the hub has not", name)
			continue
		}
		for _, c := range a.callers {
			sb := a.fresh()
			c = c.at(sb)
			args := map[string]any{}
			a.n++
			for k, v := range r.args {
				args[k] = strings.NewReplacer("{name}", spoken(c, sb), "{n}", fmt.Sprint(a.n)).Replace(v.(string))
			}
			status, text, failed := a.tool(c.secret, name, args)
			switch want := r.kind.want(c.name); {
			case strings.Contains(c.name, "share") && want != http.StatusUnauthorized:
				if status != http.StatusForbidden {
					t.Errorf("%s as %s: %d %s", name, c.name, status, text)
				}
			case want == http.StatusUnauthorized:
				if status != want {
					t.Errorf("%s as %s: %d %s", name, c.name, status, text)
				}
			case want == http.StatusNotFound:
				if !failed || !strings.Contains(text, "there is no sandbox") {
					t.Errorf("%s as %s: %s", name, c.name, text)
				}
			case want == http.StatusForbidden:
				if !failed || !strings.Contains(text, "role") {
					t.Errorf("%s as %s: %s", name, c.name, text)
				}
			case failed && (r.fine == "" || !strings.Contains(text, r.fine)):
				t.Errorf("%s as %s: %s", name, c.name, text)
			}
			if _, err := a.provider.Get(t.Context(), sb.ID); err != nil && r.kind.want(c.name) != 0 {
				t.Errorf("%s as %s: it is gone", name, c.name)
			}
		}
	}
}

// TestNothingOfOthersShows: lists and events hold only the caller's own.
func TestNothingOfOthersShows(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	sb := a.fresh()
	secret := map[string]string{}
	for _, c := range a.callers {
		secret[c.name] = c.secret
	}
	if r := a.do(secret["user"], "POST", "/api/v1/volume", `{"name":"box-volume"}`); r.status != 200 {
		t.Fatal(r.body)
	}
	if r := a.do(secret["user"], "POST", "/api/v1/sandbox/"+sb.Spec.Name+"/share", `{}`); r.status != 200 {
		t.Fatal(r.body)
	}
	for _, path := range []string{"/api/v1/sandbox", "/api/v1/snapshot", "/api/v1/volume", "/api/v1/share"} {
		if r := a.do(secret["other"], "GET", path, ""); r.status != 200 || strings.Contains(r.body, "box") || strings.Contains(r.body, sb.ID) {
			t.Errorf("%s: %s", path, r.body)
		}
		if r := a.do(secret["other"], "GET", path+"?user=acme", ""); strings.Contains(r.body, "box-") || strings.Contains(r.body, sb.ID) {
			t.Errorf("%s: %s", path, r.body)
		}
		if r := a.do(secret["viewer"], "GET", path, ""); r.status != 200 || !strings.Contains(r.body, "box") && !strings.Contains(r.body, sb.ID) {
			t.Errorf("%s: %s", path, r.body)
		}
		if r := a.do(secret["admin"], "GET", path+"?user=*", ""); r.status != 200 || !strings.Contains(r.body, "box") && !strings.Contains(r.body, sb.ID) {
			t.Errorf("%s: %s", path, r.body)
		}
	}
	// An admin reaches it by the address that the list tells.
	if r := a.do(secret["admin"], "GET", "/api/v1/sandbox?user=acme", ""); !strings.Contains(r.body, "/sandbox/"+sb.ID+"/") {
		t.Error(r.body)
	}
}

// TestSharesOfAPort: a link to a port leads nowhere else, whatever the path says.
func TestSharesOfAPort(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	sb := a.fresh()
	user := a.callers[slices.IndexFunc(a.callers, func(c caller) bool { return c.name == "user" })].secret
	r := a.do(user, "POST", "/api/v1/sandbox/"+sb.Spec.Name+"/share", `{"port":3000,"minutes":5}`)
	token := field(t, r.data, "token")
	if r.status != 200 || !strings.HasPrefix(token, tenant.SharePrefix) {
		t.Fatal(r.body)
	}
	at := "/sandbox/" + sb.ID
	if got := a.do(token, "GET", at+"/proxy/3000/x", ""); got.status != 200 || got.body != "inside "+sb.ID+" port 3000" {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, path := range []string{"", "/", "/v1/shell/exec", "/proxy/3001/", "/proxy/30000/", "/proxy/3000%2f..%2f..%2fv1/x", "/proxy", "//proxy/3000/", "/x/../proxy/3000/"} {
		if got := a.do(token, "GET", at+path, ""); got.status != 404 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	// Dots below it are the port's own affair.
	if got := a.do(token, "GET", at+"/proxy/3000/../../v1/x", "", "X-Aio-Proxy-Port", "22"); got.status != 200 || got.body != "inside "+sb.ID+" port 3000" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := a.do(token, "GET", "/x", "", "Host", "3001-"+sb.ID+".localhost"); got.status != 404 {
		t.Errorf("%d %s", got.status, got.body)
	}

	// The link itself: a cookie for this sandbox, and on to the port.
	link := strings.TrimPrefix(field(t, r.data, "url"), a.server.URL)
	opened := a.do("", "GET", link, "")
	if opened.status != 303 || opened.header.Get("Location") != at+"/proxy/3000/" {
		t.Fatalf("%d %v", opened.status, opened.header)
	}
	cookie, rest, _ := strings.Cut(opened.header.Get("Set-Cookie"), ";")
	if !strings.Contains(rest, "Path="+at+"/") {
		t.Error(rest)
	}
	if got := a.do("", "GET", at+"/proxy/3000/", "", "Cookie", cookie); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := a.do("", "GET", "/api/v1/sandbox", "", "Cookie", cookie); got.status != 403 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := a.do(user, "DELETE", "/api/v1/share/"+field(t, r.data, "id"), ""); got.status != 200 {
		t.Fatal(got.body)
	}
	if got := a.do("", "GET", at+"/proxy/3000/", "", "Cookie", cookie); got.status != 401 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := a.do("", "GET", link, ""); got.status != 403 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// TestSharesEndWithTheirKeyAndSandbox: nothing outlives what it was made with.
func TestSharesEndWithTheirKeyAndSandbox(t *testing.T) {
	t.Parallel()
	a := newRig(t, nil)
	one, id := a.key("acme", tenant.RoleUser)
	two, _ := a.key("acme", tenant.RoleUser)
	share := func(key, name string) string {
		t.Helper()
		return field(t, a.do(key, "POST", "/api/v1/sandbox/"+name+"/share", `{}`).data, "token")
	}
	sb, gone := a.box("acme", "a"), a.box("acme", "b")
	ofOne, ofTwo, ofGone := share(one, "a"), share(two, "a"), share(two, "b")
	if err := a.tenants.Revoke(id); err != nil {
		t.Fatal(err)
	}
	if r := a.do(two, "DELETE", "/api/v1/sandbox/b", ""); r.status != 200 {
		t.Fatal(r.body)
	}
	for token, want := range map[string]int{ofOne: 401, ofTwo: 200} {
		if r := a.do(token, "GET", "/sandbox/"+sb.ID+"/", ""); r.status != want {
			t.Errorf("%d, want %d", r.status, want)
		}
	}
	if r := a.do(ofGone, "GET", "/sandbox/"+gone.ID+"/", ""); r.status != 401 {
		t.Errorf("%d", r.status)
	}
}

// TestFirstKey: a hub for many makes the first key itself, once.
func TestFirstKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var out strings.Builder
	if err := r.hub.many.firstKey(r.cfg.State, &out); err != nil {
		t.Fatal(err)
	}
	path := r.cfg.State + "/admin.key"
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(out.String(), path) {
		t.Fatal(err, info, out.String())
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if a := r.do(strings.TrimSpace(string(secret)), "GET", "/api/v1/key", ""); a.status != 200 {
		t.Fatal(a.body)
	}
	// Who starts a hub where a client's key is set is told.
	cfg := r.cfg
	cfg.APIKey = strings.TrimSpace(string(secret))
	if _, err := New(cfg, nil, "0", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "tenant's key") {
		t.Error(err)
	}
	out.Reset()
	if err := r.hub.many.firstKey(r.cfg.State, &out); err != nil || out.Len() > 0 {
		t.Error(err, out.String())
	}
}

// TestWhatIsOpenEndsWithItsKey: a socket and a stream do not outlive the key or
// link that they were opened with.
func TestWhatIsOpenEndsWithItsKey(t *testing.T) {
	t.Parallel()
	a := newRig(t, nil)
	secret, id := a.key("acme", tenant.RoleUser)
	sb := a.box("acme", "a")
	token, sh, err := a.tenants.Sign(tenant.Share{Sandbox: sb.ID, Tenant: "acme", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	dial := func(key, name string) *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(t.Context(), a.server.URL+"/sandbox/"+name+"/ws", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}})
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
	if err := a.tenants.RevokeShare(sh.ID); err != nil {
		t.Fatal(err)
	}
	if err := a.tenants.Revoke(id); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*websocket.Conn{"key": byKey, "share": byShare} {
		if _, _, err := c.Read(t.Context()); err == nil {
			t.Errorf("the socket of the %s is open", name)
		}
	}
	if _, err := io.Copy(io.Discard, events.Body); err != nil && t.Context().Err() != nil {
		t.Error("the stream is open")
	}
}
