package relay_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// world is the Internet as the real egress proxy reaches it: every name resolves to one server, which serves a folder.
// Nothing leaves this machine.
type world struct {
	*relay.Relay
	dir, cert string

	mu   sync.Mutex
	seen []string // scheme, host, path
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	files := http.FileServer(http.Dir(w.dir))
	handle := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		w.mu.Lock()
		w.seen = append(w.seen, scheme+"://"+r.Host+r.URL.Path)
		w.mu.Unlock()
		files.ServeHTTP(rw, r)
	})
	plain, secure := httptest.NewServer(handle), httptest.NewTLSServer(handle)
	t.Cleanup(func() { plain.Close(); secure.Close() })
	w.cert = filepath.Join(t.TempDir(), "ca.pem")
	write(t, w.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))

	proxy, err := egress.New(egress.Config{
		Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"example.com"}},
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			address := plain.Listener.Addr().String()
			if to.Port() == 443 {
				address = secure.Listener.Addr().String()
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "egress.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- proxy.Serve(l) }()
	t.Cleanup(func() { proxy.Close(); <-served })
	w.Relay = newRelay(t, relay.Config{Target: "unix:" + path})
	return w
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// offer puts a file into the folder of the server.
func (w *world) offer(t *testing.T, path, text string) {
	t.Helper()
	write(t, filepath.Join(w.dir, path), []byte(text))
}

func (w *world) visited(url string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.seen, url)
}

// run runs a program without any configuration except the environment.
func (w *world) run(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	testenv.Need(t, name)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	home := t.TempDir()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = home
	cmd.Env = w.Environ(append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8"}, env...))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *world) must(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := w.run(t, env, name, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return out
}

func TestCurl(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.offer(t, "hello.txt", "hello")
	for _, args := range [][]string{
		{"http://example.com/hello.txt"},
		{"https://example.com/hello.txt"},
		{"-x", strings.Replace(w.URL(), "http:", "socks5h:", 1), "https://example.com/hello.txt"},
	} {
		if out := w.must(t, nil, "curl", append([]string{"-sS", "--cacert", w.cert}, args...)...); out != "hello" {
			t.Errorf("%v: %q, want \"hello\"", args, out)
		}
	}
	// The egress proxy explains a refusal.
	if out, err := w.run(t, nil, "curl", "-sS", "http://other.example/"); err != nil || !strings.Contains(out, "cove: ") {
		t.Errorf("%v: %q, want containing \"cove: \"", err, out)
	}
}

// TestLoopbackBypassesProxy: services of the sandbox are reached directly.
func TestLoopbackBypassesProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "own") }))
	defer own.Close()
	u, err := url.Parse(own.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		address := "http://" + host + ":" + u.Port() + "/"
		if out := w.must(t, nil, "curl", "-sS", address); out != "own" {
			t.Errorf("curl %s: %q, want \"own\"", host, out)
		}
		script := "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())"
		if out := w.must(t, nil, "python3", "-c", script, address); out != "own" {
			t.Errorf("python3 %s: %q, want \"own\"", host, out)
		}
	}
}

func TestGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quiet := []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_SSL_CAINFO=" + w.cert}
	src, bare := t.TempDir(), filepath.Join(w.dir, "demo.git")
	w.must(t, quiet, "git", "init", "-q", src)
	w.must(t, quiet, "git", "-C", src, "-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "-q", "--allow-empty", "-m", "first")
	w.must(t, quiet, "git", "clone", "-q", "--bare", src, bare)
	w.must(t, quiet, "git", "-C", bare, "update-server-info")
	for _, scheme := range []string{"http", "https"} {
		to := filepath.Join(t.TempDir(), "clone")
		w.must(t, quiet, "git", "clone", "-q", scheme+"://example.com/demo.git", to)
		if out := w.must(t, quiet, "git", "-C", to, "log", "--format=%s"); strings.TrimSpace(out) != "first" {
			t.Errorf("%s: %q, want \"first\"", scheme, out)
		}
	}
}

func TestPip(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"demo.py":                      "",
		"demo-1.0.dist-info/METADATA":  "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
		"demo-1.0.dist-info/WHEEL":     "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo-1.0.dist-info/RECORD":    "",
		"demo-1.0.dist-info/INSTALLER": "",
	} {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Write([]byte(text))
	}
	z.Close()
	w.offer(t, "files/demo-1.0-py3-none-any.whl", wheel.String())
	w.offer(t, "simple/demo/index.html", `<a href="/files/demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>`)
	testenv.Need(t, "pip")
	to := t.TempDir()
	w.must(t, []string{"PIP_CONFIG_FILE=/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_CACHE_DIR=1", "PIP_CERT=" + w.cert},
		"pip", "download", "-q", "--no-deps", "--index-url", "https://example.com/simple", "-d", to, "demo")
	if _, err := os.Stat(filepath.Join(to, "demo-1.0-py3-none-any.whl")); err != nil {
		t.Error(err)
	}
}

func TestNpm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.offer(t, "npm/demo", `{"name":"demo","dist-tags":{"latest":"1.2.3"},"versions":{"1.2.3":{"name":"demo",`+
		`"version":"1.2.3","dist":{"tarball":"https://example.com/npm/demo.tgz"}}}}`)
	env := []string{"npm_config_cafile=" + w.cert, "npm_config_globalconfig=/dev/null",
		"npm_config_update_notifier=false", "npm_config_audit=false"}
	for _, scheme := range []string{"http", "https"} {
		if out := w.must(t, env, "npm", "view", "demo", "version", "--registry",
			scheme+"://example.com/npm/"); strings.TrimSpace(out) != "1.2.3" {
			t.Errorf("%s: %q, want \"1.2.3\"", scheme, out)
		}
	}
}

func TestApt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	for _, d := range []string{"etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "etc/trusted.gpg.d",
		"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "etc/sources.list"),
		[]byte("deb [trusted=yes] http://example.com/plain stable main\ndeb [trusted=yes] https://example.com/secure stable main\n"))
	write(t, filepath.Join(dir, "status"), nil)
	conf := filepath.Join(dir, "apt.conf")
	write(t, conf, fmt.Appendf(nil,
		`Dir::Etc "%[1]s/etc"; Dir::State "%[1]s/state"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s/cache";
Acquire::https::CaInfo "%[2]s"; APT::Sandbox::User ""; Acquire::Retries "0"; Acquire::Languages "none";
`, dir, w.cert))
	// The server has no packages, so apt fails; the test only checks that apt sent the requests.
	out, _ := w.run(t, []string{"APT_CONFIG=" + conf}, "apt-get", "update")
	for _, want := range []string{"http://example.com/plain/dists/stable/InRelease", "https://example.com/secure/dists/stable/InRelease"} {
		if !w.visited(want) {
			t.Errorf("apt did not request %s:\n%s", want, out)
		}
	}
}

func TestWgetAndPython(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.offer(t, "hello.txt", "hello")
	if out := w.must(t, nil, "wget", "-q", "-O", "-", "--ca-certificate="+w.cert, "https://example.com/hello.txt"); out != "hello" {
		t.Errorf("wget: %q, want \"hello\"", out)
	}
	script := "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen('https://example.com/hello.txt').read().decode())"
	if out := w.must(t, []string{"SSL_CERT_FILE=" + w.cert}, "python3", "-c", script); out != "hello" {
		t.Errorf("python3: %q, want \"hello\"", out)
	}
}
