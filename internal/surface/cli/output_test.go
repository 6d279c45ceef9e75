package cli

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/surface/cli/query"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

type nameIn struct {
	Name string `path:"name" doc:"Name"`
}

type past struct {
	Name   string   `json:"name"`
	Reason string   `json:"reason"`
	Tags   []string `json:"tags"`
}

type box struct {
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Image   string    `json:"image"`
	Created time.Time `json:"created_at"`
}

// shortTool is a command line whose output is short even in a pipe.
func shortTool(t *testing.T) func(args ...string) (string, int) {
	t.Helper()
	list := op.Spec{Name: "box_list", Route: "GET /v1/box", Tag: "t", Doc: "List.",
		Columns: []string{"name", "status", "created_at"}, Wide: []string{"image"}}
	one := box{"a", "running", "debian", time.Now().Add(-5 * time.Minute)}
	table := op.NewTable([]op.Op{
		op.New(list, func(context.Context, none) ([]box, error) { return []box{one, {"b", "paused", "", time.Now()}}, nil }),
		op.New(op.Spec{Name: "box_make", Route: "POST /v1/box", Tag: "t", Doc: "Make."},
			func(context.Context, none) (box, error) { return one, nil }),
		op.New(op.Spec{Name: "box_show", Route: "GET /v1/box/{name}", Tag: "t", Doc: "Show."}, func(_ context.Context, in nameIn) (box, error) {
			if in.Name == "missing" {
				return box{}, op.Errorf(op.NotFound, "no box %q", in.Name)
			}
			return box{Name: in.Name}, nil
		}),
		op.New(op.Spec{Name: "box_rm", Route: "DELETE /v1/box/{name}", Tag: "t", Doc: "Delete."},
			func(_ context.Context, in nameIn) (string, error) { return in.Name + " deleted", nil }),
		op.New(op.Spec{Name: "box_past", Route: "GET /v1/past", Tag: "t", Doc: "List deletions.", Columns: []string{"name", "reason"},
			Wide: []string{"tags"}},
			func(context.Context, none) ([]past, error) {
				return []past{{"idle_policy", "idle; set idle_policy, or DELETE /v1/box/a", []string{"v1", "v2"}}}, nil
			}),
		op.New(op.Spec{Name: "box_set", Route: "PUT /v1/box", Tag: "t", Doc: "Set."},
			func(context.Context, policyIn) (string, error) { return "", nil }),
	})
	server := httptest.NewServer(rest.New(rest.Config{Table: table}))
	t.Cleanup(server.Close)
	return func(args ...string) (string, int) {
		var out bytes.Buffer
		root := &cobra.Command{Use: "t", SilenceErrors: true, SilenceUsage: true, Args: CheckCommand,
			RunE: func(*cobra.Command, []string) error { return nil }}
		Add(root, Config{
			Table: table, Client: &Client{URL: server.URL}, Stdout: &out, Stderr: &out, Person: func() bool { return false }, Short: true,
			Program:  "t",
			Select:   selectHere,
			Presets:  map[string]Preset{"box_make": {Output: "name", Aliases: []string{"create"}}},
			Complete: func(_ context.Context, o op.Op, field string) []string { return []string{o.Name + "-" + field} },
		})
		root.SetFlagErrorFunc(FlagError)
		root.SetArgs(args)
		root.SetOut(&out)
		err := root.ExecuteContext(t.Context())
		if err != nil {
			out.WriteString(err.Error())
		}
		return out.String(), Code(err)
	}
}

func selectHere(_ context.Context, language, expression string) (Selection, error) {
	return query.Compile(language, expression)
}

func TestOutputInAScriptIsShort(t *testing.T) {
	run := shortTool(t)
	for _, c := range []struct{ line, want string }{
		{"box list", "NAME  STATUS   CREATED\na     running  5m ago\nb     paused   0s ago\n"},
		{"box list -o wide", "NAME  STATUS   CREATED  IMAGE\na     running  5m ago   debian\nb     paused   0s ago   \n"},
		{"box list -q", "a\nb\n"},
		{"box list -o jsonpath={.items[*].name}", "a b\n"},
		{"box list -o jsonpath={.items[0].status}:{.items[1].name}", "running:b\n"},
		{"box show a -o jsonpath={.name}", "a\n"},
		{"box list --jq .[].name", "a\nb\n"},
		{"box list --jq map({name,status})[1]", `{"name":"b","status":"paused"}` + "\n"},
		{"box list --jq length", "2\n"},
		{"box list -o name", "a\nb\n"},
		{"box make", "a\n"},
		{"box create", "a\n"},
		{"box rm a", "a deleted\n"},
		{"box rm a b", "a deleted\nb deleted\n"},
		{"box rm a b -q", "a\nb\n"},
		{"box show a b -q", "a\nb\n"},
		{"box past -o wide", "NAME         REASON                                  TAGS\n" +
			"idle_policy  idle; set --idle-policy, or t box rm a  v1, v2\n"},
		{"box past", "NAME         REASON\nidle_policy  idle; set --idle-policy, or t box rm a\n"},
		{"__complete box show ", "box_show-name\n:4\n"},
		{"__complete box list -o ", "table\nwide\njson\nyaml\nname\n:4\n"},
	} {
		args := strings.Fields(c.line)
		if strings.HasSuffix(c.line, " ") {
			args = append(args, "")
		}
		if got, code := run(args...); got != c.want || code != 0 {
			t.Errorf("%s: got exit code %d and %q, want 0 and %q", c.line, code, got, c.want)
		}
	}
	for _, selection := range []string{"--jq=.name", "-o=jsonpath={.name}"} {
		if got, code := run("box", "show", "\x1b[1m", selection); got != `\u001b[1m`+"\n" || code != 0 {
			t.Errorf("%s: got exit code %d and %q, want the control sequence escaped", selection, code, got)
		}
	}
	const template = `jsonpath={range .items[*]}{.name}{"\t"}{.status}{"\n"}{end}`
	if got, code := run("box", "list", "-o", template); got != "a\trunning\nb\tpaused\n\n" || code != 0 {
		t.Errorf("range: got exit code %d and %q, want two lines", code, got)
	}
	for line, want := range map[string]string{"box list -o yaml": "- name: a\n  status: running\n  image: debian\n",
		"box list -o json": "[\n  {\n",
		"box make -o json": "{\n  \"name\": \"a\"", "box show a": "{\n  \"name\": \"a\""} {
		if got, _ := run(strings.Fields(line)...); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want JSON", line, got)
		}
	}
}

func TestSeveralNamesContinueAfterAFailure(t *testing.T) {
	got, code := shortTool(t)("box", "show", "missing", "b", "-q")
	if want := "b\nno box \"missing\""; got != want || code != ExitFailed {
		t.Errorf("got exit code %d and %q, want %d and %q", code, got, ExitFailed, want)
	}
}

func TestTypingErrorsGetASuggestion(t *testing.T) {
	run := shortTool(t)
	for line, want := range map[string]string{
		"boxx":               `unknown command "boxx"; did you mean "t box"?`,
		"box craete":         `unknown command "craete"; did you mean "t box create"?`,
		"box zzz":            `unknown command "zzz"; see t box --help`,
		"box list --otput x": `unknown flag: --otput; did you mean --output?`,
		"box list --jq .[":   `invalid --jq ".[": unexpected EOF`,
		"box list -o jsonpath={.x": `invalid jsonpath "{.x": no } after {.x; use a template such as {.name} or ` +
			`{range .items[*]}{.name}{"\n"}{end}`,
		"box list -o x": `invalid output format "x"; use table, wide, json, yaml, name or jsonpath=TEMPLATE`,
	} {
		if got, code := run(strings.Fields(line)...); got != want || code != ExitUsage {
			t.Errorf("%s: got exit code %d and %q, want %d and %q", line, code, got, ExitUsage, want)
		}
	}
}

func TestAges(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s ago", -90 * time.Second: "90s ago", -5 * time.Minute: "5m ago", time.Hour: "in 1h",
		100 * time.Minute: "in 100m", -50 * time.Hour: "2d ago", -47 * time.Hour: "47h ago",
	} {
		if got := Age(d); got != want {
			t.Errorf("Age(%v): got %q, want %q", d, got, want)
		}
	}
}

func TestProgressReportsTheRemainingTime(t *testing.T) {
	var out bytes.Buffer
	p := Progress(strings.NewReader(strings.Repeat("x", 500)), &out, "sent", 1000).(*progress)
	p.began = p.began.Add(-10 * time.Second)
	if _, err := p.Read(make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "(50 %)") || !strings.Contains(got, "10s left") {
		t.Errorf("got %q, want 50 %% and 10s left", got)
	}
}

// Progress of an import or export is shown on a terminal only.
func TestCopiesShowProgress(t *testing.T) {
	t.Parallel()
	for _, person := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			r := &run{Config: Config{Stderr: &out, Person: func() bool { return person }}, file: filepath.Join(t.TempDir(), "image.tar")}
			if err := r.writeBytes(&slowReader{left: 30}); err != nil {
				t.Fatal(err)
			}
			if told := strings.Contains(out.String(), "received 0.0 MB"); told != person {
				t.Errorf("person %v: got %q, want progress only for a person", person, &out)
			}
			if !strings.HasSuffix(out.String(), "wrote 30 bytes to "+r.file+"\n") {
				t.Errorf("person %v: got %q, want the size at the end", person, &out)
			}
		})
	}
}

// slowReader takes a tenth of a second for each byte.
type slowReader struct{ left int }

func (s *slowReader) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	testenv.Advance(100 * time.Millisecond)
	s.left--
	p[0] = 'x'
	return 1, nil
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{-1: "-", 0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 15 << 20: "15 MiB",
		3 << 40: "3.0 TiB", 1 << 62: "4.0 EiB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d): got %q, want %q", n, got, want)
		}
	}
}

type policyIn struct {
	Idle string `json:"idle_policy" default:"" doc:"Policy"`
}

// Errors of the server name its routes and fields. Users of the command line read commands and flags.
func TestErrorsNameCommands(t *testing.T) {
	none := func(context.Context, none) (string, error) { return "", nil }
	table := op.NewTable([]op.Op{
		op.New(op.Spec{Name: "box_list", Route: "GET /v1/box", Tag: "t", Doc: "List."}, none),
		op.New(op.Spec{Name: "box_show", Route: "GET /v1/box/{name}", Tag: "t", Doc: "Show."},
			func(context.Context, nameIn) (string, error) { return "", nil }),
		op.New(op.Spec{Name: "box_set", Route: "PUT /v1/box", Tag: "t", Doc: "Set."},
			func(context.Context, policyIn) (string, error) { return "", nil }),
		op.New(op.Spec{Name: "hidden", Route: "POST /v1/hidden", Tag: "t", Doc: "No verb.", NoVerb: true}, none),
	})
	for text, want := range map[string]string{
		"list with GET /v1/box, or create":          "list with t box list, or create",
		"see GET /v1/box/a.":                        "see t box show a.",
		"t box show a (GET /v1/box/a) shows it":     "t box show a shows it",
		"see GET /v1/box/{name}":                    "see t box show",
		"set idle_policy, or max_age: 5":            "set --idle-policy, or max_age: 5",
		`"idle_policy" {idle_policy} x_idle_policy`: `"idle_policy" {idle_policy} x_idle_policy`,
		"idle_policy_x --idle_policy a/idle_policy": "idle_policy_x --idle_policy a/idle_policy",
		"DELETE /v1/box and POST /v1/hidden stay":   "DELETE /v1/box and POST /v1/hidden stay",
	} {
		if got := Commands("t", table, text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Errors of a sandbox name routes of a table that the program does not have.
func TestErrorsNameCommandsOfOthers(t *testing.T) {
	none := func(context.Context, none) (string, error) { return "", nil }
	text := WriteCommands(op.NewTable([]op.Op{op.New(op.Spec{Name: "box_list", Route: "GET /v1/box", Tag: "t", Doc: "List."}, none)}))
	got := RouteCommands("t in", ReadCommands(text+"\nbroken\n"), "list with GET /v1/box or GET /v1/other")
	if want := "list with t in box list or GET /v1/other"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
