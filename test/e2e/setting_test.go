package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestVariablesOfThePublicImage: environment variables of the public image have the same effect here.
func TestVariablesOfThePublicImage(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node")
	logs := filepath.Join(t.TempDir(), "logs")
	s := serve(t, "DISABLE_BROWSER=true", "DISABLE_VNC=1", "DISABLE_MCP_BROWSER=yes", "DISABLE_JUPYTER=1",
		"LOG_DIR="+logs, "AIO_LOG_LEVEL=info",
		"NODE_CODE_EXEC_VERSION=node4", "WAIT_PORTS=8079,8091", "CODEX_API_KEY=hunter2", "CODEX_MODEL=m1",
		"OPENCODE_API_KEY=hunter2", "OPENCODE_MODEL=m2", "RUN_HOOK_POST_READY=exit 3")
	for path, want := range map[string]string{
		"/v1/browser/info":            "unset DISABLE_BROWSER",
		"/v1/browser/page/text":       "unset DISABLE_BROWSER",
		"/cdp/json/version":           "503 the browser is disabled",
		"/json/version":               "503 the browser is disabled",
		"/vnc/index.html":             "503 the VNC page is disabled in this sandbox; unset DISABLE_VNC",
		"/v1/mcp/servers":             `"data":["file","shell","code","sandbox","markitdown"]`,
		"/v1/display/control":         `"success":true`,
		"/v1/mcp/browser/tools":       "browser",
		"/v1/nodejs/sessions":         `"success":true`,
		"/v1/jupyter/sessions":        `"success":true`,
		"/v1/sandbox/packages/python": "",
	} {
		status, body := s.get(t, path)
		if got := strings.TrimSpace(strings.Join([]string{statusText(status), body}, " ")); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	testenv.Poll(t, "the sandbox is ready although nothing listens on the image's own ports", func() bool {
		status, _ := s.get(t, "/readyz")
		return status == 200
	})
	if _, body := s.get(t, "/readyz"); !strings.Contains(body, "disabled by DISABLE_BROWSER") {
		t.Errorf("got %s, want the browser disabled by DISABLE_BROWSER", body)
	}
	_, tools := s.post(t, "/mcp?tools=all", `{"method":"tools/list"}`)
	if strings.Contains(tools, `"browser_`) || !strings.Contains(tools, `"bash_exec"`) {
		t.Errorf("got %s, want tools, and none of the browser", tools)
	}
	_, node := s.post(t, "/v1/nodejs/execute", `{"code":"1+1"}`)
	if !strings.Contains(node, "NODE_CODE_EXEC_VERSION") || !strings.Contains(node, `"status":"ok"`) {
		t.Errorf("got %s, want the code to run, and a hint that node4 is not installed", node)
	}
	for file, want := range map[string]string{
		s.Home + "/.codex/config.toml":           `model = "m1"`,
		s.Home + "/.config/opencode/config.json": `"model": "ark/m2"`,
	} {
		b, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(b), want) || strings.Contains(string(b), "hunter2") {
			t.Errorf("%s: got %s, %v, want %s and no key", file, b, err, want)
		}
	}
	_, out := s.post(t, "/v1/bash/exec", `{"command":"echo $CODEX_API_KEY"}`)
	if !strings.Contains(out, "hunter2") {
		t.Errorf("got %s, want the key in the environment of programs", out)
	}
	testenv.Poll(t, "the end of the failed hook is logged", func() bool { return strings.Contains(s.log.String(), "hook") })
	s.stop(t)
	b, err := os.ReadFile(filepath.Join(logs, "aio.log"))
	if err != nil || !strings.Contains(string(b), "hook") || !strings.Contains(s.log.String(), "hook") {
		t.Errorf("got %q, %v, want the failed hook in the file as well as on standard error", b, err)
	}
}

func statusText(status int) string {
	b, _ := json.Marshal(status)
	return string(b)
}

// TestNumericUser: root switches to USER_UID and USER_GID, which need not exist as a user.
func TestNumericUser(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	home, err := os.MkdirTemp("", "cove-numeric-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, 54321, 54322); err != nil {
		t.Fatal(err)
	}
	s := launch(t, aio, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "warn"}, home,
		[]string{"USER_UID=54321", "USER_GID=54322", "AIO_HOME=" + home})
	t.Cleanup(func() { s.stop(t) })
	_, out := s.post(t, "/v1/bash/exec", `{"command":"id -u; id -g; pwd"}`)
	if want := `"stdout":"54321\n54322\n` + home; !strings.Contains(out, want) {
		t.Errorf("got %s, want %s", out, want)
	}
}

// TestWrongVariablesStopTheStart: the error names the variable and shows no secret.
func TestWrongVariablesStopTheStart(t *testing.T) {
	t.Parallel()
	for variable, want := range map[string]string{
		"CODEX_CONFIG_TOML=key = hunter2":      "CODEX_CONFIG_TOML is not valid TOML: line 1",
		"OPENCODE_JSON=hunter2":                "OPENCODE_JSON is not a JSON object",
		"BROWSER_INIT_COOKIES=[hunter2":        "BROWSER_INIT_COOKIES: invalid cookies",
		"BROWSER_URL_BLOCKLIST=a.example:http": "URL lists of the browser: invalid rule",
		"LOG_DIR=/proc/no/such":                "LOG_DIR",
		"PUBLIC_PORT=many":                     "PUBLIC_PORT",
		"NODE_CODE_EXEC_VERSION=lts":           "node_version",
	} {
		_, errs, code := run(t, []string{variable}, "serve", "--listen", "127.0.0.1:0")
		if code != 2 || !strings.Contains(errs, want) || strings.Contains(errs, "hunter2") {
			t.Errorf("%s: got code %d, %s, want 2 and %s without the value", variable, code, errs, want)
		}
	}
}
