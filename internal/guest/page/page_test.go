package page_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/action"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/captcha"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/capture"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/prompt"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/tablist"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/wait"
)

type pageTest struct {
	name string
	test func(*testing.T, *fixture)
}

// TestPages runs tests that share one browser. Those that restart it run last.
func TestPages(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	for _, c := range []pageTest{
		{"reading", testReading}, {"evaluate", testEvaluate}, {"snapshot", testSnapshot}, {"misses", testMisses}, {"index", testIndex},
		{"tabs", testTabs}, {"two tabs at once", testTwoTabs}, {"last tab", testLastTab},
		{"dialogs", testDialogs}, {"downloads", testDownloads}, {"pdf", testPDF},
		{"screenshots", testScreenshots}, {"record", testRecord}, {"captcha", testCaptcha}, {"forms", testForms}, {"waits", testWaits},
		{"credentials", testCredentials}, {"headers", testHeaders}, {"routes", testRoutes}, {"har", testHAR},
		{"cookies", testCookies}, {"contexts", testContexts}, {"permissions", testPermissions},
		{"endless loop", testEndlessLoop}, {"never loads", testNeverLoads}, {"popups", testPopups}, {"failures", testFailures},
		{"state", testState}, {"browser dies", testBrowserDies},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, r) })
	}
}

// TestHeavyPages runs tests that open many pages or wait for a long time.
func TestHeavyPages(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	r := newFixture(t)
	for _, c := range []pageTest{
		{"covered", testCovered}, {"lost hover", testLostHover}, {"memory", testMemory}, {"restored tabs", testRestoredTabs},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, r) })
	}
}

func testReading(t *testing.T, r *fixture) {
	r.show(t, `<h1>Head</h1><nav><a href="/n">Nav</a></nav>`+
		`<main><p>Some <b>bold</b> text that is long enough to count as the content of a page.</p>`+
		"<pre><code class=\"language-go\">if x {\n\ty()\n}</code></pre>"+
		`<ul><li>one<ul><li>inner</li></ul></li></ul><table><tr><th>K<th>V<tr><td>a<td>1</table><a href="/next">Next</a></main>`+
		`<p style="display:none">secret</p><div id="host"></div>`+
		`<script>host.attachShadow({mode: "open"}).innerHTML = "<button>In shadow</button>"; `+
		`console.warn("careful", {a: 1}); setTimeout(() => { throw new Error("thrown") })</script>`)
	text, err := r.Text(ctx(t), driver.Here{})
	must(t, err)
	for _, w := range []string{"Head", "Some bold text", "In shadow"} {
		if !strings.Contains(text, w) {
			t.Errorf("text %q, want %q in it", text, w)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("text %q, want no hidden text", text)
	}
	md, err := r.Markdown(ctx(t), driver.Here{})
	must(t, err)
	for _, w := range []string{"Some **bold** text", "```go\nif x {\n\ty()\n}\n```", "- one\n  - inner",
		"| K | V |\n| --- | --- |\n| a | 1 |", "[Next](" + r.site + "/next)"} {
		if !strings.Contains(md.Markdown, w) {
			t.Errorf("markdown %q, want %q in it", md.Markdown, w)
		}
	}
	wantEqual(t, "content", md.Content, md.Markdown)
	html, err := r.HTML(ctx(t), content.HTMLIn{Outer: true})
	must(t, err)
	if !strings.HasPrefix(strings.ToLower(html), "<!doctype html>") || !strings.HasSuffix(html, "</html>") {
		t.Errorf("html %.60q, want the whole document", html)
	}
	links, err := r.Links(ctx(t), driver.Here{})
	must(t, err)
	wantEqual(t, "number of links", len(links), 2)
	found, err := r.FindText(ctx(t), content.FindTextIn{Keyword: "BOLD"})
	must(t, err)
	if len(found) != 1 || found[0].Text != "bold" || found[0].Box.Width == 0 {
		t.Errorf("found %+v, want one occurrence of bold with its place", found)
	}
	r.eval(t, "1") // the exception is thrown before this returns
	console, err := r.Console(ctx(t), content.ConsoleIn{Clear: true})
	must(t, err)
	if len(console) != 2 || console[0].Type != "warning" || console[0].Text != "careful {a: 1}" ||
		console[1].Source != "exception" || !strings.Contains(console[1].Text, "thrown") {
		t.Errorf("console %+v, want a warning and an exception", console)
	}
	console, err = r.Console(ctx(t), content.ConsoleIn{})
	must(t, err)
	wantEqual(t, "entries after clearing", len(console), 0)
}

func testEvaluate(t *testing.T, r *fixture) {
	r.show(t, `<button id="b">Go</button>`)
	for _, c := range []struct{ script, want string }{
		{"1 + 1", "2"}, {"let a = 1; a + 2", "3"}, {"const a = 5; a", "5"}, {"() => document.title", `"page"`},
		{"async () => { await null; return [1] }", "[1]"}, {"function() { return 1 }", "1"},
		{"return 7", "7"}, {"await Promise.resolve(8)", "8"}, {"new Promise(r => setTimeout(() => r(9), 10))", "9"},
		{"const x = await Promise.resolve(3); return x", "3"}, {"{a: 1}", `{"a":1}`}, {"undefined", "null"}, {"null", "null"},
		{"12n", `"12"`}, {"NaN", `"NaN"`}, {"new Date(0)", `"1970-01-01T00:00:00.000Z"`},
		{"document.getElementById('b')", `"<button id=\"b\">Go</button>"`}, {"const o = {}; o.self = o; o", `{"self":"[Circular]"}`},
		{"new Map([['k', new Set([1])]])", `{"k":[1]}`}, {"window", `"[Window]"`},
		{"[undefined, () => 1, Symbol('s')]", `[null,"[Function]","Symbol(s)"]`}, {"document.querySelectorAll('button').length", "1"},
	} {
		if got := r.eval(t, c.script); got != c.want {
			t.Errorf("evaluate %s: %s, want %s", c.script, got, c.want)
		}
	}
	for script, want := range map[string]string{"throw new Error('own')": "Error: own",
		"nothing.here": "ReferenceError", "a b": "SyntaxError", "Promise.reject(new Error('later'))": "later", "throw 'text'": "text"} {
		_, err := r.Evaluate(ctx(t), content.EvaluateIn{Expression: script})
		wantError(t, err, want)
	}
}

func testSnapshot(t *testing.T, r *fixture) {
	r.show(t, `<h1>Shop</h1><label>Name <input id="n"></label><button onclick="document.title = `+
		`'bought'">Buy</button><iframe src="`+strings.Replace(r.site, "127.0.0.1", "localhost", 1)+`/html?body=`+
		escape("<button>Framed</button>")+`"></iframe>`)
	s, err := r.Snapshot(ctx(t), content.SnapshotIn{})
	must(t, err)
	if !strings.Contains(s.Snapshot, `textbox "Name" @e`) || !strings.Contains(s.Snapshot, ` button "Framed" @f1e1`) {
		t.Errorf("snapshot %q, want the text box and the button in the frame with references", s.Snapshot)
	}
	ref := s.Snapshot[strings.Index(s.Snapshot, `"Buy" @`)+6:]
	ref, _, _ = strings.Cut(ref, "\n")
	_, err = r.Click(ctx(t), click(ref))
	must(t, err)
	wantEqual(t, "title", r.eval(t, "document.title"), `"bought"`)
	_, err = r.Click(ctx(t), click("@f1e1"))
	must(t, err)
	_, err = r.Fill(ctx(t), action.FillIn{Pick: pick("label=Name"), Text: "Ann"})
	must(t, err)
	s, err = r.Snapshot(ctx(t), content.SnapshotIn{Diff: true})
	must(t, err)
	if !s.Diff || !strings.Contains(s.Snapshot, `= "Ann"`) || strings.Contains(s.Snapshot, "Shop") {
		t.Errorf("difference %q, want only what has changed", s.Snapshot)
	}
}

func testMisses(t *testing.T, r *fixture) {
	r.show(t, `<button>Save</button><button>Save</button><p>Text</p>`)
	_, err := r.Click(ctx(t), click("button"))
	wantError(t, err, "matches 2 elements", "<button>Save</button>", "nth=0")
	in := click("#missing")
	in.Where = within(0.5)
	_, err = r.Click(ctx(t), in)
	wantError(t, err, `no element matches selector "#missing"`, `button "Save"`)
	for selector, want := range map[string]string{"##": "not a valid CSS selector", "xpath=//[": "not a valid XPath",
		"a >> ": "empty part", "role=": "has no role", " ": "Select the element"} {
		_, err := r.Click(ctx(t), click(selector))
		wantError(t, err, want)
	}
	_, err = r.Fill(ctx(t), action.FillIn{Pick: pick("p"), Text: "x", Where: within(2)})
	wantError(t, err, "not an input")
	_, err = r.PressKey(ctx(t), action.PressKeyIn{Key: "NoKey"})
	wantError(t, err, `unknown key "NoKey"`)
}

func testCovered(t *testing.T, r *fixture) {
	for _, c := range []struct{ body, want string }{
		{`<button id="b">Go</button><div id="veil" style="position:fixed;inset:0"></div>`, `covered by another element: <div id="veil">`},
		{`<button id="b" disabled>Go</button>`, "not enabled"},
		{`<button id="b" style="visibility:hidden">Go</button>`, "not visible"},
		// One cycle takes 21 frames; in two consecutive frames the position is the same.
		{`<style>@keyframes m { to { transform: translateX(300px) } } #b { animation: m 175ms infinite alternate ` +
			`linear }</style><button id="b">Go</button>`, "not stable"},
	} {
		r.show(t, c.body+`<script>clicks = 0; addEventListener("click", () => clicks++)</script>`)
		in := click("#b")
		var err error
		// The whole time is used, so it is short. On a busy machine it can be too short for any reply of the page.
		for limit := 2.0; limit == 2 || limit < 60 && strings.Contains(fmt.Sprint(err), "did not respond"); limit *= 4 {
			in.Where = within(limit)
			_, err = r.Click(ctx(t), in)
		}
		wantError(t, err, c.want)
		wantEqual(t, "clicks", r.eval(t, "clicks"), "0")
	}
}

// testLostHover hides what the mouse opened while the mouse is still there, as a window does that opens above the page.
func testLostHover(t *testing.T, r *fixture) {
	r.show(t, `<div id="h" onmousemove="m.style.display = 'block'">Menu<div id="m" style="display:none"><button `+
		`id="b" onclick="document.title = 'chosen'">Go</button></div></div>`)
	_, err := r.Hover(ctx(t), action.HoverIn{Pick: pick("#h")})
	must(t, err)
	r.eval(t, "m.style.display = 'none'; 1")
	_, err = r.Click(ctx(t), click("#b"))
	must(t, err)
	wantEqual(t, "title", r.eval(t, "document.title"), `"chosen"`)
	// The mouse is over the menu that it opened. It has to open the menu again first.
	r.show(t, `<div id="h" onmousemove="m.style.display = 'block'">Menu<div id="m" `+
		`style="display:none;padding-top:60px"><button id="b" onclick="document.title = 'chosen'">Go</button></div></div>`)
	for range 2 {
		_, err = r.Hover(ctx(t), action.HoverIn{Pick: pick("#h")})
		must(t, err)
	}
	r.eval(t, "m.style.display = 'none'; 1")
	_, err = r.Click(ctx(t), click("#b"))
	must(t, err)
	wantEqual(t, "title", r.eval(t, "document.title"), `"chosen"`)
	// The menu is hidden during the click. The mouse has to return to its previous position to open it.
	r.show(t, `<div id="h" style="height:40px" onmousemove="m.hidden = false">Menu</div><div style="height:80px"></div>`+
		`<div id="m" hidden><button id="b" onclick="document.title = 'chosen'">Go</button></div>`+
		`<script>b.onmousemove = () => { b.onmousemove = null; m.hidden = true }</script>`)
	_, err = r.Hover(ctx(t), action.HoverIn{Pick: pick("#h")})
	must(t, err)
	_, err = r.Click(ctx(t), click("#b"))
	must(t, err)
	wantEqual(t, "title", r.eval(t, "document.title"), `"chosen"`)
}

func testIndex(t *testing.T, r *fixture) {
	r.show(t, `<a href="#x">Link</a><button onclick="document.title = 'pressed'">Press</button><input `+
		`type="hidden"><button style="display:none">Hidden</button><input type="checkbox" checked>`)
	list, err := r.Elements(ctx(t), driver.Here{})
	must(t, err)
	if len(list) != 3 || list[1].Tag != "button" || list[1].Role != "button" || list[1].Index != 1 ||
		list[1].Box.Width == 0 || !list[1].Enabled || list[2].Checked == nil || !*list[2].Checked {
		t.Fatalf("elements %+v, want link, button and checked box", list)
	}
	one := 1
	_, err = r.Click(ctx(t), action.ClickIn{Pick: action.Pick{Index: &one}, Button: "left", Count: 1})
	must(t, err)
	wantEqual(t, "title", r.eval(t, "document.title"), `"pressed"`)
	r.eval(t, "document.querySelector('button').remove()")
	_, err = r.Click(ctx(t), action.ClickIn{Pick: action.Pick{Index: &one}, Button: "left", Count: 1})
	wantError(t, err, "stale", "list them again")
	_, err = r.Elements(ctx(t), driver.Here{})
	must(t, err)
	_, err = r.Reload(ctx(t), driver.Where{})
	must(t, err)
	_, err = r.Click(ctx(t), action.ClickIn{Pick: action.Pick{Index: &one}, Button: "left", Count: 1})
	wantError(t, err, "stale")
}

func testTabs(t *testing.T, r *fixture) {
	before, err := r.Tabs(ctx(t), op.None{})
	must(t, err)
	address := r.site + "/html?body=second"
	made, err := r.CreateTab(ctx(t), tablist.CreateTabIn{URL: &address})
	must(t, err)
	if made.Index != len(before) || !made.Active || made.URL != address || made.Title != "page" || made.TabID == "" {
		t.Errorf("new tab %+v, want the last one, active, at %s", made, address)
	}
	text, err := r.Text(ctx(t), driver.Here{})
	must(t, err)
	wantEqual(t, "text of the active tab", text, "second")
	_, err = r.ActivateTab(ctx(t), tablist.TabIn{Index: 0})
	must(t, err)
	list, err := r.Tabs(ctx(t), op.None{})
	must(t, err)
	if !list[0].Active || list[made.Index].Active {
		t.Errorf("tabs %+v, want the first to be active", list)
	}
	_, err = r.CloseTab(ctx(t), tablist.TabIn{Index: made.Index})
	must(t, err)
	_, err = r.CloseTab(ctx(t), tablist.TabIn{Index: 99})
	wantError(t, err, "no tab 99", fmt.Sprintf("there are %d tabs", len(before)))
	for range before { // a blank tab replaces the last one
		_, err = r.CloseTab(ctx(t), tablist.TabIn{Index: 0})
		must(t, err)
	}
	list, err = r.Tabs(ctx(t), op.None{})
	must(t, err)
	if len(list) != 1 || list[0].URL != "about:blank" || !list[0].Active {
		t.Errorf("tabs %+v, want one that is blank", list)
	}
}

func testTwoTabs(t *testing.T, r *fixture) {
	_, err := r.CreateTab(ctx(t), tablist.CreateTabIn{})
	must(t, err)
	defer r.CloseTab(ctx(t), tablist.TabIn{Index: 1})
	var both sync.WaitGroup
	for i := range 2 {
		both.Go(func() {
			for n := range 5 {
				in := navigation.NavigateIn{URL: r.site + `/html?body=` +
					escape(fmt.Sprintf(`<input id=i><button onclick="document.title = i.value">%d</button>`, n)), WaitUntil: "load", Tab: &i}
				_, err := r.Navigate(ctx(t), in)
				if err == nil {
					_, err = r.Fill(ctx(t), action.FillIn{Pick: pick("#i"), Text: fmt.Sprint(i, n), Where: driver.Where{Tab: &i}})
				}
				c := click("button")
				c.Where = driver.Where{Tab: &i}
				if err == nil {
					_, err = r.Click(ctx(t), c)
				}
				var out content.Evaluated
				if err == nil {
					out, err = r.Evaluate(ctx(t), content.EvaluateIn{Expression: "document.title", Where: driver.Where{Tab: &i}})
				}
				if want := fmt.Sprintf("%q", fmt.Sprint(i, n)); err != nil || fmt.Sprintf("%s", out.Data) != want {
					t.Errorf("tab %d: title %s, %v, want %s", i, out.Data, err, want)
				}
			}
		})
	}
	both.Wait()
}

func testDialogs(t *testing.T, r *fixture) {
	r.show(t, `<button onclick="document.title = [alert('a'), confirm('c'), prompt('p', 'd')].join()">Ask</button>`)
	c, reply := call(t)
	_, err := r.Click(c, click("button"))
	must(t, err)
	wantEqual(t, "dismissed", r.eval(t, "document.title"), `",false,"`)
	if !strings.Contains(reply.Hint, `confirm: "c"`) || !strings.Contains(reply.Hint, "dismissed") {
		t.Errorf("hint %q, want the dialogs in it", reply.Hint)
	}
	text := "typed"
	_, err = r.SetDialogPolicy(ctx(t), prompt.DialogPolicyIn{Action: "accept", Prompt: &text})
	must(t, err)
	_, err = r.Click(ctx(t), click("button"))
	must(t, err)
	wantEqual(t, "accepted", r.eval(t, "document.title"), `",true,typed"`)
	_, err = r.SetDialogPolicy(ctx(t), prompt.DialogPolicyIn{Action: "dismiss"})
	must(t, err)
	list, err := r.Dialogs(ctx(t), driver.Here{})
	must(t, err)
	if len(list) != 6 || list[5].Type != "prompt" || !list[5].Accepted || list[5].Open {
		t.Errorf("dialogs %+v, want six, the last accepted", list)
	}
	// A dialog that opens between operations does not block the next one.
	r.eval(t, "setTimeout(() => { alert('idle'); document.title = 'on' })")
	_, err = r.Wait(ctx(t), wait.WaitIn{Type: "function", Expression: new("document.title === 'on'"), Timeout: 60})
	must(t, err)
}

func testDownloads(t *testing.T, r *fixture) {
	r.show(t, `<a href="/report.csv">Get</a>`)
	_, err := r.Click(ctx(t), click("a"))
	must(t, err)
	path := filepath.Join(r.dir, "saved", "copy.csv")
	got, err := r.Wait(ctx(t), wait.WaitIn{Type: "download", SavePath: &path, Timeout: 60})
	must(t, err)
	if got.Path != path || got.Name != "report.csv" || *got.Size != 8 || got.URL != r.site+"/report.csv" {
		t.Errorf("download %+v, want report.csv of 8 bytes at %s", got, path)
	}
	b, err := os.ReadFile(path)
	must(t, err)
	wantEqual(t, "content", string(b), "a,b\n1,2\n")
	list, err := r.Downloads(ctx(t), op.None{})
	must(t, err)
	if len(list) != 1 || list[0].State != "completed" || list[0].Progress != 1 || filepath.Dir(list[0].Path) != r.browser.Downloads() {
		t.Errorf("downloads %+v, want one that is complete", list)
	}
	_, err = r.Navigate(ctx(t), navigation.NavigateIn{URL: r.site + "/report.csv", WaitUntil: "load"})
	wantError(t, err, "is a download")
	_, err = r.Wait(ctx(t), wait.WaitIn{Type: "download", Timeout: 60})
	must(t, err)
}

func testPDF(t *testing.T, r *fixture) {
	r.visit(t, "/paper.pdf")
	text, err := r.Text(ctx(t), driver.Here{})
	must(t, err)
	if !strings.Contains(text, "Words on paper") {
		t.Errorf("text %q, want that of the PDF", text)
	}
}

func testScreenshots(t *testing.T, r *fixture) {
	r.show(t, `<div id="d" style="width:50px;height:40px;background:red">x</div><button>Go</button><div style="height:3000px"></div>`)
	sizes := map[string]int{}
	for name, in := range map[string]capture.ScreenshotIn{
		"view": {Format: "png"}, "page": {Format: "png", FullPage: true},
		"element": {Format: "png", Selector: new("#d")}, "numbered": {Format: "jpeg", Highlight: true},
		"masked": {Format: "jpg", Mask: []string{"#d"}},
	} {
		blob, err := r.Screenshot(ctx(t), in)
		must(t, err)
		b, err := io.ReadAll(blob.Body)
		must(t, err)
		sizes[name] = len(b)
		if png := bytes.HasPrefix(b, []byte("\x89PNG")); png != (in.Format == "png") || len(b) < 100 {
			t.Errorf("%s is not %s: %.20q", name, in.Format, b)
		}
	}
	if sizes["element"] >= sizes["view"] {
		t.Errorf("sizes %v, want that of the element to be the smallest", sizes)
	}
	wantEqual(t, "remaining drawings", r.eval(t, "document.querySelectorAll('cove-numbers').length"), "0")
}

func testRecord(t *testing.T, r *fixture) {
	r.show(t, `<p id="p"></p><script>setInterval(() => p.textContent = Date.now(), 50)</script>`)
	path := filepath.Join(r.dir, "video.webm")
	got, err := r.Record(ctx(t), capture.RecordIn{Action: "once", SavePath: &path, Duration: 0.5, FPS: 10, Quality: 60})
	must(t, err)
	if got.Status != "stopped" || got.Frames != 5 || got.Size == 0 || *got.SavePath != path {
		t.Errorf("recording %+v, want five frames in %s", got, path)
	}
	in := capture.RecordIn{Action: "start", Duration: 60, FPS: 10, Quality: 60}
	_, err = r.Record(ctx(t), in)
	must(t, err)
	_, err = r.Record(ctx(t), in)
	wantError(t, err, "is running")
	got, err = r.Record(ctx(t), capture.RecordIn{Action: "pause"})
	must(t, err)
	wantEqual(t, "status", got.Status, "paused")
	got, err = r.Record(ctx(t), capture.RecordIn{Action: "stop"})
	must(t, err)
	wantEqual(t, "status", got.Status, "stopped")
	_, err = r.Record(ctx(t), capture.RecordIn{Action: "resume"})
	wantError(t, err, "stopped")
}

func testCaptcha(t *testing.T, r *fixture) {
	for kind, body := range map[string]string{
		"recaptcha": `<div class="g-recaptcha" data-sitekey="k1" style="width:300px;height:70px">x</div><textarea ` +
			`name="g-recaptcha-response"></textarea>`, "hcaptcha": `<div class="h-captcha" style="width:300px;height:70px">x</div>`,
		"turnstile": `<div class="cf-turnstile" style="width:300px;height:70px">x</div>`, "image": `<img alt="captcha" width="100" height="40">`,
	} {
		r.show(t, body)
		got, err := r.DetectCaptcha(ctx(t), driver.Here{})
		must(t, err)
		if !got.Detected || got.Type == nil || *got.Type != kind {
			t.Errorf("%s: %+v, want it detected", kind, got)
		}
	}
	r.show(t, `<div class="g-recaptcha" style="width:300px;height:70px">x</div><textarea name="g-recaptcha-response"></textarea>`)
	out, err := r.WaitForCaptcha(ctx(t), captcha.WaitForCaptchaIn{Timeout: 0.3, PollInterval: 0.1})
	must(t, err)
	wantEqual(t, "resolved without an answer", out.Resolved, false)
	r.eval(t, "setTimeout(() => document.querySelector('textarea').value = 'token', 200)")
	out, err = r.WaitForCaptcha(ctx(t), captcha.WaitForCaptchaIn{Timeout: 60, PollInterval: 0.1})
	must(t, err)
	wantEqual(t, "resolved by an answer", out.Resolved, true)
	r.show(t, "nothing")
	got, err := r.DetectCaptcha(ctx(t), driver.Here{})
	must(t, err)
	wantEqual(t, "detected", got.Detected, false)
}

func testForms(t *testing.T, r *fixture) {
	r.show(t, `<input id="n"><select id="s"><option value="1">One<option value="2">Two</select><input `+
		`type="checkbox" id="c"><input type="date" id="d">`)
	out, err := r.FillForm(ctx(t), action.FillFormIn{Items: []map[string]any{
		{"selector": "#n", "text": "Ann"}, {"selector": "#s", "value": "Two"}, {"selector": "#c", "checked": true},
		{"selector": "#d", "value": "2026-02-28"},
	}})
	must(t, err)
	wantEqual(t, "filled", out.Filled, 4)
	wantEqual(t, "values", r.eval(t, "[n.value, s.value, c.checked, d.value].join()"), `"Ann,2,true,2026-02-28"`)
	_, err = r.FillForm(ctx(t), action.FillFormIn{Where: within(1),
		Items: []map[string]any{{"selector": "#n", "text": "Bob"}, {"selector": "#none", "text": "x"}}})
	wantError(t, err, "filled 1 of 2", "#none")
	_, err = r.Fill(ctx(t), action.FillIn{Pick: pick("#d"), Text: "tomorrow"})
	wantError(t, err, "does not accept", "YYYY-MM-DD")
	_, err = r.UploadFile(ctx(t), action.UploadIn{Selector: "#n", Files: []string{"/no/such/file"}})
	wantError(t, err, "no such file")
}

func testWaits(t *testing.T, r *fixture) {
	r.show(t, `<div id="a">x</div><script>setTimeout(() => a.remove(), 200); setTimeout(() => { location.hash = `+
		`'there'; fetch('/api') }, 300)</script>`)
	for _, in := range []wait.WaitIn{
		{Type: "selector", Selector: new("#a"), State: new("detached"), Timeout: 60},
		{Type: "url", URL: new("**#there"), Timeout: 60}, {Type: "network_idle", Timeout: 60},
		{Type: "load", Timeout: 60}, {Type: "timeout", Timeout: 0.01},
	} {
		if _, err := r.Wait(ctx(t), in); err != nil {
			t.Errorf("wait for %s: %v", in.Type, err)
		}
	}
	r.eval(t, "setTimeout(() => fetch('/api?late'), 100)")
	got, err := r.Wait(ctx(t), wait.WaitIn{Type: "response", URLPattern: new("**/api?late"), Timeout: 60})
	must(t, err)
	if got.Status != 200 || got.Method != "GET" {
		t.Errorf("response %+v, want GET with 200", got)
	}
	_, err = r.Wait(ctx(t), wait.WaitIn{Type: "selector", Selector: new("#never"), Timeout: 0.3})
	wantError(t, err, "timed out", "#never")
	_, err = r.Wait(ctx(t), wait.WaitIn{Type: "url", Timeout: 1})
	wantError(t, err, `requires "url"`)
}
