package browser_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// TestDevTools runs tests that share one browser and keep it running.
func TestDevTools(t *testing.T) {
	t.Parallel()
	r := newFixture(t, withTickets)
	for _, c := range []struct {
		name string
		test func(*testing.T, *fixture)
	}{
		{"info", testInfo},
		{"discovery", testDiscovery},
		{"tickets", testTickets},
		{"sockets", testSockets},
		{"large messages", testLargeMessages},
		{"many clients", testManyClients},
		{"isolated clients", testIsolatedClients},
		{"disconnected client", testDisconnectedClient},
		{"closed page", testClosedPageEndsItsSocket},
		{"order", testOrder},
		{"inspector", testInspector},
		{"last tab", testLastTab},
		{"download", testDownload},
		{"refusals", testRefusals},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, r) })
	}
}

func testInfo(t *testing.T, r *fixture) {
	type reply struct {
		Success bool
		Data    struct {
			UserAgent    string `json:"user_agent"`
			CDP          string `json:"cdp_url"`
			VNC          string `json:"vnc_url"`
			UI           *string
			Viewport     browser.Viewport
			PageViewport *browser.Viewport `json:"page_viewport"`
		}
	}
	plain := getJSON[reply](t, r.url+"/v1/browser/info")
	host := strings.TrimPrefix(r.url, "http://")
	d := plain.Data
	if !plain.Success || !strings.Contains(d.UserAgent, "Chrome/") || !strings.HasPrefix(d.CDP, "ws://"+host+"/cdp/devtools/browser/") ||
		d.VNC != r.url+"/vnc/index.html?autoconnect=true" || d.Viewport != (browser.Viewport{Width: 1024, Height: 768}) {
		t.Errorf("info: %+v, want Chrome, a CDP address below ws://%s, the viewer at %s and a 1024x768 viewport", d, host, r.url)
	}
	if p := d.PageViewport; p == nil || p.Width != 1024 || p.Height < 500 || p.Height >= 768 {
		t.Errorf("page viewport %+v, want width 1024 and height 500 to 767", p)
	}
	hub := behind(t, r.url, "/sandbox/abc", true)
	host = strings.TrimPrefix(hub, "http://")
	d = getJSON[reply](t, hub+"/v1/browser/info").Data
	if !strings.HasPrefix(d.CDP, "wss://"+host+"/cdp/devtools/browser/") || d.VNC != "https://"+host+"/vnc/index.html?autoconnect=true" {
		t.Errorf("behind a prefix and TLS: %+v, want CDP beginning with %q, VNC %q", d,
			"wss://"+host+"/cdp/devtools/browser/", "https://"+host+"/vnc/index.html?autoconnect=true")
	}
	if state, why := r.State(); state != "ready" {
		t.Errorf("state %s: %s, want state \"ready\"", state, why)
	}
}

// entry contains the discovery fields that clients use.
type entry struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	URL      string `json:"url"`
	Socket   string `json:"webSocketDebuggerUrl"`
	Frontend string `json:"devtoolsFrontendUrl"`
	Browser  string
}

func testDiscovery(t *testing.T, r *fixture) {
	hub := behind(t, r.url, "/sandbox/abc", false)
	for _, base := range []string{r.url, hub} {
		socket := strings.Replace(base, "http", "ws", 1)
		for path, want := range map[string]string{
			"/json/version": "/devtools/browser/", "/json/version/": "/devtools/browser/", "/cdp": "/cdp/devtools/browser/",
			"/cdp/json/version": "/cdp/devtools/browser/", "/cdp/json/version/": "/cdp/devtools/browser/",
		} {
			e := getJSON[entry](t, base+path)
			if !strings.HasPrefix(e.Socket, socket+want) || !strings.Contains(e.Browser, "Chrome") {
				t.Errorf("%s%s: %+v, want Socket beginning with %q, Browser containing \"Chrome\"", base, path, e, socket+want)
			}
		}
		for path, want := range map[string]string{
			"/json": "/devtools/page/", "/json/": "/devtools/page/", "/json/list": "/devtools/page/",
			"/cdp/json": "/cdp/devtools/page/", "/cdp/json/list": "/cdp/devtools/page/",
		} {
			list := getJSON[[]entry](t, base+path)
			found := false
			for _, e := range list {
				if e.Type == "page" && strings.HasPrefix(e.Socket, socket+want) && strings.HasPrefix(e.Frontend, base+"/devtools/inspector.html?ws=") {
					found = true
				}
			}
			if !found {
				t.Errorf("%s%s: %+v, want found true", base, path, list)
			}
		}
	}
	for _, query := range []string{"ws=evil.example/x", "ws=evil.example", "wss=evil.example:1/x", "ws=a&ws=b",
		"remoteBase=https://evil.example/"} {
		if status, _, _ := get(t, "GET", r.url+"/devtools/inspector.html?"+query); status != 403 {
			t.Errorf("DevTools page with %s: got status %d, want 403", query, status)
		}
	}
	if status, h, body := get(t, "GET", r.url+"/devtools/inspector.html"); status != 200 ||
		!strings.Contains(h.Get("Content-Type"), "html") || !strings.Contains(body, "DevTools") {
		t.Errorf("DevTools page: %d %v, want status 200, Content-Type containing \"html\", containing \"DevTools\"", status, h)
	}
	if status, _, body := get(t, "GET", r.url+"/json/protocol"); status != 200 || !strings.Contains(body, `"domain": "Page"`) {
		t.Errorf("the protocol: %d, want status 200, containing %q", status, `"domain": "Page"`)
	}
	// Open and close tabs over HTTP.
	status, _, body := get(t, "PUT", r.url+"/json/new?about:blank")
	if status != 200 || !strings.Contains(body, strings.Replace(r.url, "http", "ws", 1)) {
		t.Fatalf("a new tab: %d %s, want status 200, containing %q", status, body, strings.Replace(r.url, "http", "ws", 1))
	}
	_, id, _ := strings.Cut(body, `"id": "`)
	id, _, _ = strings.Cut(id, `"`)
	if status, _, body := get(t, "GET", r.url+"/cdp/json/close/"+id); status != 200 || !strings.Contains(body, "closing") {
		t.Errorf("close %s: %d %s, want status 200, containing \"closing\"", id, status, body)
	}
}

// ticketed returns a context whose caller authenticated with a ticket.
type ticketed struct{ context.Context }

func (c ticketed) Value(key any) any {
	if key == (ticketed{}) {
		return true
	}
	return c.Context.Value(key)
}

// withTickets issues numbered tickets to such callers.
func withTickets(c *browser.Config) {
	var issued atomic.Int32
	c.Ticket = func(ctx context.Context) (string, error) {
		if ctx.Value(ticketed{}) == nil {
			return "", nil
		}
		return fmt.Sprintf("tkt_%d", issued.Add(1)), nil
	}
}

// testTickets checks that each URL for a caller with a ticket contains a new ticket.
func testTickets(t *testing.T, r *fixture) {
	call := &op.Call{Base: &url.URL{Scheme: "https", Host: "example.com", Path: "/s/1"}}
	ctx := ticketed{op.WithCall(testContext(t), call)}
	info, err := r.Info(ctx, op.None{})
	must(t, err)
	if !strings.HasPrefix(info.CDP, "wss://example.com/s/1/cdp/devtools/browser/") || !strings.HasSuffix(info.CDP, "?ticket=tkt_2") ||
		info.VNC != "https://example.com/s/1/vnc/index.html?autoconnect=true&ticket=tkt_1" {
		t.Errorf("info: %+v, want addresses below example.com/s/1, VNC with ticket tkt_1 and CDP with tkt_2", info)
	}
	gate, _ := op.NewTable(r.Ops()).Get("cdp")
	w := httptest.NewRecorder()
	gate.Handler.ServeHTTP(w, httptest.NewRequest("GET", "/json/version", nil).WithContext(ctx))
	if !strings.Contains(w.Body.String(), "?ticket=tkt_3") {
		t.Errorf("discovery: %s, want String containing \"?ticket=tkt_3\"", w.Body)
	}
}

// dial connects a client to an address as Playwright does.
func dial(t testing.TB, address string) *cdp.Client {
	t.Helper()
	c, err := cdp.Dial(testContext(t), address, cdp.Config{})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func testSockets(t *testing.T, r *fixture) {
	hub := behind(t, r.url, "/sandbox/abc", false)
	files := site(t, nil)
	for _, base := range []string{r.url, hub} {
		version := getJSON[entry](t, base+"/cdp/json/version")
		root := strings.Replace(base, "http", "ws", 1)
		stale := version.Socket[:strings.LastIndexByte(version.Socket, '/')] + "/00000000-0000-0000-0000-000000000000"
		for _, address := range []string{version.Socket, getJSON[entry](t, base+"/json/version").Socket, stale,
			root + "/cdp", root + "/devtools/browser"} {
			c := dial(t, address)
			p := r.open(t, c, files.URL+"/hello")
			if title := eval[string](t, p, `document.title`); title != "/hello" {
				t.Errorf("through %s the page is %q, want title \"/hello\"", address, title)
			}
			must(t, c.CloseTarget(testContext(t), p.id))
		}
	}
	// A page's own socket has no sessions; commands go to it directly.
	socket := r.blank(t).Socket
	var sum int
	if err := dial(t, socket).Evaluate(testContext(t), cdp.Browser, `6 * 7`, &sum); err != nil || sum != 42 {
		t.Errorf("through %s: %d, %v, want sum 42", socket, sum, err)
	}
}

// blank returns the tab with which the browser started.
func (r *fixture) blank(t testing.TB) entry {
	t.Helper()
	for _, e := range getJSON[[]entry](t, r.url+"/cdp/json/list") {
		if e.Type == "page" && e.URL == "about:blank" {
			return e
		}
	}
	t.Fatal("there is no blank tab")
	return entry{}
}

// testLargeMessages checks that large messages pass in both directions.
func testLargeMessages(t *testing.T, r *fixture) {
	ctx := testContext(t)
	ws, _, err := websocket.Dial(ctx, r.blank(t).Socket, nil)
	must(t, err)
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	const down, up = 40 << 20, 10 << 20
	ask := func(expression string) (head string, size int64) {
		must(t, ws.Write(ctx, websocket.MessageText, []byte(`{"id":1,"method":"Runtime.evaluate","params":{"expression":"`+expression+`"}}`)))
		_, r, err := ws.Reader(ctx)
		must(t, err)
		var b bytes.Buffer
		_, err = io.CopyN(&b, r, 200)
		if err == nil {
			size, err = io.Copy(io.Discard, r)
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
		must(t, err)
		return b.String(), size
	}
	if head, n := ask(fmt.Sprintf(`'x'.repeat(%d)`, down)); n < down-200 {
		t.Errorf("received %d of %d bytes: %s, want at least %v", n, down, head, down-200)
	}
	if head, _ := ask(`'` + strings.Repeat("y", up) + `'.length`); !strings.Contains(head, fmt.Sprint(up)) {
		t.Errorf("sent %d bytes, the reply is %s, want head containing %q", up, head, fmt.Sprint(up))
	}
}

func testManyClients(t *testing.T, r *fixture) {
	files := site(t, nil)
	address := getJSON[entry](t, r.url+"/cdp/json/version").Socket
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			c, err := cdp.Dial(testContext(t), address, cdp.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			id, err := c.CreateTarget(testContext(t), cdp.NewTarget{URL: fmt.Sprintf("%s/%d", files.URL, i)})
			if err != nil {
				t.Error(err)
				return
			}
			s, err := c.Attach(testContext(t), id)
			if err != nil {
				t.Error(err)
				return
			}
			for n := range 20 {
				var got int
				if err := c.Evaluate(testContext(t), s, fmt.Sprintf(`%d + %d`, i, n), &got); err != nil || got != i+n {
					t.Errorf("client %d: %d, %v, want %v", i, got, err, i+n)
				}
			}
			if err := c.CloseTarget(testContext(t), id); err != nil {
				t.Error(err)
			}
			r.info(t)
		})
	}
	all.Wait()
}

// testIsolatedClients checks that clients with equal ids neither receive events of the other's sessions nor reach them.
func testIsolatedClients(t *testing.T, r *fixture) {
	files := site(t, nil)
	address := getJSON[entry](t, r.url+"/cdp/json/version").Socket
	a, b := dial(t, address), dial(t, address)
	everything := b.Subscribe(cdp.Filter{AllSessions: true})
	defer everything.Close()
	p := r.open(t, a, files.URL+"/of-a")
	console := a.Subscribe(cdp.Filter{Session: p.session, Methods: []string{"Runtime.consoleAPICalled"}})
	defer console.Close()
	created := a.Subscribe(cdp.Filter{Methods: []string{"Target.targetCreated"}})
	defer created.Close()
	must(t, a.Call(testContext(t), p.session, "Runtime.enable", nil, nil))
	must(t, a.Call(testContext(t), cdp.Browser, "Target.setDiscoverTargets", map[string]any{"discover": true}, nil))
	must(t, a.Call(testContext(t), cdp.Browser, "Target.setAutoAttach",
		map[string]any{"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true}, nil))
	eval[any](t, p, `console.log("of a"), null`)
	for _, s := range []*cdp.Subscription{console, created} {
		_, err := s.Next(testContext(t))
		must(t, err)
	}
	// All messages use one pipe, so a misdirected message would precede this reply.
	must(t, b.Call(testContext(t), cdp.Browser, "Browser.getVersion", nil, nil))
	over, cancel := context.WithCancel(testContext(t))
	cancel()
	if e, err := everything.Next(over); err == nil {
		t.Errorf("a client received %s of session %q, which is another client's", e.Method, e.Session)
	}
	for _, method := range []string{"Runtime.evaluate", "Page.enable", "Target.getTargets"} {
		if err := b.Call(testContext(t), p.session, method, map[string]any{"expression": "1"}, nil); !errors.Is(err, cdp.ErrDetached) {
			t.Errorf("%s in a session of another client: %v, want %v", method, err, cdp.ErrDetached)
		}
	}
	if err := b.Detach(testContext(t), p.session); err == nil {
		t.Error("a client ended a session of another client")
	}
	b.Close()
	if got := eval[string](t, p, `document.title`); got != "/of-a" {
		t.Errorf("after the other client disconnected, the title is %q, want \"/of-a\"", got)
	}
	must(t, a.CloseTarget(testContext(t), p.id))
}

// testDisconnectedClient checks that the sessions of a client end when it disconnects.
func testDisconnectedClient(t *testing.T, r *fixture) {
	client := r.connect(t)
	id, err := client.CreateTarget(testContext(t), cdp.NewTarget{})
	must(t, err)
	attached := func() bool {
		var info struct {
			Target cdp.Target `json:"targetInfo"`
		}
		must(t, client.Call(testContext(t), cdp.Browser, "Target.getTargetInfo", map[string]any{"targetId": id}, &info))
		return info.Target.Attached
	}
	for name, address := range map[string]string{
		"browser": getJSON[entry](t, r.url+"/cdp/json/version").Socket,
		"page":    strings.Replace(r.url, "http", "ws", 1) + "/devtools/page/" + id,
	} {
		c := dial(t, address)
		if name == "browser" {
			_, err := c.Attach(testContext(t), id)
			must(t, err)
		}
		must(t, c.Call(testContext(t), cdp.Browser, "Target.setAutoAttach",
			map[string]any{"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true}, nil))
		testenv.Poll(t, "the page is attached", attached)
		c.Close()
		testenv.Poll(t, "the page is not attached", func() bool { return !attached() })
	}
	must(t, client.CloseTarget(testContext(t), id))
}

// testClosedPageEndsItsSocket checks that the client of a page is notified when the page closes.
func testClosedPageEndsItsSocket(t *testing.T, r *fixture) {
	client := r.connect(t)
	id, err := client.CreateTarget(testContext(t), cdp.NewTarget{})
	must(t, err)
	c := dial(t, strings.Replace(r.url, "http", "ws", 1)+"/devtools/page/"+id)
	events := c.Subscribe(cdp.Filter{Methods: []string{"Inspector.detached"}})
	defer events.Close()
	must(t, client.CloseTarget(testContext(t), id))
	for reason := ""; reason != "target_closed"; { // another event may precede it
		e, err := events.Next(testContext(t))
		must(t, err)
		var p struct{ Reason string }
		must(t, e.Decode(&p))
		reason = p.Reason
	}
	select {
	case <-c.Done():
	case <-testContext(t).Done():
		t.Error("the socket of a closed page stays open")
	}
	if status, _, _ := get(t, "GET", r.url+"/json/close/"+id); status != 404 {
		t.Errorf("close again: status %d, want 404", status)
	}
}

// testInspector checks that the DevTools page loads its files from the server and connects to the inspected page.
func testInspector(t *testing.T, r *fixture) {
	client := r.connect(t)
	id, err := client.CreateTarget(testContext(t), cdp.NewTarget{URL: "data:text/html,<title>inspected</title>"})
	must(t, err)
	frontend := ""
	for _, e := range getJSON[[]entry](t, r.url+"/json/list") {
		if e.ID == id {
			frontend = e.Frontend
		}
	}
	inspector, err := client.CreateTarget(testContext(t), cdp.NewTarget{URL: frontend})
	must(t, err)
	session, err := client.Attach(testContext(t), inspector)
	must(t, err)
	testenv.Poll(t, "DevTools show the page", func() bool {
		var title string
		err := client.Evaluate(testContext(t), session, `document.title`, &title)
		return err == nil && strings.Contains(title, "data:text/html")
	})
	for _, target := range []string{inspector, id} {
		must(t, client.CloseTarget(testContext(t), target))
	}
	if status, _, _ := get(t, "GET", r.url+"/devtools/no/such/file.js"); status != 404 {
		t.Errorf("missing file: status %d, want 404", status)
	}
}

// testOrder checks that the list starts with the front tab, followed by the previous front tabs.
func testOrder(t *testing.T, r *fixture) {
	client, files := r.connect(t), site(t, nil)
	var ids []string
	order := func() string {
		var names []string
		for _, e := range getJSON[[]entry](t, r.url+"/json/list") {
			if name, ok := strings.CutPrefix(e.URL, files.URL+"/"); ok && e.Type == "page" {
				names = append(names, name)
			}
		}
		return strings.Join(names, " ")
	}
	want := func(what, list string) {
		t.Helper()
		testenv.Poll(t, what+": the list is "+list, func() bool { return order() == list })
	}
	for i := range 3 {
		ids = append(ids, r.open(t, client, fmt.Sprintf("%s/%d", files.URL, i)).id)
		order()
	}
	want("opened in turn", "2 1 0")
	if status, _, body := get(t, "GET", r.url+"/json/activate/"+ids[0]); status != 200 || body != "Target activated" {
		t.Errorf("activate: %d %s, want status 200, Target activated", status, body)
	}
	want("brought to the front", "0 2 1")
	must(t, client.CloseTarget(testContext(t), ids[2]))
	want("another one closed", "0 1")
	for _, id := range ids[:2] {
		must(t, client.CloseTarget(testContext(t), id))
	}
}

// testLastTab checks that closing all tabs opens a blank one and keeps the browser and its clients.
func testLastTab(t *testing.T, r *fixture) {
	c := dial(t, getJSON[entry](t, r.url+"/cdp/json/version").Socket)
	pid := r.pidOf(t, "chromium")
	for range 2 {
		targets, err := c.Targets(testContext(t))
		must(t, err)
		for _, p := range targets {
			// A tab of another test may be closing.
			if p.Type != "page" {
				continue
			}
			if err := c.CloseTarget(testContext(t), p.ID); err != nil && !strings.Contains(err.Error(), "No target") {
				t.Fatal(err)
			}
		}
		testenv.Poll(t, "a blank tab is there", func() bool {
			list := pages(t, c)
			return len(list) == 1 && list[0] == "about:blank"
		})
	}
	if r.pidOf(t, "chromium") != pid {
		t.Error("the browser was restarted")
	}
	if _, hint := r.info(t); hint != "" {
		t.Errorf("hint %q, want hint \"\"", hint)
	}
}

func testDownload(t *testing.T, r *fixture) {
	files := site(t, map[string]http.HandlerFunc{"/report": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Disposition", `attachment; filename="report ü.txt"`)
		fmt.Fprint(w, "figures")
	}})
	p := r.open(t, r.connect(t), files.URL+"/")
	eval[any](t, p, `location.href = "/report", null`)
	testenv.Poll(t, "the file is in Downloads", func() bool { return fileIs(r.Downloads()+"/report ü.txt", "figures") })
	must(t, p.client.CloseTarget(testContext(t), p.id))
}

func testRefusals(t *testing.T, r *fixture) {
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/json/version", 405}, {"DELETE", "/cdp/json/list", 405}, {"GET", "/cdp/nope", 404}, {"GET", "/cdp/../v1/browser/info", 200},
		{"GET", "/json/nope", 404},
	} {
		if status, _, body := get(t, c.method, r.url+c.path); status != c.status {
			t.Errorf("%s %s: status %d, want %d: %.200s", c.method, c.path, status, c.status, body)
		}
	}
}
