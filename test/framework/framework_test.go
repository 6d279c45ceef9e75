// Package framework runs agents of public frameworks, unmodified, in sandboxes of a real hub. A scripted model drives them.
package framework

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

var cove string

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) { cove = filepath.Join(dir, "cove") })
}

// patience is long enough for busy machines.
const patience = 9 * time.Minute

// serveHub starts a hub without tenants, which accepts any key of the local user.
func serveHub(t *testing.T) (url string, c *client.Client) {
	t.Helper()
	testenv.NeedRoot(t)
	state := t.TempDir()
	log, err := os.Create(filepath.Join(state, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(cove, "hub", "--listen", "127.0.0.1:0", "--log-level", "warn", "--state", state,
		"--venv", testenv.NeedFile(t, "../../.venv"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	t.Cleanup(stop)
	address := regexp.MustCompile(`serving on (http://[0-9.:]+)`)
	testenv.Poll(t, "the hub serves", func() bool {
		b, _ := os.ReadFile(log.Name())
		if m := address.FindSubmatch(b); m != nil {
			url = string(m[1])
		}
		return url != ""
	})
	c, err = client.New(client.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		list, err := c.List(context.Background(), client.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		for _, sb := range list {
			if err := c.Delete(context.Background(), sb.ID); err != nil && !client.NotFound(err) {
				t.Error(err)
			}
		}
		c.Close()
	})
	return url, c
}

// run runs a program and returns what it prints.
func run(t *testing.T, env []string, program ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "NO_PROXY=*", "OPENAI_API_KEY=none"}, env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	t.Logf("%s: %v\n%s", strings.Join(program, " "), err, &errs)
	if err != nil {
		t.Errorf("got %v, want no error", err)
	}
	return string(out)
}

// TestCodingAgents: agents that use sandboxes of E2B create a sandbox, work in it, and delete it.
func TestCodingAgents(t *testing.T) {
	t.Parallel()
	testenv.Long(t) // and needs 200 MB of packages
	python := testenv.NeedFile(t, ".venv-1/bin/python")
	url, c := serveHub(t)
	t.Run("all", func(t *testing.T) {
		for script, turns := range map[string][]turn{
			"openai_agents.py": {
				{tool: "exec_command", args: map[string]any{"cmd": "echo 6 > n.txt; pwd; id -un"}},
				{want: `/workspace\nuser`, tool: "exec_command", args: map[string]any{"cmd": "echo $((7 * $(cat n.txt)))"}},
				{want: `42`, text: "the answer is 42"},
			},
			"smol_agents.py": {
				{text: "Thought: keep a number.\n<code>\nx = 6\nprint('kept', x)\n</code>"},
				{want: "kept 6", text: "Thought: answer.\n<code>\nfinal_answer(f'the answer is {x * 7}')\n</code>"},
			},
			"deep_agents.py": {
				{tool: "write_file", args: map[string]any{"file_path": "/home/user/a/n.txt", "content": "6\n"}},
				{want: "n.txt", tool: "edit_file", args: map[string]any{"file_path": "/home/user/a/n.txt", "old_string": "6", "new_string": "7"}},
				{want: "n.txt", tool: "read_file", args: map[string]any{"file_path": "/home/user/a/n.txt"}},
				{want: "7", tool: "grep", args: map[string]any{"pattern": "7", "path": "/home/user/a"}},
				{want: "n.txt", tool: "execute", args: map[string]any{"command": "echo got $((6 * $(cat ~/a/n.txt)))"}},
				{want: "got 42", text: "the answer is 42"},
			},
		} {
			t.Run(script, func(t *testing.T) {
				t.Parallel()
				out := run(t, []string{"E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url, "E2B_API_KEY=e2b_" + strings.Repeat("0", 40),
					"OPENAI_BASE_URL=" + serveModel(t, turns...)}, python, script)
				if !strings.Contains(out, "the answer is 42") {
					t.Errorf("got %q, want the answer", out)
				}
			})
		}
	})
	if list, err := c.List(t.Context(), client.ListOptions{}); err != nil || len(list) > 0 {
		t.Errorf("got sandboxes %+v, %v at the end, want none", list, err)
	}
}

// site is the address of the shop, a page for agents that use a browser, in a sandbox.
const (
	site = "http://127.0.0.1:9000/"
	shop = `<!doctype html><title>shop</title><h1>Our shop</h1><p id="note"></p>
<button onclick="document.title = 'hello'; note.innerText = 'greeted'">greet</button>`
)

// newBrowser creates a sandbox that serves the shop to its own browser, and returns the address of its DevTools.
func newBrowser(t *testing.T, url string, c *client.Client, name string) (cdp string) {
	t.Helper()
	if _, err := c.Create(t.Context(), client.CreateOptions{Name: name}); err != nil {
		t.Fatal(err)
	}
	box := c.Guest(name)
	for path, in := range map[string]map[string]any{
		"/v1/file/write": {"file": "site/index.html", "content": shop},
		"/v1/bash/exec":  {"command": "mkdir -p site && cd site && exec python3 -m http.server 9000 --bind 127.0.0.1", "async_mode": true},
	} {
		if err := box.Call(t.Context(), http.MethodPost, path, in, nil); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Poll(t, "the shop answers", func() bool {
		out, err := box.Exec(t.Context(), "curl -sf --noproxy '*' "+site, client.ExecOptions{})
		return err == nil && out.ExitCode == 0
	})
	return url + "/sandbox/" + name + "/cdp"
}

// TestBrowserAgents: agents that use a browser work in that of a sandbox.
func TestBrowserAgents(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "chromium", "Xtigervnc", "openbox", "node", "curl")
	url, c := serveHub(t)
	t.Run("browser-use", func(t *testing.T) {
		t.Parallel()
		python := testenv.NeedFile(t, ".venv-2/bin/python")
		step := func(action string) string {
			return `{"thinking": "t", "evaluation_previous_goal": "e", "memory": "m", "next_goal": "g", "action": [` + action + `]}`
		}
		model := serveModel(t,
			turn{want: "Greet the shop.", text: step(`{"navigate": {"url": "` + site + `", "new_tab": false}}`)},
			turn{pick: `\[(\d+)\]<button />\\n\\tgreet`, text: step(`{"click": {"index": PICKED}}`)},
			turn{want: "greeted", text: step(`{"done": {"text": "the shop is greeted", "success": true, "files_to_display": []}}`)},
			turn{want: "expert judge", text: `{"reasoning": "r", "verdict": true, "failure_reason": "", "impossible_task": false, ` +
				`"reached_captcha": false}`})
		out := run(t, []string{"OPENAI_BASE_URL=" + model, "ANONYMIZED_TELEMETRY=false", "BROWSER_USE_VERSION_CHECK=false"},
			python, "browser_use_agent.py", newBrowser(t, url, c, "use"))
		if !strings.Contains(out, "the shop is greeted") {
			t.Errorf("got %q, want the result", out)
		}
	})
	t.Run("Stagehand", func(t *testing.T) {
		t.Parallel()
		testenv.NeedFile(t, "node_modules/@browserbasehq/stagehand")
		model := serveModel(t,
			turn{pick: `\[(\d+-\d+)\] button: greet`, text: `{"action": {"elementId": "PICKED", "description": "greet", "method": "click", ` +
				`"arguments": []}, "twoStep": false}`},
			turn{want: "Our shop", text: `{"title": "Our shop"}`},
			turn{text: `{"progress": "all", "completed": true}`})
		out := run(t, []string{"OPENAI_BASE_URL=" + model}, "node", "stagehand.mjs", newBrowser(t, url, c, "stagehand"), site)
		if !strings.Contains(out, "hello Our shop") {
			t.Errorf("got %q, want the title after the click, and the heading", out)
		}
	})
	t.Run("Playwright MCP", func(t *testing.T) {
		t.Parallel()
		program := testenv.NeedFile(t, "node_modules/@playwright/mcp/cli.js")
		usePlaywright(t, exec.Command("node", program, "--cdp-endpoint", newBrowser(t, url, c, "playwright")))
	})
}

// usePlaywright plays a model that uses the tools of Playwright's MCP server.
func usePlaywright(t *testing.T, server *exec.Cmd) {
	t.Helper()
	server.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "NO_PROXY=*"}
	server.Dir = t.TempDir()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var shown strings.Builder // by all tools
	call := func(tool string, args map[string]any) {
		t.Helper()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil || r.IsError {
			t.Fatalf("%s: got %+v, %v, want a result", tool, r, err)
		}
		for _, part := range r.Content {
			if text, ok := part.(*mcp.TextContent); ok {
				shown.WriteString(text.Text)
			}
		}
	}
	call("browser_navigate", map[string]any{"url": site})
	call("browser_snapshot", map[string]any{})
	button := regexp.MustCompile(`button "greet" .*?\[ref=(\w+)\]`).FindStringSubmatch(shown.String())
	if button == nil {
		t.Fatalf("got %s, want a button", &shown)
	}
	call("browser_click", map[string]any{"element": "greet", "target": button[1]})
	call("browser_snapshot", map[string]any{})
	if !strings.Contains(shown.String(), "Page Title: hello") {
		t.Errorf("got %s, want the title after the click", &shown)
	}
}
