package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// reverse starts cove port-forward -R and waits until it listens. It returns its output and a function that kills it.
func (h *hub) reverse(t *testing.T, name, spec string) (lines *bufio.Reader, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), cove, "forward", name, "-R", spec)
	cmd.Env = environment(t.TempDir(), h.env)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Kill()
		io.Copy(io.Discard, out)
		cmd.Wait()
	}
	t.Cleanup(kill)
	lines = bufio.NewReader(out)
	expectForward(t, lines)
	return lines, kill
}

func expectForward(t *testing.T, lines *bufio.Reader) {
	t.Helper()
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "forwarding port 9000 of the sandbox to ") {
		t.Fatalf("got %q and error %v, want the forwarded port", line, err)
	}
}

// TestReverseForward: programs in a sandbox reach a server of the caller's machine while cove port-forward -R runs, also after a
// restart of the hub. When it is killed, no listener remains. Viewers and other tenants cannot use it.
func TestReverseForward(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "curl")
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	admin := tenants(t, nil, "--listen", address)
	ann, bob, looker := admin.tenant(t, "ann", "user"), admin.tenant(t, "bob", "user"), admin.tenant(t, "ann", "viewer")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "the caller's machine got %s", b)
	}))
	t.Cleanup(server.Close)
	spec := "9000:" + strings.TrimPrefix(server.URL, "http://")
	ann.must(t, "create", "a", "--network", `{"mode":"none"}`)
	lines, kill := ann.reverse(t, "a", spec)
	reach := func() string {
		out, errs, _ := ann.cove(t, "", "exec", "a", "--", "env", "-i", "curl", "-sS", "-d", "data", "http://localhost:9000/")
		return out + errs
	}
	if out := reach(); out != "the caller's machine got data" {
		t.Errorf("got %q, want the server", out)
	}
	for who, h := range map[string]*hub{"a viewer": looker, "another tenant": bob} {
		if out, errs, code := h.cove(t, "", "port-forward", "a", "-R", "9001:1"); code == 0 {
			t.Errorf("%s: got %q %q, want an error", who, out, errs)
		}
	}
	// A page in the sandbox's browser cannot listen.
	if out := ann.must(t, "exec", "a", "--", "curl", "-s", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "-H",
		"Origin: http://evil.example", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13", "-H",
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "http://127.0.0.1:8080/v1/sandbox/ports/9001/listen"); out != "403" {
		t.Errorf("a page of another origin: got %s, want 403", out)
	}
	for line, want := range map[string]string{"a -R 9000:1": "in use", "a -R 8080:1": "reserved", "a -R 0": "PORT:LOCAL", "a": "no port"} {
		if out, errs, code := ann.cove(t, "", append([]string{"port-forward"}, strings.Fields(line)...)...); code == 0 ||
			!strings.Contains(errs, want) {
			t.Errorf("port-forward %s: got %q, %q and exit code %d, want %q", line, out, errs, code, want)
		}
	}
	admin.stop(t)
	admin.expectAudited(t, "ann", "/sandbox/a/v1/sandbox/ports/9000/listen", "/sandbox/a/v1/sandbox/ports/9000/accept")
	admin.start(t, "--tenants", "--listen", address)
	t.Cleanup(func() { admin.clear(t); admin.stop(t) })
	ann.server = admin.server
	expectForward(t, lines)
	if out := reach(); out != "the caller's machine got data" {
		t.Errorf("after a restart of the hub: got %q, want the server", out)
	}
	kill()
	testenv.Poll(t, "the port is closed", func() bool { return strings.Contains(reach(), "curl: (7)") })
}

// expectAudited checks that the audit log of a stopped hub contains requests of a tenant with these paths.
func (h *hub) expectAudited(t *testing.T, tenant string, paths ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.State, "requests", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var all string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(strings.Split(all, "\n"), func(line string) bool {
			return strings.Contains(line, `"`+path+`"`) && strings.Contains(line, `"tenant":"`+tenant+`"`)
		}) {
			t.Errorf("the audit log does not contain %s of %s: %s", path, tenant, all)
		}
	}
}
