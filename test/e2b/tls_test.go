package e2b

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// serveNames starts a hub that serves HTTPS with a certificate of cove tls init. Clients reach it by host names, which the
// files in resolve translate.
func serveNames(t *testing.T, args ...string) *hub {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tls")
	// The output is for a shell.
	out, err := exec.Command("sh", "-c",
		`eval "$("$0" tls init --dir "$1" 2>/dev/null)" && printf '%s\n' "$E2B_DOMAIN" "$SSL_CERT_FILE" `+
			`"$NODE_EXTRA_CA_CERTS"`, cove, dir).Output()
	lines := strings.Split(string(out), "\n")
	ca := filepath.Join(dir, "ca.pem")
	if err != nil || len(lines) < 3 || lines[0] != "cove.localhost:10000" || lines[1] != ca || lines[2] != ca {
		t.Fatalf("tls init: got %q and error %v, want the domain and twice %s", lines, err, ca)
	}
	h := serve(t, append(args, "--domains", "cove.localhost", "--tls-cert", filepath.Join(dir, "cert.pem"),
		"--tls-key", filepath.Join(dir, "key.pem"))...)
	if !strings.HasPrefix(h.url, "https://127.0.0.1:") {
		t.Fatalf("got the address %s, want one with https", h.url)
	}
	address := strings.TrimPrefix(h.url, "https://")
	h.send = &http.Transport{ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	h.trust(t, ca)
	resolve, err := filepath.Abs("resolve")
	if err != nil {
		t.Fatal(err)
	}
	domain := strings.Replace(address, "127.0.0.1", "cove.localhost", 1)
	h.env = []string{"E2B_DOMAIN=" + domain, "SSL_CERT_FILE=" + ca, "NODE_EXTRA_CA_CERTS=" + ca,
		"PYTHONPATH=" + resolve, fmt.Sprintf("NODE_OPTIONS=--require=%q", filepath.Join(resolve, "resolve.cjs"))}
	return h
}

// TestClientsByName: the same clients work with only host names and TLS.
func TestClientsByName(t *testing.T) {
	t.Parallel()
	h := serveNames(t, "--public-ports")
	key := h.tenant(t, "acme", "user")
	for release, stories := range map[string][]string{
		"1": {"commands", "files", "watch", "terminal", "urls", "ports", "life", "killed"},
		"2": {"urls", "life", "killed"},
		"3": {"terminal", "life", "killed"},
	} {
		t.Run("python "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, release == "1")
			h.run(t, key, append([]string{testenv.NeedFile(t, ".venv-"+release+"/bin/python"), "sandbox.py"}, stories...)...)
		})
	}
	t.Run("javascript", func(t *testing.T) {
		t.Parallel()
		testenv.NeedFile(t, "node_modules/e2b")
		h.run(t, key, "node", "sandbox.mjs")
	})
	t.Run("interpreter javascript", func(t *testing.T) {
		t.Parallel()
		needRelease(t, false)
		for _, release := range []string{"code-interpreter-2", "code-interpreter-3"} { // they support only names
			testenv.NeedFile(t, "node_modules/"+release)
			h.run(t, key, "node", "interpreter.mjs", release)
		}
	})
	t.Run("desktop", func(t *testing.T) {
		t.Parallel()
		testenv.Long(t)
		needDesktop(t, "@e2b/desktop")
		h.run(t, key, "node", "desktop.mjs", "@e2b/desktop", "watch")
		h.run(t, key, testenv.NeedFile(t, ".venv-1/bin/python"), "desktop.py", "look", "mouse")
	})
	t.Run("interpreter", func(t *testing.T) {
		t.Parallel()
		needRelease(t, false)
		h.run(t, key, testenv.NeedFile(t, ".venv-3/bin/python"), "interpreter.py")
	})
	t.Run("command line", func(t *testing.T) {
		t.Parallel()
		testenv.Long(t)
		h.runCLI(t, key, "@e2b/cli", false)
	})
}

// TestTLS: a hub with a certificate supports HTTP/2, replaces the certificate and itself, and its own user needs neither.
func TestTLS(t *testing.T) {
	t.Parallel()
	h := serveNames(t, "--log-level", "info")
	if res, err := h.listByName(t); err != nil || res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
		t.Errorf("got %v and error %v, want 200 over HTTP/2", res, err)
	}
	clear := &hub{url: strings.Replace(h.url, "https:", "http:", 1), send: http.DefaultTransport}
	if status, body := clear.call(t, http.MethodGet, "/", ""); status != http.StatusBadRequest {
		t.Errorf("clear text: got %d %s, want 400", status, body)
	}
	// The command line of the hub's own user uses the socket, and prints the public address.
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(h.url, "https://"))
	if out := h.cove(t, "create", "a", "--output", "json"); !strings.Contains(out, "https://cove.localhost:"+port+
		"/sandbox/a") && !strings.Contains(out, "https://a.cove.localhost:"+port) {
		t.Errorf("create: got %s, want an address with https", out)
	}
	if out := h.cove(t, "exec", "a", "--", "echo", "inside"); out != "inside\n" {
		t.Errorf("exec: got %q, want inside", out)
	}
	served := h.replaceCertificate(t)
	h.upgradeWithMissingKey(t, filepath.Join(served, "key.pem"))
}

// listByName lists sandboxes at the name of the control API.
func (h *hub) listByName(t *testing.T) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.cove.localhost/v2/sandboxes", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", h.admin)
	res, err := h.send.RoundTrip(r)
	if err == nil {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	return res, err
}

// cove runs a verb of the command line as the hub's own user.
func (h *hub) cove(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(cove, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "COVE_STATE=" + h.state}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("cove %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// replaceCertificate checks that new connections use a replaced certificate, and returns the folder of its files.
func (h *hub) replaceCertificate(t *testing.T) string {
	t.Helper()
	other := filepath.Join(t.TempDir(), "tls")
	h.cove(t, "tls", "init", "--dir", other)
	served := filepath.Dir(h.env[1][len("SSL_CERT_FILE="):])
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := os.Rename(filepath.Join(other, name), filepath.Join(served, name)); err != nil {
			t.Fatal(err)
		}
	}
	h.send.(*http.Transport).CloseIdleConnections()
	if _, err := h.listByName(t); err == nil {
		t.Error("got a response with the old authority, want a certificate error")
	}
	h.trust(t, filepath.Join(other, "ca.pem"))
	if res, err := h.listByName(t); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("after the reload: got %v and error %v, want 200", res, err)
	}
	return served
}

// upgradeWithMissingKey checks that the hub refuses an upgrade while the key is missing, and upgrades after that.
func (h *hub) upgradeWithMissingKey(t *testing.T, key string) {
	t.Helper()
	for _, step := range []struct {
		from, to, wait string
		reached        func(log string) bool
	}{
		{key, key + ".moved", "the upgrade is refused", func(log string) bool { return strings.Contains(log, "no upgrade") }},
		{key + ".moved", key, "the successor serves", func(log string) bool { return strings.Count(log, "serving on https") == 2 }},
	} {
		if err := os.Rename(step.from, step.to); err != nil {
			t.Fatal(err)
		}
		if err := h.process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		testenv.Poll(t, step.wait, func() bool { return step.reached(h.log.String()) })
	}
	if res, err := h.listByName(t); err != nil || res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
		t.Errorf("after an upgrade: got %v and error %v, want 200 over HTTP/2", res, err)
	}
}

// trust makes the test trust an authority.
func (h *hub) trust(t *testing.T, ca string) {
	t.Helper()
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := h.send.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	t.Cleanup(transport.CloseIdleConnections)
	h.send = transport
}

// TestTLSSettings: invalid settings are reported before the hub serves.
func TestTLSSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for what, c := range map[string]struct {
		args []string
		want string
	}{
		"certificate alone": {[]string{"--tls-cert", "x"}, "set both or neither"},
		"key alone":         {[]string{"--tls-key", "x"}, "set both or neither"},
		"Unix socket":       {[]string{"--tls-cert", "x", "--tls-key", "y", "--listen", "unix:" + dir + "/s"}, "Unix socket"},
		"missing file":      {[]string{"--tls-cert", dir + "/none", "--tls-key", dir + "/none"}, "read the TLS certificate"},
	} {
		out, err := exec.Command(cove, append([]string{"hub", "--state", dir, "--listen", "127.0.0.1:0"}, c.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: got %v %s, want an error with %q", what, err, out, c.want)
		}
	}
}
