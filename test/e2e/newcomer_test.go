package e2e

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// A hub that cannot start names what works without its requirements.
func TestHubThatCannotStart(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "unshare")
	cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", cove, "hub", "--listen", "127.0.0.1:0",
		"--state", filepath.Join(t.TempDir(), "hub"))
	cmd.Env = environment(t.TempDir(), nil)
	out, err := cmd.CombinedOutput()
	if exitCode(err) != 1 {
		t.Fatalf("got error %v and %s, want exit code 1", err, out)
	}
	for _, want := range []string{"user IDs", "aio serve", "cove hub --provider docker", "cove doctor"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("got %s, want %q", out, want)
		}
	}
}

// If a registry cannot be reached, the hub is not at fault: the response is 502 with the reason.
func TestImageOfAnUnreachableRegistry(t *testing.T) {
	t.Parallel()
	h := serveHub(t, "--insecure-registries", "127.0.0.1:1") // no program listens there
	const image, why = "127.0.0.1:1/no/such:image", "connection refused"
	if status, body := h.post(t, "/api/v1/sandbox", `{"name":"a","image":"`+image+`"}`); status != http.StatusBadGateway ||
		!strings.Contains(body, why) || strings.Contains(body, "nternal error") {
		t.Errorf("got %d %s, want 502 with the reason", status, body)
	}
	for _, line := range []string{"create a --image " + image, "run --image " + image + " -- true"} {
		out, errs, code := h.cove(t, "", strings.Fields(line)...)
		if code != 6 || !strings.Contains(errs, why) || strings.Contains(errs, "nternal error") {
			t.Errorf("cove %s: got %q, %q and exit code %d, want the reason and 6", line, out, errs, code)
		}
	}
	if out := h.must(t, "list", "-q"); out != "" {
		t.Errorf("got sandboxes %q, want none", out)
	}
}

// A rootless hub summarizes in one line what this machine lacks.
func TestRootlessHubWarnsOnce(t *testing.T) {
	t.Parallel()
	h := serveRootless(t, "--log-level", "info")
	text := h.log.String()
	var warnings []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "WARN") || strings.Contains(line, "missing here") {
			warnings = append(warnings, line)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "cove doctor") {
		t.Errorf("got %d warnings in %s, want one line", len(warnings), text)
	}
}

// Sandboxes of run --keep and up are kept for their owner: they stop if idle, and can be restored.
func TestKeptSandboxes(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	_, errs, code := h.cove(t, "", "run", "--keep", "--", "echo kept > note")
	name, found := strings.CutPrefix(strings.TrimSpace(errs), "sandbox ")
	if code != 0 || !found {
		t.Fatalf("got %q and exit code %d, want the name of the sandbox", errs, code)
	}
	file := filepath.Join(t.TempDir(), "cove.yaml")
	writeFile(t, file, "name: project\ninit: echo kept > note\n")
	h.must(t, "up", "-f", file)
	for _, name := range []string{name, "project"} {
		if out := h.must(t, "get", name, "--jq", `"\(.timeout) \(.idle_policy) \(.end_action)"`); out != "-1 stop stop\n" {
			t.Errorf("%s: got %q, want no timeout, and stop if idle", name, out)
		}
		h.must(t, "rm", name)
		h.must(t, "undelete", name)
		if out := h.must(t, "exec", name, "cat note"); out != "kept\n" {
			t.Errorf("%s: got %q, want the restored disk", name, out)
		}
	}
}

// The address that cove open prints leads a browser without credentials to the page with browser, terminal, files and activity.
func TestOpenLeadsToThePage(t *testing.T) {
	t.Parallel()
	h := tenants(t, nil)
	h.must(t, "create", "a")
	address := strings.TrimSpace(h.must(t, "open", "a"))
	if !strings.HasPrefix(address, h.URL+"/sandbox/a/") {
		t.Fatalf("got %q, want the address of the sandbox", address)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/html") // programs get the documentation
	r, err := (&http.Client{Jar: jar}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || strings.Contains(r.Request.URL.RawQuery, "ticket") {
		t.Fatalf("%s: got %d, error %v and %.500s, want the page, without the ticket in its address", r.Request.URL, r.StatusCode, err, page)
	}
	if !bytes.Contains(page, []byte(`src="home/home.js"`)) {
		t.Fatalf("%s: got %.800s, want the program of the page", r.Request.URL, page)
	}
	r, err = (&http.Client{Jar: jar}).Get(r.Request.URL.JoinPath("home/home.js").String())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	program, err := io.ReadAll(r.Body)
	for _, pane := range []string{"Browser", "Terminal", "Files", "Activity"} {
		if err != nil || r.StatusCode != http.StatusOK || !bytes.Contains(program, []byte(pane)) {
			t.Errorf("home.js: got %d, error %v and no pane %s, want all panes", r.StatusCode, err, pane)
		}
	}
}
