package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type none struct{}
type row struct {
	Name string  `json:"name"`
	Size int     `json:"size"`
	Note *string `json:"note"`
}
type kindsIn struct {
	ID   string            `path:"id" doc:"Id"`
	Page int               `query:"page" doc:"Page" default:"1"`
	Text string            `json:"text,omitempty" doc:"Text"`
	On   bool              `json:"on" doc:"On" default:"false"`
	List []string          `json:"list,omitempty" doc:"List"`
	Nums []int             `json:"nums,omitempty" doc:"Nums"`
	Env  map[string]string `json:"env,omitempty" doc:"Env"`
	Free any               `json:"free,omitempty" doc:"Free"`
	Kind string            `json:"kind" doc:"Kind" enum:"a,b" default:"a"`
}
type wordsIn struct {
	Words []string `json:"words" doc:"Words"`
	To    string   `json:"to" doc:"To" short:"t"`
	Loud  bool     `json:"loud_mode" alias:"loud" doc:"Loud" default:"false"`
}
type uploadIn struct {
	File *op.File `form:"file" doc:"File"`
	Path string   `form:"path" doc:"Path"`
}

type restIn struct {
	Source string `path:"source" doc:"Source"`
}

func table() *op.Table {
	spec := func(name, route string) op.Spec {
		return op.Spec{Name: name, Content: op.ContentAPI, Route: route, Tag: "t", Doc: "Doc."}
	}
	resource := spec("t_bare", "GET /v1/bare")
	resource.Style = op.Resource
	return op.NewTable([]op.Op{
		op.New(spec("t_kinds", "POST /v1/kinds/{id}"), func(_ context.Context, in kindsIn) (kindsIn, error) { return in, nil }),
		op.New(spec("t_drop", "DELETE /v1/drop/{source...}"), func(_ context.Context, in restIn) (string, error) { return in.Source, nil }),
		op.New(spec("t_say", "POST /v1/say"), func(_ context.Context, in wordsIn) (wordsIn, error) { return in, nil }),
		op.New(spec("t_rows", "GET /v1/rows"), func(context.Context, none) ([]row, error) {
			return []row{{"a", 1, nil}, {"bb", 22, new("x\ny")}}, nil
		}),
		op.New(resource, func(context.Context, none) (row, error) { return row{Name: "r"}, nil }),
		op.New(spec("t_bytes", "GET /v1/bytes"), func(context.Context, none) (*op.Blob, error) {
			return &op.Blob{Size: 3, Body: io.NopCloser(strings.NewReader("\x00\x01\x02"))}, nil
		}),
		op.New(spec("t_upload", "POST /v1/upload"), func(_ context.Context, in uploadIn) (string, error) {
			b, err := io.ReadAll(in.File)
			return in.Path + " " + in.File.Name + " " + string(b), err
		}),
		op.Stream[none, int](spec("t_count", "GET /v1/count"), func(_ context.Context, _ none, send func(op.Event) error) error {
			for i := range 3 {
				if err := send(op.Event{Data: i}); err != nil {
					return err
				}
			}
			return op.Errorf(op.Unavailable, "no more")
		}),
	})
}

type tool struct {
	url    string
	person bool
}

func (c tool) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "t", SilenceErrors: true, SilenceUsage: true}
	config := Config{Table: table(), Client: &Client{URL: c.url, Token: "tok", Key: "key"},
		Stdin: strings.NewReader("from stdin"), Stdout: &out, Stderr: &errs, Person: func() bool { return c.person }}
	Add(root, config)
	AddShort(root, config, Short{Words: "t shout", Op: "t_say", Doc: "Shout.",
		Fixed: map[string]string{"loud_mode": "true", "to": "all"}, Args: []string{"words"}, Flags: []string{"to"}})
	root.SetArgs(args)
	root.SetErr(&errs)
	err := root.ExecuteContext(t.Context())
	if err != nil {
		errs.WriteString(err.Error())
	}
	return out.String(), errs.String(), Code(err)
}

func start(t *testing.T) tool {
	t.Helper()
	inner := rest.New(rest.Config{Table: table()})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer tok" || r.Header.Get("X-API-Key") != "key" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return tool{url: s.URL}
}

func TestFlagsOfEveryKind(t *testing.T) {
	c := start(t)
	out, errs, code := c.run(t, "t", "kinds", "a b/c", "--page", "3", "--text", "-", "--on", "--list", "x", "--list",
		"y,z", "--nums", "1", "--nums", "2", "--env", "A=1", "--env", "B=x=y", "--free", `{"k":[1]}`, "--kind", "b")
	want := `{"ID":"a b/c","Page":3,"text":"from ` +
		`stdin","on":true,"list":["x","y,z"],"nums":[1,2],"env":{"A":"1","B":"x=y"},"free":{"k":[1]},"kind":"b"}`
	if got := strings.Join(strings.Fields(out), ""); code != 0 || got != strings.Join(strings.Fields(want), "") {
		t.Errorf("got exit code %d, output %s and error %s, want 0 and %s", code, out, errs, want)
	}
	for _, args := range [][]string{{"--page", "x"}, {"--kind", "c"}, {"--nums", "x"}, {"--env", "x"}} {
		if _, errs, code := c.run(t, append([]string{"t", "kinds", "1"}, args...)...); code != ExitUsage || errs == "" {
			t.Errorf("%v: got exit code %d and error %q, want %d and a message", args, code, errs, ExitUsage)
		}
	}
}

func TestArgumentsAndShortVerbs(t *testing.T) {
	c := start(t)
	for _, row := range []struct{ args, want string }{
		{"say a b c", `{"words":["a","b"],"to":"c","loud_mode":false}`},
		{"say a b --to c --loud", `{"words":["a","b"],"to":"c","loud_mode":true}`},
		{"say a -t b", `{"words":["a"],"to":"b","loud_mode":false}`},
		{"shout a b", `{"words":["a","b"],"to":"all","loud_mode":true}`},
		{"shout a --to b", `{"words":["a"],"to":"b","loud_mode":true}`},
		{"shout", ""}, {"shout a --loud", ""}, {"say a", ""},
	} {
		out, errs, code := c.run(t, append([]string{"t"}, strings.Fields(row.args)...)...)
		wantCode := ExitOK
		if row.want == "" {
			wantCode = ExitUsage
		}
		if got := strings.Join(strings.Fields(out), ""); got != row.want || code != wantCode {
			t.Errorf("%s: got exit code %d, output %s and error %s, want %d and %s", row.args, code, got, errs, wantCode, row.want)
		}
	}
}

func TestTableForAPersonJSONForAPipe(t *testing.T) {
	c := start(t)
	person := tool{c.url, true}
	if out, _, _ := person.run(t, "t", "rows"); out != "NAME  NOTE  SIZE\na     -     1 B\nbb    x⏎y   22 B\n" {
		t.Errorf("person: got %q, want a table", out)
	}
	if out, _, _ := c.run(t, "t", "rows"); !strings.HasPrefix(out, "[\n  {\n") {
		t.Errorf("pipe: got %q, want JSON", out)
	}
	if out, _, _ := person.run(t, "t", "bare", "--format", "json"); !strings.HasPrefix(out, "{\n  \"name\": \"r\"") {
		t.Errorf("--format json: got %q, want JSON", out)
	}
	if out, _, _ := c.run(t, "t", "bare", "--format", "table"); !strings.HasPrefix(out, "name  r\n") {
		t.Errorf("--format table: got %q, want a table", out)
	}
}

func TestBytes(t *testing.T) {
	c := start(t)
	if out, _, code := c.run(t, "t", "bytes"); out != "\x00\x01\x02" || code != 0 {
		t.Errorf("got %q and exit code %d, want three bytes and 0", out, code)
	}
	if _, errs, code := (tool{c.url, true}).run(t, "t", "bytes"); code != ExitUsage || !strings.Contains(errs, "-o") {
		t.Errorf("got %q and exit code %d, want a hint at -o and %d", errs, code, ExitUsage)
	}
	file := filepath.Join(t.TempDir(), "f")
	if _, _, code := c.run(t, "t", "bytes", "-o", file); code != 0 {
		t.Errorf("-o: got exit code %d, want 0", code)
	}
	if b, err := os.ReadFile(file); err != nil || len(b) != 3 {
		t.Errorf("got %q and error %v, want three bytes", b, err)
	}
	if out, errs, _ := c.run(t, "t", "upload", "--file", file, "--path", "/p"); out != "\"/p f \\u0000\\u0001\\u0002\"\n" {
		t.Errorf("got %q and error %s, want the path and the content", out, errs)
	}
	if _, _, code := c.run(t, "t", "upload", "--file", "/does/not/exist", "--path", "/p"); code != ExitUsage {
		t.Errorf("missing file: got exit code %d, want %d", code, ExitUsage)
	}
}

func TestStream(t *testing.T) {
	out, errs, code := start(t).run(t, "t", "count")
	if out != "0\n1\n2\n" || code != ExitFailed || !strings.Contains(errs, "no more") {
		t.Errorf("got %q, error %q and exit code %d, want three lines, no more and %d", out, errs, code, ExitFailed)
	}
}

func TestExitCodesOfStatuses(t *testing.T) {
	for status, want := range map[int]int{401: ExitAuth, 403: ExitAuth, 404: ExitNotFound, 422: ExitUsage,
		409: ExitFailed, 500: ExitServer, 503: ExitServer} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, `{"detail":"because"}`)
		}))
		if _, errs, code := (tool{url: s.URL}).run(t, "t", "rows"); code != want || !strings.Contains(errs, "because") {
			t.Errorf("status %d: got exit code %d and %q, want %d and because", status, code, errs, want)
		}
		s.Close()
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: rest.New(rest.Config{Table: table()})}
	go server.Serve(l)
	defer server.Close()
	if out, errs, code := (tool{url: "unix:" + path}).run(t, "t", "rows"); code != 0 || !strings.Contains(out, "bb") {
		t.Errorf("got exit code %d, output %q and error %q, want 0 and two rows", code, out, errs)
	}
	if _, _, code := (tool{url: "unix:" + path + "x"}).run(t, "t", "rows"); code != ExitConnect {
		t.Errorf("no server: got exit code %d, want %d", code, ExitConnect)
	}
}

// TestRestOfAPath: a value for the rest of a path arrives unmodified.
func TestRestOfAPath(t *testing.T) {
	c := start(t)
	for _, value := range []string{"http://a.example/b", "a/b", "../a", "a//b/", "a?b#c%2F"} {
		if out, errs, code := c.run(t, "t", "drop", value); code != 0 || strings.TrimSpace(out) != strconv.Quote(value) {
			t.Errorf("%q: got %s, %s and code %d, want the value", value, out, errs, code)
		}
	}
}
