package page_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/page"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/action"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/captcha"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/capture"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/network"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/prompt"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/state"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/tablist"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/wait"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

// The parts of the service, whose methods the tests call.
type (
	navigationService = navigation.Service
	waitService       = wait.Service
	actionService     = action.Service
	captureService    = capture.Service
	contentService    = content.Service
	tabService        = tablist.Service
	promptService     = prompt.Service
	captchaService    = captcha.Service
	stateService      = state.Service
	networkService    = network.Service
)

// fixture is a browser with its pages, and a site to visit.
type fixture struct {
	*navigationService
	*waitService
	*actionService
	*captureService
	*contentService
	*tabService
	*promptService
	*captchaService
	*stateService
	*networkService
	browser *browser.Service
	runner  *proc.Runner
	dir     string
	site    string
}

func newFixture(t testing.TB, change ...func(*browser.Config)) *fixture {
	t.Helper()
	testenv.Need(t, "chromium", "Xtigervnc", "openbox", "ffmpeg", "pdftotext")
	r := &fixture{dir: t.TempDir()}
	runner := proc.New(proc.Config{
		Env:   []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "LANG=C.UTF-8"},
		Guard: []string{"/proc/self/exe", "guard"},
	})
	r.runner = runner
	desktop := display.New(display.Config{
		Runner: runner, State: r.dir, Home: r.dir, Workspace: r.dir, Width: 1024, Height: 768,
		Browser: func(ctx context.Context) (<-chan struct{}, func(), error) { return r.browser.Hold(ctx) },
	})
	c := browser.Config{Runner: runner, Display: desktop, Home: r.dir, State: r.dir, FileDialogs: true,
		ExtraArgs: []string{"--js-flags=--max-old-space-size=128"}}
	for _, f := range change {
		f(&c)
	}
	r.browser = browser.New(c)
	pages := page.New(page.Config{Browser: r.browser, Runner: runner, Home: r.dir, Workspace: r.dir})
	p := pages.Parts()
	r.navigationService, r.waitService, r.actionService, r.captureService = p.Navigation, p.Wait, p.Action, p.Capture
	r.contentService, r.tabService, r.promptService = p.Content, p.Tabs, p.Prompt
	r.captchaService, r.stateService, r.networkService = p.Captcha, p.State, p.Network
	site := httptest.NewServer(http.HandlerFunc(serveSite))
	r.site = site.URL
	t.Cleanup(func() {
		pages.Close()
		r.browser.Close()
		desktop.Close()
		runner.Close()
		site.CloseClientConnections()
		site.Close()
	})
	return r
}

// serveSite serves pages by path. /html?body=… serves the query as a page.
func serveSite(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/html":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<!doctype html><title>page</title>"+r.URL.Query().Get("body"))
	case "/favicon.ico":
		w.WriteHeader(http.StatusNoContent)
	case "/echo":
		fmt.Fprint(w, strings.Join([]string{r.Header.Get("X-All"), r.Header.Get("X-Scoped"), r.Header.Get("Cookie")}, "|"))
	case "/auth":
		if user, password, _ := r.BasicAuth(); user != "ann" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "denied", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, "welcome")
	case "/login":
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "s1", HttpOnly: true, Path: "/", MaxAge: 3600})
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<script>localStorage.token = "t1"; sessionStorage.tab = "x1"; indexedDB.open("db", `+
			`2).onupgradeneeded = (e) => e.target.result.createObjectStore("o", {keyPath: "id"}).put({id: 1, at: new Date(5)})</script>`)
	case "/report.csv":
		w.Header().Set("Content-Disposition", `attachment; filename="report.csv"`)
		fmt.Fprint(w, "a,b\n1,2\n")
	case "/paper.pdf":
		w.Header().Set("Content-Type", "application/pdf")
		w.Write([]byte(paper))
	case "/never":
		<-r.Context().Done()
	case "/endless":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<title>endless</title><p>begin")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case "/api":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"real":true}`)
	default:
		http.NotFound(w, r)
	}
}

// paper is a PDF of one page.
const paper = `%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj
4 0 obj<</Length 44>>stream
BT /F 18 Tf 20 50 Td (Words on paper) Tj ET

endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R>>
`

// show opens a page with the given body.
func (r *fixture) show(t testing.TB, body string) {
	t.Helper()
	r.visit(t, "/html?body="+escape(body))
}

func (r *fixture) visit(t testing.TB, path string) navigation.Location {
	t.Helper()
	at, err := r.Navigate(ctx(t), navigation.NavigateIn{URL: r.site + path, WaitUntil: "load"})
	must(t, err)
	return at
}

func escape(s string) string { return url.QueryEscape(s) }

// eval runs a script and returns its value as JSON.
func (r *fixture) eval(t *testing.T, script string) string {
	t.Helper()
	out, err := r.Evaluate(ctx(t), content.EvaluateIn{Expression: script})
	must(t, err)
	return fmt.Sprintf("%s", out.Data)
}

// pick selects an element by a selector.
func pick(selector string) action.Pick { return action.Pick{Selector: &selector} }

func click(selector string) action.ClickIn {
	return action.ClickIn{Pick: pick(selector), Button: "left", Count: 1}
}

func within(seconds float64) driver.Where { return driver.Where{Timeout: &seconds} }

// call is a context with a readable hint and message.
func call(t *testing.T) (context.Context, *op.Call) {
	c := &op.Call{}
	return op.WithCall(ctx(t), c), c
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that an error contains all texts.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want %q in it", err, w)
		}
	}
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}
