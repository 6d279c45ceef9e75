package browser_test

import (
	"fmt"
	"image/color"
	"image/png"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// TestAddressesAreBlocked tests both ways of enforcement with the same list, one after the other, because a policy applies to
// every browser on the machine.
func TestAddressesAreBlocked(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, keeper := range []string{"policy", "devtools"} {
		t.Run(keeper, func(t *testing.T) {
			r := newFixture(t, func(c *browser.Config) {
				if keeper == "devtools" {
					c.Policies = "/proc/no/such/folder"
				}
			})
			if keeper == "policy" {
				testenv.NeedRoot(t)
			}
			testRules(t, r, keeper)
		})
	}
}

func testRules(t *testing.T, r *fixture, keeper string) {
	// Names below localhost resolve to this host. Rules for them do not affect other browsers on the machine.
	names := site(t, map[string]http.HandlerFunc{
		"/away": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, req.URL.Query().Get("to"), http.StatusFound)
		},
		"/frame": func(w http.ResponseWriter, req *http.Request) {
			fmt.Fprintf(w, `<title>frame</title><iframe src="%s"></iframe>`, req.URL.Query().Get("to"))
		},
	})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(names.URL, "http://"))
	must(t, err)
	at := func(name, path string) string { return "http://" + name + ".localhost:" + port + path }
	call := &op.Call{}
	out, err := r.Restart(op.WithCall(testContext(t), call), browser.RestartIn{
		Mode: "hard", Dialogs: browser.Dialogs{Sent: true, Allow: new(false)},
		Block: &[]string{"bad-" + keeper + ".localhost", "file://*", "chrome://settings", at("some", "/private")},
		Allow: &[]string{"good.bad-" + keeper + ".localhost"},
	})
	must(t, err)
	if out.Enforced != keeper || (keeper == "devtools") != strings.Contains(call.Hint, "DevTools") || out.Dialogs {
		t.Fatalf("got %+v, hint %q, want Enforced %q, no dialogs, and a hint about DevTools only there", out, call.Hint, keeper)
	}
	c := r.connect(t)
	bad, good := at("bad-"+keeper, "/x"), at("good.bad-"+keeper, "/x")
	for address, open := range map[string]bool{
		good: true, at("some", "/public"): true, "chrome://version/": true, "about:blank": true,
		at("some", "/away?to="+url.QueryEscape(good)): true,
		bad: false, at("deep.bad-"+keeper, "/"): false, at("some", "/private/x"): false, "file:///etc/passwd": false, "chrome://settings/": false,
		at("some", "/away?to="+url.QueryEscape(bad)): false,
	} {
		if got := opens(t, c, address); got != open {
			t.Errorf("%s: open is %v, want %v", address, got, open)
		}
	}
	// The rules also apply to frames and windows of a page.
	p := r.open(t, c, "about:blank")
	frame := at("some", "/frame?to="+url.QueryEscape(bad))
	must(t, c.Call(testContext(t), p.session, "Page.navigate", map[string]any{"url": frame}, nil))
	testenv.Poll(t, "the page with a frame has loaded", func() bool {
		var loaded bool
		return c.Evaluate(testContext(t), p.session,
			fmt.Sprintf(`location.href === %q && document.readyState === "complete"`, frame), &loaded) == nil && loaded
	})
	if text := eval[string](t, p, `(() => { try { return document.querySelector("iframe").contentDocument?.title `+
		`?? "closed" } catch (e) { return "closed" } })()`); text == "/x" {
		t.Error("a frame shows a blocked page")
	}
	eval[any](t, p, fmt.Sprintf(`window.open(%q), null`, bad))
	eval[any](t, p, fmt.Sprintf(`window.open(%q), null`, good))
	var shown []string
	testenv.Poll(t, "the second window is open", func() bool {
		targets, err := c.Targets(testContext(t))
		must(t, err)
		shown = nil
		for _, target := range targets {
			shown = append(shown, target.URL+" "+target.Title)
		}
		return strings.Contains(strings.Join(shown, "\n"), good+" /x")
	})
	for _, line := range shown {
		if line == bad+" /x" {
			t.Errorf("a window shows a blocked page: %q, want line other than %q", shown, bad+" /x")
		}
	}
	if opensDialog(t, r) {
		t.Error("the file dialog opens")
	}
	testRulesAreKept(t, r, keeper, bad)
}

// opens reports whether a tab finally shows a URL.
func opens(t *testing.T, c *cdp.Client, address string) bool {
	t.Helper()
	id, err := c.CreateTarget(testContext(t), cdp.NewTarget{})
	must(t, err)
	defer c.CloseTarget(testContext(t), id)
	s, err := c.Attach(testContext(t), id)
	must(t, err)
	must(t, c.Evaluate(testContext(t), s, `window.before = true`, nil))
	var nav struct {
		Error string `json:"errorText"`
	}
	if err := c.Call(testContext(t), s, "Page.navigate", map[string]any{"url": address}, &nav); err != nil {
		return false
	}
	if address == "about:blank" {
		return nav.Error == ""
	}
	var at string
	testenv.Poll(t, address+" is open or blocked", func() bool {
		if nav.Error != "" {
			return true
		}
		var state string
		err := c.Evaluate(testContext(t), s, `window.before ? "" : document.readyState + " " + location.href`, &state)
		var done bool
		at, done = strings.CutPrefix(state, "complete ")
		return err == nil && done
	})
	if nav.Error != "" || strings.HasPrefix(at, "chrome-error:") {
		return false
	}
	if !strings.HasPrefix(address, "http") {
		// A blocked page may be visible for a short time.
		left := false
		for range 20 {
			var href string
			must(t, c.Evaluate(testContext(t), s, `new Promise(d => setTimeout(() => d(location.href), 20))`, &href))
			left = left || href == "about:blank"
		}
		return !left
	}
	return true
}

// opensDialog reports whether a file dialog appears on the display when a page requests one.
func opensDialog(t *testing.T, r *fixture) bool {
	t.Helper()
	files := site(t, map[string]http.HandlerFunc{"/": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<body style="margin:0;background:#123456"><input type=file style="display:none"><script>
			const input = document.querySelector("input");
			input.oncancel = () => document.title = "none";
		</script>`)
	}})
	p := r.open(t, r.connect(t), files.URL+"/")
	defer p.client.CloseTarget(testContext(t), p.id)
	covered := func() bool {
		b, err := r.display.Screenshot(testContext(t), display.ScreenshotIn{Format: "png"})
		must(t, err)
		img, err := png.Decode(b.Body)
		must(t, err)
		matching := 0
		for y := 200; y < 700; y += 10 {
			for x := 0; x < 1000; x += 10 {
				if img.At(x, y) == (color.RGBA{0x12, 0x34, 0x56, 0xff}) {
					matching++
				}
			}
		}
		return matching < 4000
	}
	testenv.Poll(t, "the page is drawn", func() bool { return !covered() })
	eval[any](t, p, `input.click(), null`)
	open := false
	testenv.Poll(t, "the dialog opens or is refused", func() bool {
		open = covered()
		return open || eval[string](t, p, `document.title`) == "none"
	})
	return open
}

// testRulesAreKept checks that rules survive restarts of browser and server until they are removed.
func testRulesAreKept(t *testing.T, r *fixture, keeper, bad string) {
	must(t, r.Close())
	if keeper == "policy" {
		left, _ := filepath.Glob("/etc/chromium/policies/managed/aio-*.json")
		for _, path := range left {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "bad-"+keeper) {
				t.Errorf("%s still exists", path)
			}
		}
	}
	_, err := r.Restart(testContext(t), browser.RestartIn{Mode: "soft"})
	must(t, err)
	if opens(t, r.connect(t), bad) {
		t.Error("the rules were lost")
	}
	out, err := r.Restart(testContext(t), browser.RestartIn{Mode: "hard", Block: &[]string{}, Allow: &[]string{},
		Dialogs: browser.Dialogs{Sent: true}})
	must(t, err)
	if out.Enforced != "" || !opens(t, r.connect(t), bad) {
		t.Errorf("after the rules were removed: %+v, want Enforced \"\" and %s to open", out, bad)
	}
	if !opensDialog(t, r) {
		t.Error("the file dialog does not open")
	}
}

func TestRulesAreChecked(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	for _, bad := range []string{"", "*.example.com", "a b"} {
		if _, err := r.Restart(testContext(t), browser.RestartIn{Mode: "hard", Block: &[]string{bad}}); err == nil ||
			!strings.Contains(err.Error(), "invalid rule") {
			t.Errorf("%q: %v, want an error containing \"invalid rule\"", bad, err)
		}
	}
	if n := len(r.runner.Living()); n != 0 {
		t.Errorf("%d processes were started, want 0", n)
	}
	must(t, os.MkdirAll(filepath.Join(r.dir, "browser"), 0o700))
	must(t, os.WriteFile(filepath.Join(r.dir, "browser", "settings.json"), []byte(`{"url_block`), 0o600))
	if _, err := r.Info(testContext(t), op.None{}); err == nil || !strings.Contains(err.Error(), "settings") {
		t.Errorf("with settings that cannot be read: %v, want an error containing \"settings\"", err)
	}
}

func TestProxyIsUsed(t *testing.T) {
	t.Parallel()
	var direct, proxied atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.IsAbs() && req.URL.Host == "outside.example" {
			proxied.Add(1)
		}
		fmt.Fprint(w, "<title>through the proxy</title>")
	}))
	t.Cleanup(proxy.Close)
	local := site(t, map[string]http.HandlerFunc{"/": func(w http.ResponseWriter, _ *http.Request) {
		direct.Add(1)
		fmt.Fprint(w, "<title>direct</title>")
	}})
	r := newFixture(t, func(c *browser.Config) {
		c.Proxy = browser.Proxy{Server: proxy.URL, Exclude: []string{"*.excluded.example"}}
		c.UserAgent = "Mozilla/5.0 test"
	})
	c := r.connect(t)
	if title := eval[string](t, r.open(t, c, "http://outside.example/"),
		`document.title`); title != "through the proxy" || proxied.Load() == 0 {
		t.Errorf(`outside: %q, want "through the proxy" and a request to the proxy`, title)
	}
	if title := eval[string](t, r.open(t, c, local.URL+"/"), `document.title`); title != "direct" || direct.Load() == 0 {
		t.Errorf(`loopback: %q, want "direct" and a direct request`, title)
	}
	if info, _ := r.info(t); info.UserAgent != "Mozilla/5.0 test" {
		t.Errorf("user agent %q, want UserAgent \"Mozilla/5.0 test\"", info.UserAgent)
	}
	status, h, body := get(t, "GET", r.url+"/v1/browser/proxy.pac")
	if status != 200 || h.Get("Content-Type") != "application/x-ns-proxy-autoconfig" ||
		!strings.Contains(body, "FindProxyForURL") || !strings.Contains(body, strings.TrimPrefix(proxy.URL, "http://")) {
		t.Errorf("the script: %d %v %s, want status 200, Content-Type \"application/x-ns-proxy-autoconfig\", "+
			"containing \"FindProxyForURL\", containing %q", status, h, body, strings.TrimPrefix(proxy.URL, "http://"))
	}
}
