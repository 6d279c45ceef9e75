package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newService returns a service that runs shell cells in bash. Cells of other languages return
// the outputs of the test.
func newService(t *testing.T, outputs ...kernel.Output) *Service {
	t.Helper()
	testenv.Need(t, "bash")
	tmp := t.TempDir()
	shell := Shell(func(ctx context.Context, _, dir, code string, send func(stream, text string) error) (int, error) {
		cmd := exec.CommandContext(ctx, "bash", "-c", code)
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "TMPDIR=" + tmp}
		out, err := cmd.Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode(), send("stdout", string(out))
		}
		return 0, errors.Join(err, send("stdout", string(out)))
	})
	python := runner(func(_ context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error) {
		for _, o := range outputs {
			if strings.Contains(c.Code, "HOME") { // code that prepares the session prints nothing
				break
			}
			if err := emit(o); err != nil {
				return kernel.Result{}, err
			}
		}
		return kernel.Result{Status: kernel.OK, Session: c.Session}, nil
	})
	end := func(context.Context, string) {}
	return New(Config{Home: func() string { return tmp }, Bash: Language{shell, end},
		Python: Language{python, end}, JavaScript: Language{python, end},
		StripTypes: func(_ context.Context, _ string, installing func()) (string, error) {
			installing()
			return "", errors.New("invalid types")
		}})
}

type runner func(context.Context, kernel.Cell, func(kernel.Output) error) (kernel.Result, error)

func (r runner) Run(ctx context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error) {
	return r(ctx, c, emit)
}

func send(t *testing.T, s *Service, method, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

// execute returns the lines of an execution.
func execute(t *testing.T, s *Service, in map[string]any) []map[string]any {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	status, text := send(t, s, http.MethodPost, "/execute", string(body))
	if status != http.StatusOK {
		t.Fatalf("execute: got %d %s, want 200", status, text)
	}
	var lines []map[string]any
	for line := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("got the line %q, want JSON", line)
		}
		lines = append(lines, v)
	}
	if len(lines) < 2 || lines[0]["type"] != "number_of_executions" || lines[len(lines)-1]["type"] != "end_of_execution" {
		t.Fatalf("got %v, want the number of executions first and the end last", lines)
	}
	return lines
}

func stdout(lines []map[string]any) (all string) {
	for _, l := range lines {
		if l["type"] == "stdout" {
			all += l["text"].(string)
		}
	}
	return all
}

func TestContexts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	status, body := send(t, s, "POST", "/contexts", `{"language":"bash","cwd":"/tmp"}`)
	var c place
	if err := json.Unmarshal([]byte(body), &c); status != 200 || err != nil || c.Language != "bash" || c.Cwd != "/tmp" {
		t.Fatalf("create: got %d %s, want a context", status, body)
	}
	run := func(code string) string {
		t.Helper()
		return stdout(execute(t, s, map[string]any{"code": code, "context_id": c.ID}))
	}
	if got := run("x=1; pwd"); got != "/tmp\n" {
		t.Errorf("got %q, want the folder of the context", got)
	}
	if got := run("echo $x"); got != "1\n" {
		t.Errorf("got %q, want the variable of the last execution", got)
	}
	if got := stdout(execute(t, s, map[string]any{"code": "echo [$x]", "language": "bash"})); got != "[]\n" {
		t.Errorf("got %q in the default context, want no variable of another context", got)
	}
	if status, body := send(t, s, "POST", "/contexts/"+c.ID+"/restart", ""); status != 200 {
		t.Errorf("restart: got %d %s, want 200", status, body)
	}
	lines := execute(t, s, map[string]any{"code": "echo [$x]", "context_id": c.ID})
	if got := stdout(lines); got != "[]\n" || lines[0]["execution_count"] != 1.0 {
		t.Errorf("after a restart: got %v, want no variable and the first execution", lines)
	}
	_, made := send(t, s, "POST", "/contexts", "{}")
	if _, body := send(t, s, "GET", "/contexts", ""); !strings.HasSuffix(body, strings.TrimSpace(made)+"]") {
		t.Errorf("list: got %s, want the newest context last: %s", body, made)
	}
	if _, body := send(t, s, "GET", "/contexts", ""); strings.Count(body, `"id"`) != 5 ||
		!strings.Contains(body, `"python"`) || !strings.Contains(body, `"javascript"`) {
		t.Errorf("list: got %s, want the context and the default ones, also of unused languages", body)
	}
	if status, _ := send(t, s, "DELETE", "/contexts/"+c.ID, ""); status != 200 {
		t.Errorf("remove: got %d, want 200", status)
	}
	for what, r := range map[string]struct {
		method, path, body string
		want               int
		says               string
	}{
		"removed":           {"POST", "/execute", `{"code":"1","context_id":"` + c.ID + `"}`, 404, "not found"},
		"remove again":      {"DELETE", "/contexts/" + c.ID, "", 404, "not found"},
		"restart of none":   {"POST", "/contexts/x/restart", "", 404, "not found"},
		"both":              {"POST", "/execute", `{"code":"1","context_id":"x","language":"bash"}`, 400, "Only one"},
		"unknown language":  {"POST", "/execute", `{"code":"1","language":"cobol"}`, 400, "unsupported language"},
		"unknown, too":      {"POST", "/contexts", `{"language":"cobol"}`, 400, "unsupported language"},
		"no such folder":    {"POST", "/contexts", `{"cwd":"/etc/passwd/x"}`, 400, "not a folder"},
		"not JSON":          {"POST", "/execute", `{{`, 400, "invalid request"},
		"wrong type":        {"POST", "/execute", `{"code":1}`, 400, "invalid request"},
		"health":            {"GET", "/health", "", 200, `"OK"`},
		"nulls are allowed": {"POST", "/contexts", `{"language":null,"cwd":null}`, 200, "python"},
	} {
		if status, body := send(t, s, r.method, r.path, r.body); status != r.want || !strings.Contains(body, r.says) {
			t.Errorf("%s: got %d %s, want %d with %q", what, status, body, r.want, r.says)
		}
	}
}

func TestContextsAreLimited(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for range maxContexts {
		if status, body := send(t, s, "POST", "/contexts", `{"language":"bash"}`); status != 200 {
			t.Fatalf("got %d %s, want a context", status, body)
		}
	}
	if status, body := send(t, s, "POST", "/contexts", `{}`); status != 429 || !strings.Contains(body, "remove a context") {
		t.Errorf("got %d %s, want 429 with what to do", status, body)
	}
}

func TestVariablesOfACall(t *testing.T) {
	t.Parallel()
	s := newService(t)
	lines := execute(t, s, map[string]any{"code": `echo "$A"`, "language": "bash",
		"env_vars": map[string]string{"A": "it's $HOME; `id`", "B;touch x": "no"}})
	if got := stdout(lines); got != "it's $HOME; `id`\n" {
		t.Errorf("got %q, want the unchanged value", got)
	}
	bash := func(code string, env map[string]string) string {
		return stdout(execute(t, s, map[string]any{"code": code, "language": "bash", "env_vars": env}))
	}
	bash("B=kept", nil)
	if got := bash(`echo "$A $B"; cd /tmp; C=new; exit 3`, map[string]string{"A": "one", "B": "two"}); got != "one two\n" {
		t.Errorf("got %q, want the variables of the call", got)
	}
	if got := bash(`echo "${A:-none} $B $C"; compgen -v | grep -c __cove_old; pwd; umask`, nil); got != "none kept new\n0\n/tmp\n0022\n" {
		t.Errorf("got %q, want only the variables of the context", got)
	}
	for _, language := range []string{"python", "javascript"} {
		before, after := variables(language, map[string]string{"A": "'\"\\\n"})
		if before == "" || after == "" || strings.Contains(before, "\n") {
			t.Errorf("%s: got %q and %q, want code of one line each", language, before, after)
		}
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	s := newService(t,
		kernel.Output{Type: kernel.Stream, Name: "stderr", Text: "warn"}, kernel.Output{Type: kernel.Stream, Name: "stdout"},
		kernel.Output{Type: kernel.DisplayData, Data: map[string]any{"image/png": "aGk=",
			"e2b/chart": map[string]any{"type": "line"}, "x/y": "z"}},
		kernel.Output{Type: kernel.ExecuteResult, Data: map[string]any{"text/plain": "'quoted'"}},
		kernel.Output{Type: kernel.Error, EName: "E", EValue: "v", Traceback: []string{"a", "b"}})
	lines := execute(t, s, map[string]any{"code": "x", "language": nil, "context_id": nil})
	want := []string{"number_of_executions", "stderr", "result", "result", "error", "end_of_execution"}
	if len(lines) != len(want) {
		t.Fatalf("got %v, want lines of %v: empty output is not sent", lines, want)
	}
	for i, kind := range want {
		if lines[i]["type"] != kind {
			t.Errorf("line %d: got %v, want %s", i, lines[i], kind)
		}
	}
	shown, main, fault := lines[2], lines[3], lines[4]
	if shown["is_main_result"] != false || shown["png"] != "aGk=" || shown["chart"] == nil || shown["extra"].(map[string]any)["x/y"] != "z" {
		t.Errorf("got %v, want an image with its chart and the rest in extra", shown)
	}
	if main["is_main_result"] != true || main["text"] != "quoted" {
		t.Errorf("got %v, want the main result without its quotes", main)
	}
	if fault["traceback"] != "a\nb" || fault["name"] != "E" {
		t.Errorf("got %v, want the traceback as one text", fault)
	}
	if lines := execute(t, s, map[string]any{"code": "let a: number",
		"language": "ts"}); len(lines) != 4 || lines[1]["text"] != "Installing TypeScript\n" || lines[2]["value"] != "invalid types" {
		t.Errorf("got %v, want the progress and the error of the compiler", lines)
	}
}

// TestOtherKernels: R and Java run in their own kernels. The installation of a kernel shows its progress, and an error of it
// reaches the client.
func TestOtherKernels(t *testing.T) {
	t.Parallel()
	s := newService(t)
	end := func(context.Context, string) {}
	var ran []string
	s.Python = Language{runner(func(_ context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error) {
		ran = append(ran, c.Kernel+": "+c.Code)
		var err error
		switch {
		case c.Kernel == "java":
			return kernel.Result{}, op.Errorf(op.Unavailable, "no kernel for Java; run: sudo apt-get …")
		case len(ran) == 1:
			err = errors.Join(emit(kernel.Output{Type: kernel.Stream, Name: "stderr", Text: "Installing R: step"}),
				emit(kernel.Output{Type: kernel.ExecuteResult, Data: map[string]any{"text/plain": "of our own code"}}))
		case c.Code == "1 + 1":
			err = emit(kernel.Output{Type: kernel.ExecuteResult, Data: map[string]any{"text/plain": "[1] 2"}})
		}
		return kernel.Result{Status: kernel.OK, Session: c.Session}, err
	}), end}
	lines := execute(t, s, map[string]any{"code": "1 + 1", "language": "R", "env_vars": map[string]string{"A": "1"}})
	if len(lines) != 4 || lines[1]["text"] != "Installing R: step" || lines[2]["text"] != "[1] 2" {
		t.Errorf("R: got %v, want the progress and the result", lines)
	}
	if len(ran) != 4 || !strings.HasPrefix(ran[0], "ir: Sys.setenv(HOME") || !strings.Contains(ran[1], "Sys.setenv(\"A\" = \"1\")") ||
		ran[2] != "ir: 1 + 1" || !strings.Contains(ran[3], "Sys.unsetenv") {
		t.Errorf("R: got the cells %q, want the variables around the code", ran)
	}
	lines = execute(t, s, map[string]any{"code": "1 + 1", "language": "java"})
	if len(lines) != 3 || lines[1]["value"] != "no kernel for Java; run: sudo apt-get …" {
		t.Errorf("Java: got %v, want the error", lines)
	}
	if status, text := send(t, s, http.MethodPost, "/contexts",
		`{"language":"cobol"}`); status != http.StatusBadRequest ||
		!strings.Contains(text, "use python, javascript, typescript, bash, r or java") {
		t.Errorf("unknown language: got %d %s, want 400 with the known ones", status, text)
	}
}
