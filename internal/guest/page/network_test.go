package page_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/network"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/prompt"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/state"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/tablist"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/wait"
)

func testCredentials(t *testing.T, r *fixture) {
	wantEqual(t, "status without credentials", *r.visit(t, "/auth").Status, http.StatusUnauthorized)
	_, err := r.SetCredentials(ctx(t), network.CredentialsIn{Origin: r.site, Username: "ann", Password: "wrong"})
	must(t, err)
	wantEqual(t, "status with wrong credentials", *r.visit(t, "/auth").Status, http.StatusUnauthorized)
	_, err = r.SetCredentials(ctx(t), network.CredentialsIn{Origin: r.site, Username: "ann", Password: "secret"})
	must(t, err)
	wantEqual(t, "status with credentials", *r.visit(t, "/auth").Status, http.StatusOK)
	_, err = r.SetCredentials(ctx(t), network.CredentialsIn{Origin: r.site})
	must(t, err)
}

func testHeaders(t *testing.T, r *fixture) {
	_, err := r.SetHeaders(ctx(t), network.HeadersIn{Headers: map[string]string{"X-All": "a"}})
	must(t, err)
	_, err = r.SetScopedHeaders(ctx(t), network.ScopedHeadersIn{Origin: r.site, Headers: map[string]string{"X-Scoped": "s"}})
	must(t, err)
	r.visit(t, "/echo")
	wantEqual(t, "headers", r.eval(t, "document.body.innerText"), `"a|s|"`)
	_, err = r.Navigate(ctx(t), navigation.NavigateIn{URL: strings.Replace(r.site, "127.0.0.1", "localhost", 1) + "/echo", WaitUntil: "load"})
	must(t, err)
	wantEqual(t, "headers of another origin", r.eval(t, "document.body.innerText"), `"a||"`)
	_, err = r.SetHeaders(ctx(t), network.HeadersIn{Headers: map[string]string{}})
	must(t, err)
	_, err = r.SetScopedHeaders(ctx(t), network.ScopedHeadersIn{Origin: r.site, Headers: map[string]string{}})
	must(t, err)
	r.visit(t, "/echo")
	wantEqual(t, "headers after clearing", r.eval(t, "document.body.innerText"), `"||"`)
	_, err = r.SetHeaders(ctx(t), network.HeadersIn{Headers: map[string]string{"Bad Name": "x"}})
	wantError(t, err, "invalid header")
}

func testRoutes(t *testing.T, r *fixture) {
	r.show(t, "routes")
	const query = "fetch('/api').then(async r => r.status + ' ' + await r.text(), e => 'failed')"
	_, err := r.AddRoute(ctx(t), network.RouteIn{Pattern: "**/api", Response: &network.RouteResponse{Status: 201,
		Body: "from a route", ContentType: "text/plain"}})
	must(t, err)
	wantEqual(t, "response of the route", r.eval(t, query), `"201 from a route"`)
	_, err = r.AddRoute(ctx(t), network.RouteIn{Pattern: "/a.i$/", Abort: true})
	must(t, err)
	wantEqual(t, "response of the latest route", r.eval(t, query), `"failed"`)
	_, err = r.RemoveRoute(ctx(t), network.RemoveRouteIn{Pattern: "/a.i$/"})
	must(t, err)
	_, err = r.RemoveRoute(ctx(t), network.RemoveRouteIn{Pattern: "**/api"})
	must(t, err)
	wantEqual(t, "without routes", r.eval(t, query), `"200 {\"real\":true}"`)
	_, err = r.RemoveRoute(ctx(t), network.RemoveRouteIn{Pattern: "**/api"})
	wantError(t, err, "no route")
	list, err := r.Requests(ctx(t), network.RequestsIn{Filter: new("/api"), Limit: 100})
	must(t, err)
	last := list[len(list)-1]
	if len(list) < 3 || last.Method != "GET" || last.Status != 200 || last.Type != "fetch" ||
		last.MIME != "application/json" || list[len(list)-2].Error == "" {
		t.Errorf("requests %+v, want an answer, a failure and an answer", list)
	}
	one, err := r.Requests(ctx(t), network.RequestsIn{BodyOf: &last.ID, Limit: 1})
	must(t, err)
	if len(one) != 1 || one[0].Body == nil || *one[0].Body != `{"real":true}` {
		t.Errorf("request %+v, want its body", one)
	}
}

// required are the fields that HAR 1.2 requires, by object.
var required = map[string][]string{
	"log": {"version", "creator", "entries"}, "entry": {"startedDateTime", "time", "request", "response", "cache", "timings"},
	"request":  {"method", "url", "httpVersion", "cookies", "headers", "queryString", "headersSize", "bodySize"},
	"response": {"status", "statusText", "httpVersion", "cookies", "headers", "content", "redirectURL", "headersSize", "bodySize"},
	"content":  {"size", "mimeType"}, "timings": {"send", "wait", "receive"},
}

func testHAR(t *testing.T, r *fixture) {
	r.show(t, `<script>fetch('/api?q=1', {method: 'POST', body: 'sent'})</script>`)
	_, err := r.Wait(ctx(t), wait.WaitIn{Type: "network_idle", Timeout: 60})
	must(t, err)
	path := filepath.Join(r.dir, "out.har")
	out, err := r.ExportHAR(ctx(t), network.ExportHARIn{SavePath: path, Bodies: true})
	must(t, err)
	b, err := os.ReadFile(path)
	must(t, err)
	var file struct{ Log map[string]any }
	must(t, json.Unmarshal(b, &file))
	wantEqual(t, "version", file.Log["version"], any("1.2"))
	check := func(kind string, object any) map[string]any {
		m, _ := object.(map[string]any)
		for _, field := range required[kind] {
			if m[field] == nil {
				t.Errorf("%s has no %s: %v", kind, field, m)
			}
		}
		return m
	}
	check("log", file.Log)
	entries := file.Log["entries"].([]any)
	wantEqual(t, "number of entries", out.Entries, len(entries))
	sent := false
	for _, e := range entries {
		entry := check("entry", e)
		if _, err := time.Parse(time.RFC3339Nano, entry["startedDateTime"].(string)); err != nil {
			t.Error(err)
		}
		request := check("request", entry["request"])
		response := check("response", entry["response"])
		content := check("content", response["content"])
		check("timings", entry["timings"])
		if request["method"] == "POST" {
			sent = true
			if request["postData"].(map[string]any)["text"] != "sent" || content["text"] != `{"real":true}` ||
				len(request["queryString"].([]any)) != 1 {
				t.Errorf("entry %v, want the sent and received bodies and the query", entry)
			}
		}
	}
	wantEqual(t, "has the POST request", sent, true)
}

func testCookies(t *testing.T, r *fixture) {
	_, err := r.SetCookies(ctx(t), state.SetCookiesIn{Cookies: []map[string]any{
		{"name": "a", "value": "1", "url": r.site, "httpOnly": true, "sameSite": "Strict"},
		{"name": "b", "value": "2", "domain": "example.com", "path": "/x", "expires": float64(4102444800)},
	}})
	must(t, err)
	all, err := r.Cookies(ctx(t), state.CookiesIn{})
	must(t, err)
	wantEqual(t, "cookies", len(all), 2)
	own, err := r.Cookies(ctx(t), state.CookiesIn{URLs: &r.site})
	must(t, err)
	if len(own) != 1 || own[0].Name != "a" || !own[0].HTTPOnly || own[0].SameSite != "Strict" || own[0].Expires != -1 {
		t.Errorf("cookies of the site %+v, want a with all its attributes", own)
	}
	_, err = r.SetCookies(ctx(t), state.SetCookiesIn{Cookies: []map[string]any{{"name": "c", "value": "3"}}})
	wantError(t, err, "neither url nor domain")
	count, err := r.ClearCookies(ctx(t), state.ClearCookiesIn{})
	must(t, err)
	wantEqual(t, "deleted", count.Count, 2)
}

func testContexts(t *testing.T, r *fixture) {
	r.visit(t, "/login")
	made, err := r.CreateContext(ctx(t), tablist.CreateContextIn{Name: "second"})
	must(t, err)
	r.visit(t, "/echo") // in the new context, whose tab is active
	wantEqual(t, "cookies in the context", r.eval(t, "document.body.innerText"), `"||"`)
	in := navigation.NavigateIn{URL: r.site + "/echo", WaitUntil: "load", Tab: new(int)}
	_, err = r.Navigate(ctx(t), in)
	must(t, err)
	out, err := r.Evaluate(ctx(t), content.EvaluateIn{Expression: "document.body.innerText", Where: driver.Where{Tab: new(int)}})
	must(t, err)
	wantEqual(t, "cookies outside", string(out.Data.(json.RawMessage)), `"||session=s1"`)
	_, err = r.DeleteContext(ctx(t), tablist.ContextIn{ID: made.ID})
	must(t, err)
	_, err = r.DeleteContext(ctx(t), tablist.ContextIn{ID: made.ID})
	wantError(t, err, "no context")
	_, err = r.ClearCookies(ctx(t), state.ClearCookiesIn{})
	must(t, err)
}

func testEndlessLoop(t *testing.T, r *fixture) {
	r.show(t, `<button onclick="for (;;) {}">Loop</button>`)
	_, err := r.Evaluate(ctx(t), content.EvaluateIn{Expression: "for (;;) {}", Where: within(1)})
	wantError(t, err, "timed out", "interrupted")
	wantEqual(t, "after an endless script", r.eval(t, "1"), "1")
	in := click("button")
	in.Where = within(1)
	_, err = r.Click(ctx(t), in)
	wantError(t, err, "timed out")
	wantEqual(t, "after an endless click", r.eval(t, "1"), "1")
}

func testNeverLoads(t *testing.T, r *fixture) {
	in := navigation.NavigateIn{URL: r.site + "/never", WaitUntil: "load", Timeout: new(1.0)}
	_, err := r.Navigate(ctx(t), in)
	wantError(t, err, "timed out", "did not respond")
	in.URL = r.site + "/endless"
	_, err = r.Navigate(ctx(t), in)
	wantError(t, err, "timed out", `did not reach the state "load"`)
	text, err := r.Text(ctx(t), driver.Here{})
	must(t, err)
	wantEqual(t, "text of the page that loads forever", text, "begin")
	r.show(t, "after")
}

func testPopups(t *testing.T, r *fixture) {
	r.show(t, `<button onclick="for (let i = 0; i < 1000; i++) window.open('about:blank')">Flood</button>`)
	_, err := r.Click(ctx(t), click("button"))
	must(t, err)
	list, err := r.Tabs(ctx(t), op.None{})
	must(t, err)
	if len(list) > 250 {
		t.Errorf("%d tabs, want a limit on popups", len(list))
	}
	for i := len(list) - 1; i > 0; i-- {
		_, err := r.CloseTab(ctx(t), tablist.TabIn{Index: i})
		must(t, err)
	}
	r.show(t, "after")
	wantEqual(t, "after the flood", r.eval(t, "document.body.innerText"), `"after"`)
}

func testMemory(t *testing.T, r *fixture) {
	r.show(t, "<p>hungry")
	_, err := r.Evaluate(ctx(t), content.EvaluateIn{Expression: "const all = []; for (;;) all.push(new " +
		"Array(1e6).fill(1.5).map(String))", Where: within(120)})
	wantError(t, err, "crashed")
	_, err = r.Text(ctx(t), driver.Here{})
	wantError(t, err, "crashed", "reload")
	_, err = r.Reload(ctx(t), driver.Where{})
	must(t, err)
	wantEqual(t, "after a crash", r.eval(t, "document.body.innerText"), `"hungry"`)
}

func testFailures(t *testing.T, r *fixture) {
	closed := r.site[:strings.LastIndexByte(r.site, ':')] + ":9"
	for address, want := range map[string]string{closed: "cannot open", "https" + strings.TrimPrefix(r.site, "http") +
		"/": "TLS", "nothing.invalid": "does not exist", "http://": "is not a URL", "javascript:1": "use evaluate"} {
		_, err := r.Navigate(ctx(t), navigation.NavigateIn{URL: address, WaitUntil: "load"})
		wantError(t, err, want)
	}
	r.show(t, "fine")
	c, reply := call(t)
	_, err := r.Forward(c, driver.Where{})
	must(t, err)
	if !strings.Contains(reply.Message, "no further entry") {
		t.Errorf("message %q, want a message about the end of the history", reply.Message)
	}
}

func testState(t *testing.T, r *fixture) {
	r.visit(t, "/login")
	_, err := r.Wait(ctx(t), wait.WaitIn{Type: "function",
		Expression: new("indexedDB.databases().then(l => l.length === 1 && l[0].version === 2)"), Timeout: 60})
	must(t, err)
	path := filepath.Join(r.dir, "state.json")
	r.show(t, "elsewhere") // the same origin; then close it
	_, err = r.Navigate(ctx(t), navigation.NavigateIn{URL: "about:blank", WaitUntil: "load"})
	must(t, err)
	saved, err := r.SaveState(ctx(t), state.StateIn{Path: path})
	must(t, err)
	if saved.Cookies != 1 || saved.Origins != 1 {
		t.Errorf("saved %+v, want one cookie and one origin", saved)
	}
	info, err := os.Stat(path)
	must(t, err)
	wantEqual(t, "mode of the file", info.Mode().Perm(), os.FileMode(0o600))
	_, err = r.ClearCookies(ctx(t), state.ClearCookiesIn{})
	must(t, err)
	r.visit(t, "/echo")
	r.eval(t, "localStorage.clear(); indexedDB.deleteDatabase('db')")
	_, err = r.browser.Restart(ctx(t), browser.RestartIn{Mode: "hard"})
	must(t, err)
	_, err = r.LoadState(ctx(t), state.StateIn{Path: path})
	must(t, err)
	r.visit(t, "/echo")
	wantEqual(t, "cookies after loading", r.eval(t, "document.body.innerText"), `"||session=s1"`)
	wantEqual(t, "local storage after loading", r.eval(t, "localStorage.token"), `"t1"`)
	const read = "new Promise(done => { const q = indexedDB.open('db'); q.onsuccess = () => { const all = " +
		"q.result.transaction('o').objectStore('o').getAll(); all.onsuccess = () => done(all.result[0].at.getTime()) } })"
	wantEqual(t, "IndexedDB after loading", r.eval(t, read), "5")
	_, err = r.LoadState(ctx(t), state.StateIn{Path: filepath.Join(r.dir, "none.json")})
	wantError(t, err, "no such file")
}

// testRestoredTabs opens more tabs than Chromium loads when it restores them. The others are loaded on first use.
func testRestoredTabs(t *testing.T, r *fixture) {
	r.show(t, "restored")
	for range 11 {
		address := r.site + "/html?body=restored"
		_, err := r.CreateTab(ctx(t), tablist.CreateTabIn{URL: &address})
		must(t, err)
	}
	_, err := r.browser.Restart(ctx(t), browser.RestartIn{Mode: "soft"})
	must(t, err)
	_, err = r.SetHeaders(ctx(t), network.HeadersIn{Headers: map[string]string{"X-All": "kept"}}) // also for tabs that are not loaded
	must(t, err)
	var list []tablist.Tab
	testenv.Poll(t, "the tabs are back", func() bool {
		list, err = r.Tabs(ctx(t), op.None{})
		must(t, err)
		return len(list) == 12
	})
	for _, restored := range list {
		where := driver.Where{Tab: &restored.Index, Timeout: new(60.0)}
		text, err := r.Text(ctx(t), driver.Here(where))
		must(t, err)
		wantEqual(t, "text of a restored tab", text, "restored")
		_, err = r.Wait(ctx(t), wait.WaitIn{Type: "load", Timeout: 60, Tab: &restored.Index})
		must(t, err)
		out, err := r.Evaluate(ctx(t),
			content.EvaluateIn{Expression: "fetch('/echo').then(async r => (await r.text()).split('|')[0])", Where: where})
		must(t, err)
		wantEqual(t, "header sent by a restored tab", string(out.Data.(json.RawMessage)), `"kept"`)
	}
	_, err = r.SetHeaders(ctx(t), network.HeadersIn{Headers: map[string]string{}})
	must(t, err)
	for i := len(list) - 1; i > 0; i-- {
		_, err := r.CloseTab(ctx(t), tablist.TabIn{Index: i})
		must(t, err)
	}
}

func testBrowserDies(t *testing.T, r *fixture) {
	r.show(t, "survivor")
	address := r.eval(t, "location.href")
	_, err := r.AddRoute(ctx(t), network.RouteIn{Pattern: "**/api", Response: &network.RouteResponse{Status: 200,
		Body: "kept", ContentType: "text/plain"}})
	must(t, err)
	_, err = r.SetPermissions(ctx(t), prompt.PermissionsIn{Permissions: []string{"geolocation"}, Setting: "granted", Origin: r.site})
	must(t, err)
	// Chromium saves its tabs every few seconds; a soft restart saves them immediately.
	_, err = r.browser.Restart(ctx(t), browser.RestartIn{Mode: "soft"})
	must(t, err)
	for _, p := range r.runner.Living() {
		if filepath.Base(p.Path) == "chromium" && !p.Background {
			must(t, syscall.Kill(p.PID, syscall.SIGKILL))
		}
	}
	c, reply := call(t)
	at := 0
	testenv.Poll(t, "the tab is back", func() bool {
		list, err := r.Tabs(c, op.None{})
		return err == nil && slices.ContainsFunc(list, func(one tablist.Tab) bool {
			at = one.Index
			return `"`+one.URL+`"` == address
		})
	})
	if !strings.Contains(reply.Hint, "restarted") {
		t.Errorf("hint %q, want a hint about the restart", reply.Hint)
	}
	_, err = r.Wait(ctx(t), wait.WaitIn{Type: "load", Timeout: 60, Tab: &at})
	must(t, err)
	out, err := r.Evaluate(ctx(t), content.EvaluateIn{Expression: "fetch('/api').then(r => r.text())", Where: driver.Where{Tab: &at}})
	must(t, err)
	wantEqual(t, "the route", string(out.Data.(json.RawMessage)), `"kept"`)
	out, err = r.Evaluate(ctx(t), content.EvaluateIn{Expression: askState, Where: driver.Where{Tab: &at}})
	must(t, err)
	wantEqual(t, "the permission", string(out.Data.(json.RawMessage)), `"granted"`)
}
