package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestRepliesOfThePublicImage checks twenty replies for compatibility with the public image. Other tests
// cover replies that require a browser.
func TestRepliesOfThePublicImage(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "node")
	bin := t.TempDir()
	testenv.WriteProgram(t, filepath.Join(bin, "opencode"), []byte("#!/bin/sh\n"))
	s := serve(t, "SANDBOX_API_KEY=key", "SANDBOX_SHUTDOWN_HOOKS=true", "PATH="+bin+":"+os.Getenv("PATH"))
	text := filepath.Join(s.Home, "f.txt")
	if err := os.WriteFile(text, []byte("a\na\nb"), 0o644); err != nil {
		t.Fatal(err)
	}
	watched := t.TempDir()
	watch := s.call(t, "POST /v1/file/watch", `{"path":"`+watched+`"}`)
	id := between(t, watch, `"watcher_id":"`, `"`)
	if strings.Count(watch, id) != 2 || !strings.Contains(watch, `"data":{`) {
		t.Errorf("2 create a watcher: got %s, want it at top level and in data", watch)
	}
	s.call(t, "POST /v1/shell/exec", `{"id":"s","command":"true"}`)
	s.call(t, "POST /v1/file/write", `{"file":"`+watched+`/new.txt","content":"x"}`)
	for _, row := range []struct{ name, request, body, want string }{
		{"1 watch events", "POST /v1/file/watch/wait", `{"path":"` + text + `","event_types":["create"]}`, `"event":{`},
		{"1 watch events", "POST /v1/file/watch/" + id + "/poll", `{"since":0,"timeout":10}`, `"is_dir":false`},
		{"4 API key", "GET /v1/sandbox?api_key=key", "", `"success":true`},
		{"4 no API key", "GET /v1/sandbox X-AIO-API-Key=wrong", "", `401`},
		{"5 ticket of a front proxy", "GET /auth X-AIO-API-Key= X-Original-URI=/x?ticket=" +
			between(t, s.call(t, "POST /tickets", ""), `"ticket":"`, `"`), "", `200`},
		{"5 no ticket of a front proxy", "GET /auth X-AIO-API-Key= X-Original-URI=/x?ticket=wrong", "", `401`},
		{"6 validation", "POST /v1/file/read", `{}`,
			`422 … "detail":[{ … "message":"Request data validation failed" … "errors":[{"location":["body","file"]`},
		{"7 Node sessions", "POST /v1/nodejs/sessions", `{"session_id":"n"}`, `"n"`},
		{"8 shell statistics", "GET /v1/shell/sessions/stats", "", `"active_sessions":1,"idle_sessions":0`},
		{"9 stream of a command", "POST /v1/shell/exec Accept=text/event-stream",
			`{"id":"s","command":"echo $((6*7))"}`, "event: start … event: output\ndata: {\"data\":\"42\\n\" … event: exit … \"exit_code\":0"},
		{"9 stream of a session", "POST /v1/shell/view Accept=text/event-stream", `{"id":"s"}`, `event: start … 42 … event: exit`},
		{"9 stream of no session", "POST /v1/shell/view Accept=text/event-stream", `{"id":"none"}`, `404 … Session not found`},
		{"10 read a file", "POST /v1/file/read", `{"file":"` + text + `"}`, `"message":"File read successfully" … "line_count":3`},
		{"10 read no file", "POST /v1/file/read", `{"file":"/none"}`,
			`200 … "success":false,"message":"Failed to read file: [Errno 2] No such file or directory: '/none'"`},
		{"11 edit no file", "POST /v1/file/str_replace_editor", `{"command":"view","path":"/none"}`, `"success":false … does not exist`},
		{"11 edit what is not there", "POST /v1/file/str_replace_editor", `{"command":"str_replace","path":"` + text +
			`","old_str":"z","new_str":"y"}`, `no replacement was made: old_str did not appear`},
		{"11 edit what is there twice", "POST /v1/file/str_replace_editor", `{"command":"str_replace","path":"` +
			text + `","old_str":"a","new_str":"y"}`, `is not unique`},
		{"16 no errors", "POST /v1/bash/exec", `{"command":"true"}`, `"stdout":"","stderr":null`},
		{"16 wait for a file", "POST /v1/file/watch/wait", `{"path":"` + text + `","event_types":["create"]}`, `"triggered":true … "event":{"`},
		{"17 code that fails", "POST /v1/code/execute", `{"language":"javascript","code":"throw new Error(1)"}`,
			`"success":true … "status":"error"`},
		{"18 arguments of a tool", "POST /v1/mcp/file/tools/file_read", `{"path":"` + text + `"}`, `"isError":false`},
		{"20 openapi.json", "GET /openapi.json", "", `"openapi":"3.1.0"`},
		{"20 browser-ui", "GET /browser-ui", "", `<!doctype html>`},
		{"20 xterm", "GET /static/sandbox/xterm@5.3.0/lib/xterm.js", "", `Terminal`},
		{"20 style of xterm", "GET /static/sandbox/xterm@5.3.0/css/xterm.css", "", `.xterm`},
		{"20 addon of xterm", "GET /static/sandbox/xterm-addon-fit@0.8.0/lib/xterm-addon-fit.js", "", `FitAddon`},
		{"no codex", "GET /codex", "", `404 … codex is not installed in this sandbox; install it with: npm install -g @openai/codex`},
		{"opencode", "GET /opencode", "", `terminal`},
		{"hooks of the settings", "GET /v1/sandbox/hooks", "", `"command":"true" … "source":"env"`},
		{"shell: no session", "POST /v1/shell/kill", `{"id":"none"}`, `404 … Session not found`},
		{"shell: no session", "DELETE /v1/shell/sessions/none", "", `404 … Session not found`},
	} {
		got := s.call(t, row.request, row.body)
		rest := got
		for part := range strings.SplitSeq(row.want, " … ") {
			_, after, ok := strings.Cut(rest, part)
			if !ok {
				t.Errorf("%s: got %s, want %s", row.name, got, row.want)
				break
			}
			rest = after
		}
	}
	nodes := s.call(t, "GET /v1/nodejs/sessions", "")
	if !strings.Contains(nodes, `"state":"IDLE"`) || !strings.Contains(nodes, `"max_idle_time":1800000`) {
		t.Errorf("7 Node sessions: got %s, want IDLE and milliseconds", nodes)
	}
	doc := s.call(t, "GET /v1/openapi.json", "")
	if !strings.Contains(doc, `"409":{`) || !strings.Contains(doc, `"x-screen-width"`) {
		t.Error("15: want 409 of a download and the headers of a screenshot in the document")
	}
	t.Run("3 WebSocket", func(t *testing.T) { talkToShell(t, s) })
	t.Run("19 commands", func(t *testing.T) { runShortVerbs(t, s) })
}

// call sends a request "METHOD /path Header=value" with the key and returns status and body.
func (s *server) call(t *testing.T, request, body string) string {
	t.Helper()
	words := strings.Fields(request)
	req, err := http.NewRequestWithContext(t.Context(), words[0], s.URL+words[1], strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-AIO-API-Key", "key")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, header := range words[2:] {
		name, value, _ := strings.Cut(header, "=")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.Status + " " + string(b)
}

func between(t *testing.T, s, before, after string) string {
	t.Helper()
	_, rest, _ := strings.Cut(s, before)
	inner, _, ok := strings.Cut(rest, after)
	if !ok {
		t.Fatalf("got %s, want %s…%s in it", s, before, after)
	}
	return inner
}

func talkToShell(t *testing.T, s *server) {
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/shell/ws?api_key=key", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"type":"session_id","data":"`, `{"type":"ready","data":"Terminal ready"`,
		`{"type":"pong","data":{"timestamp":`} {
		for {
			_, b, err := conn.Read(t.Context())
			if err != nil {
				t.Fatalf("got %v, want %s", err, want)
			}
			if strings.HasPrefix(string(b), want) {
				break
			}
		}
	}
}

func runShortVerbs(t *testing.T, s *server) {
	env := []string{"AIO_API_URL=" + s.URL, "AIO_API_KEY=key"}
	out, errs, code := run(t, env, "shell", "exec", "echo $((40+2)); read x", "--id", "cli", "--async")
	if code != 0 || !strings.Contains(out, `"running"`) {
		t.Fatalf("shell exec --async: got exit code %d, %s%s, want 0 and a running command", code, out, errs)
	}
	testenv.Poll(t, "shell output shows what was printed", func() bool {
		out, _, code := run(t, env, "shell", "output", "cli")
		return code == 0 && strings.Contains(out, "42")
	})
	for _, verb := range []string{"tap", "type", "hotkey"} {
		if out, _, code := run(t, env, "gui", verb, "--help"); code != 0 || !strings.Contains(out, "Usage:\n  aio gui "+verb) {
			t.Errorf("gui %s: got exit code %d and %s, want its help", verb, code, out)
		}
		if _, errs, code := run(t, env, "gui", verb); code != 2 || !strings.Contains(errs, "required") {
			t.Errorf("gui %s without arguments: got exit code %d and %s, want 2 and what is required", verb, code, errs)
		}
	}
}
