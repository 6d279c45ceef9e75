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
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestServersInTheBrowser opens services of the sandbox in its browser.
func TestServersInTheBrowser(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
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
	t.Run("Vite through every preview", func(t *testing.T) {
		_, own, _ := net.SplitHostPort(s.addr())
		plain, based := testenv.FreePort(t), testenv.FreePort(t)
		openVite(t, s, s, vite, plain, based, []way{
			{name: "path", url: fmt.Sprintf("%s/proxy/%d/", s.URL, plain)},
			{name: "path with prefix", url: fmt.Sprintf("%s/absproxy/%d/", s.URL, based)},
			{name: "host name", url: fmt.Sprintf("http://%d-dev.localhost:%s/", plain, own)},
			{name: "header", url: s.URL + "/", port: plain},
		})
	})
	t.Run("behind a hub", func(t *testing.T) {
		h, g := serveInHub(t)
		_, port, _ := net.SplitHostPort(h.addr())
		t.Run("Vite", func(t *testing.T) {
			openVite(t, s, g, g.Home+"/dev/node_modules/vite/bin/vite.js", 5173, 5174, []way{
				{name: "path", url: "http://localhost:" + port + "/sandbox/dev/proxy/5173/"},
				{name: "path with prefix", url: "http://localhost:" + port + "/sandbox/dev/absproxy/5174/"},
				{name: "host name", url: "http://5173-dev.localhost:" + port + "/"},
			})
		})
		t.Run("Flask", func(t *testing.T) { openFlask(t, s, g, port) })
	})
}

// serveInHub starts a hub with a sandbox dev, in which the development servers are installed, and returns both.
func serveInHub(t *testing.T) (*hub, *server) {
	t.Helper()
	h := serveHub(t)
	if _, err := h.client(t).Create(t.Context(), client.CreateOptions{Name: "dev"}); err != nil {
		t.Fatal(err)
	}
	g := &server{URL: h.URL + "/sandbox/dev", Home: "/home/gem"}
	g.want(t, "POST /v1/bash/exec", `{"command":"mkdir -p ~/dev"}`, `"exit_code":0`)
	for _, dir := range []string{"node_modules", "python"} {
		h.must(t, "cp", "../dev/"+dir, "dev:"+g.Home+"/dev/"+dir)
	}
	return h, g
}

// openMappedName: the running browser loads a service of the sandbox under the name of a foreign
// host, without a certificate warning. Other hosts are not affected.
func openMappedName(t *testing.T, s *server) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "<title>%s</title>ours", r.Host)
	}))
	defer service.Close()
	s.want(t, "POST /v1/browser/page/navigate", `{"url":"about:blank"}`, `"success":true`)
	s.want(t, "POST /v1/proxy/mappings", `{"source":"https://shop.foreign.example","target":"`+
		strings.TrimPrefix(service.URL, "http://127.0.0.1:")+`"}`, `"success":true`)
	s.want(t, "POST /v1/browser/page/navigate", `{"url":"https://shop.foreign.example/a","timeout":60}`, `"title":"shop.foreign.example"`)
	s.want(t, "POST /v1/browser/page/evaluate",
		`{"expression":"location.href + ' ' + isSecureContext + ' ' + document.body.innerText"}`, `"https://shop.foreign.example/a true ours"`)
	if got := s.call(t, "POST /v1/browser/page/navigate",
		`{"url":"https://other.foreign.example/","timeout":60}`); strings.Contains(got, `"success":true`) {
		t.Errorf("a host that is not mapped: got %s, want an error", got)
	}
	s.want(t, "DELETE /v1/proxy/mappings/"+url.PathEscape("https://shop.foreign.example"), "", `"success":true`)
}

// way is one way to reach a service.
type way struct {
	name, url string
	port      int // named by the header; 0: none
}

// openVite: the browser of s opens a Vite server, which a command in the shell of g started, in every
// way. A changed file appears without a reload. Two servers run, one of them under a path prefix.
func openVite(t *testing.T, s, g *server, vite string, plain, based int, ways []way) {
	g.write(t, "site/index.html", `<!doctype html><title>app</title><div id=app></div><script type=module src=/src/main.js></script>`)
	g.write(t, "site/src/main.js", `import { text } from "./text.js";
const show = (t) => { document.querySelector("#app").textContent = t; };
show(text);
if (import.meta.hot) import.meta.hot.accept("./text.js", (m) => show(m.text));`)
	g.write(t, "site/src/text.js", `export const text = "first";`)
	for port, base := range map[int]string{plain: "/", based: fmt.Sprintf("/absproxy/%d/", based)} {
		g.begin(t, fmt.Sprintf("node %s --host 127.0.0.1 --port %d --strictPort --base %s", vite, port, base), "site", port)
	}
	for i, way := range ways {
		headers := `{"headers":{}}`
		if way.port > 0 {
			headers = fmt.Sprintf(`{"headers":{"x-aio-proxy-port":"%d"}}`, way.port)
		}
		s.want(t, "POST /v1/browser/network/headers", headers, `"success":true`)
		before, after := fmt.Sprintf("before %d", i), fmt.Sprintf("after %d", i)
		// A page that loads before Vite detects the change would miss it.
		g.save(t, "site/src/text.js", `export const text = "`+before+`";`, way.name+": both servers have seen the change", func() bool {
			return strings.Contains(g.call(t, fmt.Sprintf("GET /proxy/%d/src/text.js", plain), ""), before) &&
				strings.Contains(g.call(t, fmt.Sprintf("GET /absproxy/%d/src/text.js", based), ""), before)
		})
		s.call(t, "GET /v1/browser/page/console?clear=true", "")
		s.want(t, "POST /v1/browser/page/navigate", `{"url":"`+way.url+`","timeout":60}`, `"success":true`)
		s.shows(t, way.name, before)
		s.want(t, "POST /v1/browser/page/evaluate", `{"expression":"window.kept = true"}`, `"success":true`)
		testenv.Poll(t, way.name+": the page waits for changes", func() bool {
			return strings.Contains(s.call(t, "GET /v1/browser/page/console", ""), "[vite] connected.")
		})
		g.save(t, "site/src/text.js", `export const text = "`+after+`";`, way.name+": the page has seen the change", func() bool {
			return strings.Contains(s.call(t, "POST /v1/browser/page/evaluate",
				`{"expression":"document.querySelector('#app').textContent"}`), after)
		})
		if got := s.call(t, "POST /v1/browser/page/evaluate", `{"expression":"window.kept === true"}`); !strings.Contains(got, `"data":true`) {
			t.Errorf("%s: got %s, want the page not to be reloaded", way.name, got)
		}
	}
	s.want(t, "POST /v1/browser/network/headers", `{"headers":{}}`, `"success":true`)
}

// openFlask: Flask's own server, which restarts when a file changes, shows the change in every way.
// A page that loads during the restart reports that the service is not available; a reload succeeds.
func openFlask(t *testing.T, s, g *server, port string) {
	app := func(text string) string {
		return "from flask import Flask\napp = Flask(__name__)\n@app.get('/')\ndef home(): return '<div id=app>" + text + "</div>'\n"
	}
	g.write(t, "flask/app.py", app("first"))
	// Flask watches files of --extra-files before it loads them, so it misses no change. Python reuses a cached file if the
	// source has the same size and the same modification time in seconds.
	g.begin(t, "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$HOME/dev/python python3 -m flask run --debug --port 5000 "+
		"--extra-files $HOME/flask/app.py", "flask", 5000)
	for i, url := range []string{"http://localhost:" + port + "/sandbox/dev/proxy/5000/", "http://5000-dev.localhost:" + port + "/"} {
		text := fmt.Sprintf("change %d", i)
		g.write(t, "flask/app.py", app(text))
		testenv.Poll(t, url+" shows "+text, func() bool {
			s.call(t, "POST /v1/browser/page/navigate", `{"url":"`+url+`","timeout":60}`)
			return strings.Contains(s.call(t, "GET /v1/browser/page/html", ""), text)
		})
	}
}

// save writes a file under the home folder, and repeats this every few seconds until the change appears: of changes within a few
// milliseconds, Vite misses every second one.
func (s *server) save(t *testing.T, name, content, what string, seen func() bool) {
	t.Helper()
	var last time.Time
	testenv.Poll(t, what, func() bool {
		if time.Since(last) > 5*time.Second {
			s.write(t, name, content)
			last = time.Now()
		}
		return seen()
	})
}

// begin starts a command in a folder under the home folder and waits until it listens on a port.
func (s *server) begin(t *testing.T, command, dir string, port int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"id": fmt.Sprintf("port%d", port), "exec_dir": s.Home + "/" + dir,
		"command": command, "async_mode": true})
	if err != nil {
		t.Fatal(err)
	}
	s.call(t, "POST /v1/shell/exec", string(body))
	testenv.Poll(t, command+" listens", func() bool {
		return strings.Contains(s.call(t, "GET /v1/sandbox/ports", ""), fmt.Sprintf(`"port":%d,`, port))
	})
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
		t.Fatalf("%s: got %s and the page %s with console %s, want %q", way, got,
			s.call(t, "GET /v1/browser/page/html", ""), s.call(t, "GET /v1/browser/page/console", ""), text)
	}
}

// want sends a request and requires a text in its reply.
func (s *server) want(t *testing.T, request, body, want string) {
	t.Helper()
	if got := s.call(t, request, body); !strings.Contains(got, want) {
		t.Fatalf("%s %s: got %s, want %s", request, body, got, want)
	}
}

// write writes a file under the home folder.
func (s *server) write(t *testing.T, name, content string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"file": filepath.Join(s.Home, name), "content": content})
	if err != nil {
		t.Fatal(err)
	}
	s.want(t, "POST /v1/file/write", string(body), `"success":true`)
}
