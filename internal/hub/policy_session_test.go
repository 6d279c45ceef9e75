package hub

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/policy"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/network/relay"
)

// wheel is a Python package.
func wheel(t *testing.T) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{
		"demo.py":                     "",
		"demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
		"demo-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo-1.0.dist-info/RECORD":   "",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	z.Close()
	return b.Bytes()
}

// nodePackage is a package of npm.
func nodePackage(t *testing.T) []byte {
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	a := tar.NewWriter(g)
	text := `{"name":"demo","version":"1.0.0"}`
	if err := a.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(a, text)
	a.Close()
	g.Close()
	return b.Bytes()
}

// registries serves the hosts that pip, npm, git and apt use.
func registries(t *testing.T) *httptest.Server {
	repository := t.TempDir()
	for _, args := range []string{"init -q --bare .", "update-server-info"} {
		cmd := exec.Command("git", strings.Fields(args)...)
		cmd.Dir = repository
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v %s", args, err, out)
		}
	}
	python, node := wheel(t), nodePackage(t)
	page := func(format string, args ...any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, format, args...)
		}
	}
	file := func(b []byte) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { w.Write(b) } }
	m := http.NewServeMux()
	m.Handle("pypi.test/simple/demo/", page(`<a href="http://files.pythonhosted.test/demo-1.0-py3-none-any.whl#sha256=%x">demo</a>`,
		sha256.Sum256(python)))
	m.Handle("files.pythonhosted.test/", file(python))
	m.Handle("registry.npmjs.test/demo", page(`{"name":"demo","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"demo",`+
		`"version":"1.0.0","dist":{"tarball":"http://registry.npmjs.test/demo-1.0.0.tgz"}}}}`))
	m.Handle("registry.npmjs.test/demo-1.0.0.tgz", file(node))
	m.Handle("github.test/demo.git/", http.StripPrefix("/demo.git", http.FileServer(http.Dir(repository))))
	for _, host := range []string{"deb", "security", "ftp"} {
		m.Handle(host+".debian.test/", http.NotFoundHandler())
		m.Handle(host+".debian.test/Packages", file(nil))
	}
	m.Handle("telemetry.evil.test/", page("thanks"))
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	return s
}

// session runs pip, npm, git and apt as programs of a sandbox, and returns the errors by program.
func session(t *testing.T, proxy string) map[string]string {
	dir := t.TempDir()
	list := filepath.Join(dir, "list")
	text := ""
	for _, host := range []string{"deb", "security", "ftp"} {
		text += "deb [trusted=yes] http://" + host + ".debian.test/ ./\n"
	}
	if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "npm", "node"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	failed := map[string]string{}
	for _, args := range [][]string{
		{"pip", "download", "--no-deps", "--no-cache-dir", "-q", "-d", dir, "--index-url", "http://pypi.test/simple",
			"--trusted-host", "pypi.test", "--trusted-host", "files.pythonhosted.test", "demo"},
		{"npm", "install", "--prefix", filepath.Join(dir, "node"), "--registry", "http://registry.npmjs.test/", "--no-audit", "--no-fund",
			"--no-update-notifier", "--cache", filepath.Join(dir, "npm"), "--fetch-retries=0", "demo"},
		{"git", "ls-remote", "http://github.test/demo.git"},
		{"apt-get", "update", "-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null",
			"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"), "-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
			"-o", "APT::Sandbox::User=", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=0",
			"-o", "Acquire::http::Proxy=" + proxy, "-o", "Acquire::Languages=none"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "http_proxy="+proxy, "https_proxy="+proxy, "no_proxy=", "NO_PROXY=",
			"PIP_FIND_LINKS=", "PIP_CONFIG_FILE=/dev/null", "PIP_RETRIES=0", "PIP_CERT=", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil {
			failed[args[0]] = fmt.Sprintf("%v: %s", err, out)
		}
	}
	return failed
}

// TestLearnedRulesSuffice: the recording of a session of pip, npm, git and apt proposes few rules, with which the session
// passes, and nothing else.
func TestLearnedRulesSuffice(t *testing.T) {
	testenv.Need(t, "pip", "npm", "git", "apt-get")
	servers := registries(t)
	at := netip.MustParseAddrPort(servers.Listener.Addr().String())
	r := newRig(t, setup{hub: Config{changeEgress: func(c *egress.Config) {
		c.Private = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{at.Addr()}, nil }
		c.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", at.String())
		}
	}}})
	r.create(`{"name":"a","network":{"mode":"allow","allow":["!*.evil.test"]}}`)
	port, err := relay.New(relay.Config{Target: "unix:" + r.socket("a"), Listen: "127.0.0.1:0", Open: true})
	if err == nil {
		err = port.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	if status, _ := r.program("a", "x", "http://pypi.test/simple/demo/"); status != 403 {
		t.Errorf("got %d, want it denied without rules", status)
	}
	if a := r.do("POST", "/api/v1/sandbox/a/egress/learn", `{"allow_all":true}`); a.Status != 200 {
		t.Fatalf("got %d %s, want 200", a.Status, a.Body)
	}
	for program, text := range session(t, port.URL()) {
		t.Errorf("while learning, %s failed: %s", program, text)
	}
	if status, _ := r.program("a", "x", "http://telemetry.evil.test/"); status != 403 {
		t.Errorf("got %d, want rules that deny in force", status)
	}
	a := r.do("DELETE", "/api/v1/sandbox/a/egress/learn?apply=true", "")
	var got policy.Learned
	if json.Unmarshal(a.Data, &got) != nil || len(got.Rules) > 10 ||
		strings.Join(got.Rules, " ") != "*.debian.test files.pythonhosted.test github.test pypi.test registry.npmjs.test" {
		t.Errorf("got %d %s, want at most ten rules for the hosts of the session", a.Status, a.Body)
	}
	for program, text := range session(t, port.URL()) {
		t.Errorf("with the rules, %s failed: %s", program, text)
	}
	for _, url := range []string{"http://other.test/", "http://telemetry.evil.test/"} {
		if status, _ := r.program("a", "x", url); status != 403 {
			t.Errorf("%s: got %d, want it denied", url, status)
		}
	}
}
