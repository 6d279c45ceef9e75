package code

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/node"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newService returns a service with the real languages.
func newService(t testing.TB) (*Service, *proc.Runner) {
	t.Helper()
	testenv.Need(t, "node")
	venv, err := filepath.Abs("../../../.venv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(venv, "bin/python")); err != nil {
		testenv.Lack(t, "needs the project's .venv: make deps")
	}
	dir := t.TempDir()
	r := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8"}})
	p := jupyter.New(jupyter.Config{Runner: r, Venv: venv, Home: dir, Workspace: dir})
	n := node.New(node.Config{Runner: r, Home: dir, Workspace: dir})
	t.Cleanup(func() {
		p.Close()
		n.Close()
		if left := r.Living(); len(left) > 0 {
			t.Errorf("processes remain: %v, want none", left)
		}
		r.Close()
	})
	return New(Config{Python: p, Node: n}), r
}

// wire returns the JSON of a reply without fields that vary.
func wire(t testing.TB, out ExecuteOut) string {
	t.Helper()
	b, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v) != 9 {
		t.Errorf("got %d fields in %s, want 9", len(v), b)
	}
	for _, key := range []string{"language", "code", "session_id", "traceback"} {
		delete(v, key)
	}
	for _, o := range v["outputs"].([]any) {
		o := o.(map[string]any)
		delete(o, "traceback")
		delete(o, "execution_count")
		delete(o, "metadata")
	}
	b, err = json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBothLanguages(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	value := func(text string) string {
		b, _ := json.Marshal(text)
		return `{"data":{"text/plain":` + string(b) + `},"output_type":"execute_result"}`
	}
	for _, c := range []struct{ name, python, javascript, want string }{
		{"value", "20 + 1", "20 + 1", `{"exit_code":0,"outputs":[` + value("21") + `],"status":"ok","stderr":"","stdout":""}`},
		{"nothing", "x = 1", "const x = 1", `{"exit_code":0,"outputs":[],"status":"ok","stderr":"","stdout":""}`},
		{"kept", "x", "x", `{"exit_code":0,"outputs":[` + value("1") + `],"status":"ok","stderr":"","stdout":""}`},
		{"text", "'t'", "'t'", `{"exit_code":0,"outputs":[` + value("'t'") + `],"status":"ok","stderr":"","stdout":""}`},
		{"print", "print('a')", "console.log('a')",
			`{"exit_code":0,"outputs":[{"name":"stdout","output_type":"stream","text":"a\n"}],"status":"ok","stderr":"","stdout":"a\n"}`},
		{"print and value", "print('a'); 2", "console.log('a'); 2",
			`{"exit_code":0,"outputs":[{"name":"stdout","output_type":"stream","text":"a\n"},` + value("2") +
				`],"status":"ok","stderr":"","stdout":"a\n"}`},
		{"stderr", "import sys; print('e', file=sys.stderr)", "console.error('e')",
			`{"exit_code":0,"outputs":[{"name":"stderr","output_type":"stream","text":"e\n"}],"status":"ok","stderr":"e\n","stdout":""}`},
		{"error", "raise TypeError('t')", "throw new TypeError('t')",
			`{"exit_code":1,"outputs":[{"ename":"TypeError","evalue":"t","output_type":"error"}],"status":"error","stderr":"","stdout":""}`},
		{"await", "import asyncio\nawait asyncio.sleep(0, 3)", "await Promise.resolve(3)",
			`{"exit_code":0,"outputs":[` + value("3") + `],"status":"ok","stderr":"","stdout":""}`},
		{"unicode", "print('漢🎉')", "console.log('漢🎉')",
			`{"exit_code":0,"outputs":[{"name":"stdout","output_type":"stream","text":"漢🎉\n"}],"status":"ok","stderr":"","stdout":"漢🎉\n"}`},
		{"last of two", "1\n2", "1\n2", `{"exit_code":0,"outputs":[` + value("2") + `],"status":"ok","stderr":"","stdout":""}`},
	} {
		for language, code := range map[string]string{"python": c.python, "javascript": c.javascript} {
			out, err := s.Execute(t.Context(), ExecuteIn{Language: language, Code: code, SessionID: new("s"), Timeout: new(120)})
			if err != nil {
				t.Fatalf("%s in %s: %v", c.name, language, err)
			}
			if diff := cmp.Diff(c.want, wire(t, out)); diff != "" {
				t.Errorf("%s in %s:\n%s", c.name, language, diff)
			}
			if out.Language != language || out.Code != code || *out.SessionID != "s" || (out.Traceback != nil) != (c.name == "error") {
				t.Errorf(`got %s in %s: %+v, want language %q, code %q, session "s" and a traceback only of an error`,
					c.name, language, out, language, code)
			}
			if out.Traceback != nil && !strings.Contains(strings.Join(*out.Traceback, "\n"), "TypeError: t") {
				t.Errorf("%s in %s: got traceback %q, want TypeError: t in it", c.name, language, *out.Traceback)
			}
		}
	}
}

func TestSessionsAndTimeouts(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	for language, loop := range map[string]string{"python": "while True: pass", "javascript": "while (true) {}"} {
		alone, err := s.Execute(t.Context(), ExecuteIn{Language: language, Code: "globalThing = 1"})
		if err != nil || alone.SessionID != nil || alone.Status != "ok" {
			t.Errorf(`%s: got %v, %+v, want no session ID and status "ok"`, language, err, alone)
		}
		first, err := s.Execute(t.Context(), ExecuteIn{Language: language, Code: "globalThing", Stateful: true})
		if err != nil || first.SessionID == nil || first.Status != "error" || *first.ExitCode != 1 {
			t.Fatalf(`%s: got %v, %+v, want a session ID, status "error" and exit code 1`, language, err, first)
		}
		call := &op.Call{}
		out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Language: language, Code: "kept = 5\n" + loop,
			SessionID: first.SessionID, Timeout: new(1)})
		if err != nil || out.Status != "timeout" || *out.ExitCode != 124 || !strings.Contains(call.Message, "variables are kept") {
			t.Errorf(`%s: got %q, %v, %+v, want status "timeout", exit code 124 and message that contains "variables are kept"`,
				language, call.Message, err, out)
		}
		out, err = s.Execute(t.Context(), ExecuteIn{Language: language, Code: "kept", SessionID: first.SessionID, Stateful: true})
		if err != nil || out.Status != "ok" || out.Outputs[0].Data["text/plain"] != "5" || *out.SessionID != *first.SessionID {
			t.Errorf(`%s: got %v, %+v, want status "ok", text/plain "5" and session ID %q`, language, err, out, *first.SessionID)
		}
		var events []string
		err = s.ExecuteStream(t.Context(), ExecuteIn{Language: language, Code: "kept + 1", SessionID: first.SessionID}, func(e op.Event) error {
			b, err := op.JSON(e.Data)
			events = append(events, e.Name+string(b))
			return err
		})
		if err != nil || len(events) != 2 ||
			!strings.HasPrefix(events[0], `output{"output":{"output_type":"execute_result","data":{"text/plain":"6"}`) ||
			!strings.HasPrefix(events[1], `result{"result":{"language":"`+language) {
			t.Errorf("%s: got %v, %q, "+
				`want 2 events, first event that starts with `+
				`'output{"output":{"output_type":"execute_result","data":{"text/plain":"6"}' and second event that starts with %q`,
				language, err, events, `result{"result":{"language":"`+language)
		}
	}
	_, err := s.Execute(t.Context(), ExecuteIn{Language: "python", Code: "1", Cwd: new("none")})
	if e, ok := op.AsError(err); !ok || e.Code != op.NotFound {
		t.Error(err)
	}
	err = s.ExecuteStream(t.Context(), ExecuteIn{Language: "cobol", Code: "1"}, func(op.Event) error { return nil })
	if e, ok := op.AsError(err); !ok || e.Code != op.Invalid {
		t.Error(err)
	}
}

func TestInfo(t *testing.T) {
	t.Parallel()
	s, r := newService(t)
	i, err := s.Info(t.Context(), op.None{})
	if err != nil || len(i.Languages) != 2 {
		t.Fatalf("got %v, %+v, want 2 languages", err, i)
	}
	for _, l := range i.Languages {
		if l.RuntimeVersion == nil || !strings.Contains(*l.RuntimeVersion, ".") || l.DefaultTimeout != 30 ||
			l.MaxTimeout != 300 || l.Details["max_sessions"] != 16 {
			t.Errorf(`got %+v, want runtime version that contains ".", default timeout 30, max timeout 300 and max_sessions 16`, l)
		}
	}
	bare := proc.New(proc.Config{Env: []string{"PATH=" + t.TempDir()}})
	defer bare.Close()
	s.Node = node.New(node.Config{Runner: bare})
	if i, err = s.Info(t.Context(), op.None{}); err != nil || i.Languages[1].RuntimeVersion != nil ||
		!strings.Contains(i.Languages[1].Description, "apt-get install nodejs") {
		t.Errorf(`got %v, %+v, want no second runtime version and second description that contains "apt-get install nodejs"`, err, i)
	}
	if len(r.Living()) > 0 {
		t.Errorf("processes remain: %v, want none", r.Living())
	}
	if _, err := s.language("x"); !errors.As(err, new(*op.Error)) {
		t.Error(err)
	}
}

func TestOpsAreSound(t *testing.T) {
	j, n := jupyter.New(jupyter.Config{}), node.New(node.Config{})
	defer j.Close()
	defer n.Close()
	table := op.NewTable(j.Ops(), n.Ops(), New(Config{Python: j, Node: n}).Ops())
	if got := len(table.All()); got != 15 {
		t.Errorf("got %d operations, want 15", got)
	}
	// The document covers every type.
	if _, err := json.Marshal(rest.OpenAPI("", "", table, rest.Guest)); err != nil {
		t.Error(err)
	}
}
