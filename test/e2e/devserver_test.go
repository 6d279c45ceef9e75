package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// TestServersInTheBrowser opens services of the sandbox in its browser.
func TestServersInTheBrowser(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node", "chromium", "Xtigervnc")
	vite, err := filepath.Abs("../dev/node_modules/vite/bin/vite.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(vite); err != nil {
		testenv.Lack(t, "test/dev/node_modules is missing; run make deps")
	}
	s := serve(t)
	t.Run("a mapped name over HTTPS", func(t *testing.T) { openMappedName(t, s) })
	t.Run("Vite through every preview", func(t *testing.T) { openVite(t, s, vite) })
}

// openMappedName: the browser, which runs already, takes a service of the sandbox for a foreign
// host, without a certificate warning. Another host stays what it is.
func openMappedName(t *testing.T, s *server) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "<title>%s</title>ours", r.Host)
	}))
	defer service.Close()
	s.want(t, "POST /v1/browser/page/navigate", `{"url":"about:blank"}`, `"success":true`)
	s.want(t, "POST /v1/proxy/mappings", `{"source":"https://shop.foreign.example","target":"`+strings.TrimPrefix(service.URL, "http://127.0.0.1:")+`"}`, `"success":true`)
	s.want(t, "POST /v1/browser/page/navigate", `{"url":"https://shop.foreign.example/a","timeout":60}`, `"title":"shop.foreign.example"`)
	s.want(t, "POST /v1/browser/page/evaluate", `{"expression":"location.href + ' ' + isSecureContext + ' ' + document.body.innerText"}`, `"https://shop.foreign.example/a true ours"`)
	if got := s.call(t, "POST /v1/browser/page/navigate", `{"url":"https://other.foreign.example/","timeout":60}`); strings.Contains(got, `"success":true`) {
		t.Errorf("a host that is not mapped: got %s, want an error", got)
	}
	s.want(t, "DELETE /v1/proxy/mappings/"+url.PathEscape("https://shop.foreign.example"), "", `"success":true`)
}

// openVite: a Vite server, started by a command in the shell, is opened through every way, and
// a change of a file shows without a reload.
func openVite(t *testing.T, s *server, vite string) {
	s.write(t, "site/index.html", `<!doctype html><title>app</title><div id=app></div><script type=module src=/src/main.js></script>`)
	s.write(t, "site/src/main.js", `import { text } from "./text.js";
const show = (t) => { document.querySelector("#app").textContent = t; };
show(text);
if (import.meta.hot) import.meta.hot.accept("./text.js", (m) => show(m.text));`)
	s.write(t, "site/src/text.js", `export const text = "first";`)
	plain, based := freePort(t), freePort(t)
	for port, base := range map[int]string{plain: "/", based: fmt.Sprintf("/absproxy/%d/", based)} {
		s.call(t, "POST /v1/shell/exec", fmt.Sprintf(`{"id":"vite%d","exec_dir":%q,"command":"node %s --host 127.0.0.1 --port %d --strictPort --base %s","async_mode":true}`, port, s.Home+"/site", vite, port, base))
		testenv.Poll(t, "vite listens", func() bool {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
	_, own, _ := net.SplitHostPort(s.addr())
	for i, way := range []struct{ name, url string }{
		{"path", fmt.Sprintf("%s/proxy/%d/", s.URL, plain)},
		{"path with prefix", fmt.Sprintf("%s/absproxy/%d/", s.URL, based)},
		{"host name", fmt.Sprintf("http://%d-dev.localhost:%s/", plain, own)},
		{"header", s.URL + "/"},
	} {
		headers := `{"headers":{}}`
		if way.name == "header" {
			headers = fmt.Sprintf(`{"headers":{"x-aio-proxy-port":"%d"}}`, plain)
		}
		s.want(t, "POST /v1/browser/network/headers", headers, `"success":true`)
		before, after := fmt.Sprintf("before %d", i), fmt.Sprintf("after %d", i)
		s.write(t, "site/src/text.js", `export const text = "`+before+`";`)
		s.call(t, "GET /v1/browser/page/console?clear=true", "")
		s.want(t, "POST /v1/browser/page/navigate", `{"url":"`+way.url+`","timeout":60}`, `"success":true`)
		s.shows(t, way.name, before)
		s.want(t, "POST /v1/browser/page/evaluate", `{"expression":"window.kept = true"}`, `"success":true`)
		testenv.Poll(t, way.name+": the page waits for changes", func() bool {
			return strings.Contains(s.call(t, "GET /v1/browser/page/console", ""), "[vite] connected.")
		})
		s.write(t, "site/src/text.js", `export const text = "`+after+`";`)
		s.shows(t, way.name, after)
		if got := s.call(t, "POST /v1/browser/page/evaluate", `{"expression":"window.kept === true"}`); !strings.Contains(got, `"data":true`) {
			t.Errorf("%s: got %s, want the page not to be loaded anew", way.name, got)
		}
	}
}

// shows waits until the page shows a text.
func (s *server) shows(t *testing.T, way, text string) {
	t.Helper()
	expression := fmt.Sprintf("document.querySelector('#app')?.textContent === '%s'", text)
	body, err := json.Marshal(map[string]any{"type": "function", "expression": expression, "timeout": 60})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.call(t, "POST /v1/browser/page/wait", string(body)); !strings.Contains(got, `"success":true`) {
		t.Fatalf("%s: got %s and the page %s with console %s, want %q", way, got, s.call(t, "GET /v1/browser/page/html", ""), s.call(t, "GET /v1/browser/page/console", ""), text)
	}
}

// want sends a request and wants a text in its reply.
func (s *server) want(t *testing.T, request, body, want string) {
	t.Helper()
	if got := s.call(t, request, body); !strings.Contains(got, want) {
		t.Fatalf("%s %s: got %s, want %s", request, body, got, want)
	}
}

// write writes a file below the home.
func (s *server) write(t *testing.T, name, content string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"file": filepath.Join(s.Home, name), "content": content})
	if err != nil {
		t.Fatal(err)
	}
	s.want(t, "POST /v1/file/write", string(body), `"success":true`)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
