package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/test/attack/route"
)

// linked are the operations that a link on a foreign site may open: our own pages, which have no effect until the user acts.
var linked = []string{
	"home_page", "watch_page", "docs_page", "guide_page", "activity_page", "files_page", "terminal_page", "notebook_page",
	"vnc_page", "browser_ui", "codex_page", "opencode_page",
	"code_server", "jupyter_lab", "e2b_desktop", "share_open", "docs_llms",
}

// written are the operations that return files or records of the sandbox.
var written = regexp.MustCompile(`^(file_download|file_archive|observe_report_download|sandbox_export)$`)

// foreignSite is a server that a foreign site makes a browser visit.
type foreignSite struct {
	*server
	targets []route.Target
	fill    *strings.Replacer
}

// attackedSandbox is a sandbox without credentials, with the attacker's page in its files and behind a port.
func attackedSandbox(t *testing.T) foreignSite {
	t.Helper()
	s := serve(t)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, attackerPage)
	}))
	t.Cleanup(service.Close)
	examples := route.SandboxExamples()
	for _, name := range examples.Files {
		name = filepath.Join(s.Home, strings.TrimPrefix(name, "XHOMEX"))
		if filepath.Base(name) == "Downloads" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(attackerPage), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at, err := url.Parse(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	return foreignSite{s, route.Targets(t, route.Sandbox(t), examples),
		strings.NewReplacer("XHOMEX", s.Home, "XPORTX", at.Port(), "XACTIVITYX", "1", "XWATCHX", "none", "XEVILX", "http:%2F%2Fevil.example")}
}

const attackerPage = `<!doctype html><script>fetch("/v1/bash/exec", { method: "POST" })</script>`

// attackedHub is a hub without keys, with a sandbox.
func attackedHub(t *testing.T) foreignSite {
	t.Helper()
	h := serveHub(t)
	c := h.client(t)
	if _, err := c.Create(t.Context(), client.CreateOptions{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	h.mustPost(t, "/sandbox/a/v1/file/write", `{"file":"/home/gem/Downloads/invoice.html","content":"<script>1</script>"}`)
	return foreignSite{h.server, route.Targets(t, route.Hub(t), route.HubExamples()),
		strings.NewReplacer("XHOMEX", "/home/gem", "XPORTX", "3000", "XRECORDX", "none", "XENTRYX", "1", "XCLIENTX", "none")}
}

// mustPost calls an operation that must succeed.
func (s *server) mustPost(t *testing.T, path, body string) {
	t.Helper()
	if status, reply := s.post(t, path, body); status != http.StatusOK {
		t.Fatalf("POST %s: got status %d %s, want 200", path, status, reply)
	}
}

// visit requests a target like a browser, but does not follow redirects.
func (f foreignSite) visit(t *testing.T, target route.Target, headers map[string]string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+f.fill.Replace(target.Path), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/html,application/xhtml+xml")
	r.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64) Chrome/156")
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	res, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// navigation are the headers that a browser sends when a page of another site navigates to a URL.
func navigation(site, dest string) map[string]string {
	return map[string]string{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": dest, "Referer": "http://evil.example/"}
}

var foreignSites = map[string]func(*testing.T) foreignSite{"sandbox": attackedSandbox, "hub": attackedHub}

// TestForeignSitesOpenOnlyOwnPages: of all routes, a link on another site opens only our own pages, and those cannot be framed
// and load no foreign script.
func TestForeignSitesOpenOnlyOwnPages(t *testing.T) {
	t.Parallel()
	for name, start := range foreignSites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			for _, target := range f.targets {
				for _, site := range []string{"cross-site", "same-site"} {
					f.checkLink(t, target, site)
					for _, dest := range []string{"iframe", "frame", "object", "embed"} {
						if res := f.visit(t, target, navigation(site, dest)); target.Op != "health_live" && res.StatusCode != http.StatusForbidden {
							t.Errorf("%s %s in a foreign %s (%s): got status %d, want 403", target.Op, target.Path, dest, site, res.StatusCode)
						}
					}
				}
			}
		})
	}
}

func (f foreignSite) checkLink(t *testing.T, target route.Target, site string) {
	t.Helper()
	res := f.visit(t, target, navigation(site, "document"))
	policy := res.Header.Get("Content-Security-Policy")
	where := target.Op + " " + target.Path + " by a link (" + site + ")"
	switch {
	case target.Op == "health_live", res.StatusCode == http.StatusForbidden, isRedirectedAway(res):
	case slices.Contains(linked, target.Op), strings.HasSuffix(target.Op, "_asset"):
		// A page with a ticket may show the desktop in a frame.
		if res.StatusCode < 300 && (!isOwnPolicy(policy) || target.Op != "vnc_page" && !strings.Contains(policy, "frame-ancestors")) {
			t.Errorf("%s: got the policy %q, want one that allows only our scripts and frames", where, policy)
		}
	case slices.Contains([]string{"sandbox_proxy", "preview_proxy", "preview_absproxy"}, target.Op) &&
		res.StatusCode >= 400 && strings.Contains(strings.Join(res.Header.Values("Content-Security-Policy"), "; "), "default-src 'none'"):
	default:
		t.Errorf("%s: got status %d and type %q, want 403", where, res.StatusCode, res.Header.Get("Content-Type"))
	}
}

// isRedirectedAway reports whether a reply redirects to another origin of ours, or to a place where a page has no origin.
func isRedirectedAway(res *http.Response) bool {
	to, err := res.Location()
	if err != nil || res.StatusCode < 300 || res.StatusCode >= 400 {
		return false
	}
	return to.Host != res.Request.URL.Host || strings.Contains(to.Path, "/~")
}

// isOwnPolicy reports whether a policy allows no scripts, or only those of the page's own origin.
func isOwnPolicy(policy string) bool {
	scripts := ""
	for directive := range strings.SplitSeq(policy, ";") {
		fields := strings.Fields(directive)
		if len(fields) > 0 && (fields[0] == "script-src" || fields[0] == "default-src" && scripts == "") {
			scripts = strings.Join(fields[1:], " ")
		}
	}
	return (strings.Contains(scripts, "'self'") || scripts == "'none'") && !strings.Contains(scripts, "unsafe") &&
		!strings.Contains(scripts, "*") && !strings.Contains(scripts, "data:")
}

// active are the content types in which a browser runs scripts.
var active = regexp.MustCompile(`^(text/html|application/xhtml\+xml|image/svg\+xml|text/xml|application/xml|` +
	`multipart/related|message/rfc822)|\+xml`)

// TestRepliesNeverRunByThemselves: older browsers do not send fetch metadata. For them, only our own pages are documents that
// can run scripts in our origin, and files are downloaded instead of shown.
func TestRepliesNeverRunByThemselves(t *testing.T) {
	t.Parallel()
	for name, start := range foreignSites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			for _, target := range f.targets {
				if target.Kind == route.Stream || target.Kind == route.Socket || slices.Contains(slow, target.Op) {
					continue // not a document
				}
				f.checkReply(t, target)
			}
		})
	}
}

// slow are operations that start a browser or a program on first use, and return JSON or images.
var slow = []string{"jupyter_info", "nodejs_info", "sandbox_get_python_packages", "sandbox_get_nodejs_packages",
	"browser_page_screenshot", "browser_screenshot", "cdp"}

func (f foreignSite) checkReply(t *testing.T, target route.Target) {
	t.Helper()
	if strings.HasPrefix(target.Op, "browser_") && target.Op != "browser_ui" || strings.HasPrefix(target.Op, "clipboard") {
		return // for the same reason
	}
	res := f.visit(t, target, nil)
	h := res.Header
	policy, kind := strings.Join(h["Content-Security-Policy"], "; "), h.Get("Content-Type")
	where := target.Op + " " + target.Path
	own := isOwnPolicy(h.Get("Content-Security-Policy"))
	confined := strings.Contains(policy, "sandbox") && !strings.Contains(policy, "allow-same-origin")
	if active.MatchString(kind) && !confined &&
		!(own && (slices.Contains(linked, target.Op) || strings.HasSuffix(target.Op, "_asset") || res.StatusCode >= 400)) {
		t.Errorf("%s: got the type %q with the policy %q, want a sandbox or one of our own pages", where, kind, policy)
	}
	if h.Get("X-Content-Type-Options") != "nosniff" && (res.StatusCode < 300 || res.StatusCode >= 400) {
		t.Errorf("%s: got status %d without nosniff, want it", where, res.StatusCode)
	}
	isFile := written.MatchString(target.Op) || target.Op == "e2b_envd" && strings.Contains(target.Path, "files?path=")
	if isFile && res.StatusCode == http.StatusOK && (!strings.HasPrefix(h.Get("Content-Disposition"), "attachment") || !confined) {
		t.Errorf("%s: got the disposition %q and the policy %q, want an attachment in a sandbox", where, h.Get("Content-Disposition"), policy)
	}
}
