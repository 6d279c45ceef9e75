package toolset_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

type runIn struct {
	Command  string            `json:"command" doc:"What to run"`
	Dir      string            `json:"exec_dir" default:"" doc:"Where"`
	Language string            `json:"language" enum:"python,javascript" doc:"Of the code"`
	First    *int              `json:"first" doc:"First line"`
	Last     *int              `json:"last" doc:"Last line"`
	Env      map[string]string `json:"env" nullable:"true" doc:"Variables"`
	Any      json.RawMessage   `json:"any,omitempty" nullable:"true" doc:"Anything"`
	Enter    bool              `json:"press_enter" doc:"Press Enter"`
}

func spec(name string) op.Spec {
	return op.Spec{Name: name, Route: "POST /" + name, Tag: "x", Doc: "Run."}
}

// tool returns a tool whose result is its input.
func tool(t *testing.T) toolset.Tool {
	t.Helper()
	set := toolset.NewSet([]toolset.Tool{{
		Op: op.New(spec("run"), func(_ context.Context, in runIn) (runIn, error) { return in, nil }),
		Args: []toolset.Arg{{Field: "first", Count: toolset.FirstLine}, {Field: "last", Count: toolset.LastLine},
			{Field: "press_enter", Preset: true}},
	}})
	got, ok := set.Get("run")
	if !ok {
		t.Fatal("the tool is not in its set")
	}
	return got
}

type (
	moveIn struct {
		Kind string `json:"kind" const:"MOVE"`
		X    int    `json:"x" doc:"Position"`
	}
	clickIn struct {
		Kind   string `json:"kind" const:"CLICK"`
		Button string `json:"button" doc:"Button" enum:"left,right" default:"left"`
		Times  int    `json:"times" doc:"Clicks" enum:"1,2" default:"1"`
	}
	actionIn struct{ op.OneOf }
)

func (actionIn) Union() (string, []any) { return "kind", []any{moveIn{}, clickIn{}} }

// TestArgumentsOfOtherVariants: an invalid value is refused even if the chosen variant ignores it.
func TestArgumentsOfOtherVariants(t *testing.T) {
	t.Parallel()
	set := toolset.NewSet([]toolset.Tool{{Op: op.New(spec("act"), func(context.Context, actionIn) (string, error) { return "done", nil })}})
	act, _ := set.Get("act")
	for args, ok := range map[string]bool{
		`{"kind":"MOVE","x":1}`:                           true,
		`{"kind":"MOVE","x":1,"button":"LEFT","times":2}`: true,
		`{"kind":"MOVE","x":1,"button":null}`:             true,
		`{"kind":"CLICK","button":"right"}`:               true,
		`{"kind":"MOVE","x":1,"button":12345}`:            false,
		`{"kind":"MOVE","x":1,"button":"odd"}`:            false,
		`{"kind":"MOVE","x":1,"times":3}`:                 false,
		`{"kind":"CLICK","button":12345}`:                 false,
	} {
		_, err := act.Call(t.Context(), json.RawMessage(args))
		if e, refused := op.AsError(err); (err == nil) != ok || !ok && (!refused || e.Code != op.Invalid) {
			t.Errorf("%s: got %v, want success: %v", args, err, ok)
		}
	}
}

// TestArguments: arguments in common variants are accepted, and errors describe the problem.
func TestArguments(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ args, want, err string }{
		{`{"cmd":"ls","cwd":"/tmp","language":"python"}`, `"command":"ls","exec_dir":"/tmp"`, ""},
		{`{"command":"ls","language":"JS"}`, `"language":"javascript"`, ""},
		{`{"command":"ls","language":"Python"}`, `"language":"python"`, ""},
		{`{"command":"ls","language":"ruby"}`, "", "one of: python, javascript"},
		{`{"command":"ls"}`, "", `missing argument "language": one of python javascript`},
		{`{"language":"python"}`, "", `missing argument "command"`},
		{`{"comand":"ls","language":"python"}`, "", `did you mean "command"?`},
		{`{"banana":1}`, "", `use one of command, exec_dir`},
		{`{"command":"a","cmd":"b","language":"python"}`, "", "given twice"},
		{`{"command":"ls","language":"python","first":2,"last":3}`, `"first":1,"last":3`, ""},
		{`{"command":"ls","language":"python","first":-1,"last":-1}`, `"first":-1,"last":null`, ""},
		{`{"command":"ls","language":"python","first":0}`, "", "lines are counted from 1"},
		{`{"command":"ls","language":"python","env":["A=1","B=x=y"]}`, `"env":{"A":"1","B":"x=y"}`, ""},
		{`{"command":"ls","language":"python","env":"{\"A\":\"1\"}"}`, `"env":{"A":"1"}`, ""},
		{`{"command":"ls","language":"python","env":["A"]}`, "", `argument "env"`},
		{`{"command":"ls","language":"python","any":"{\"a\":[1]}"}`, `"any":{"a":[1]}`, ""},
		{`{"command":"ls","language":"python"}`, `"press_enter":true`, ""},
		{`{"command":"ls","language":"python","press_enter":false}`, `"press_enter":false`, ""},
		{`[1]`, "", "must be a JSON object: got a list"},
		{`"x"`, "", "must be a JSON object: got a string"},
		{`{`, "", "must be a JSON object"},
		{`null`, "", "missing argument"},
		{`{"` + strings.Repeat("x", 500) + `":1}`, "", "…"},
	} {
		r, err := tool(t).Call(t.Context(), json.RawMessage(x.args))
		switch e, ok := op.AsError(err); {
		case x.err != "" && (!ok || e.Code != op.Invalid || !strings.Contains(e.Msg, x.err) || len(e.Msg) > 500):
			t.Errorf("%s: got %v, want an error with %q", x.args, err, x.err)
		case x.err == "" && (err != nil || !strings.Contains(r.Text, x.want)):
			t.Errorf("%s: got %s, %v, want %s in it", x.args, r.Text, err, x.want)
		}
	}
}

func FuzzArguments(f *testing.F) {
	for _, seed := range []string{`{}`, `null`, `{"cmd":"ls","language":"js","env":["A=1"]}`, `{"any":"[1,2]"}`, `[`, `{"first":1e400}`} {
		f.Add([]byte(seed))
	}
	run := toolset.FromOp(op.New(spec("run"), func(_ context.Context, in runIn) (runIn, error) { return in, nil }))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := run.Call(t.Context(), raw); err != nil {
			if _, ok := op.AsError(err); !ok {
				t.Errorf("%q: got %v, want an error for the caller", raw, err)
			}
		}
	})
}

// TestInput: a preset argument is optional, and all arguments have a type.
func TestInput(t *testing.T) {
	t.Parallel()
	in := tool(t).Input()
	if got := strings.Join(in.Required, " "); got != "command language" {
		t.Errorf("got %q required, want command and language", got)
	}
	for name, p := range in.Properties {
		if p.Type == "" || len(p.AnyOf) > 0 {
			t.Errorf("%s: got %+v, want one type", name, p)
		}
	}
	if env := in.Properties["env"]; env.Type != "array" || !strings.Contains(env.Description, "NAME=value") {
		t.Errorf("got %+v, want a list of NAME=value", env)
	}
}

// returning is a tool with this output.
func returning[O any](out O) toolset.Tool {
	return toolset.FromOp(op.New(spec("give"), func(context.Context, op.None) (O, error) { return out, nil }))
}

type item struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// TestStructuredResults: data of every size matches its schema; text has no schema.
func TestStructuredResults(t *testing.T) {
	t.Parallel()
	many := make([]item, 3000)
	for i := range many {
		many[i] = item{"name", strings.Repeat("x", 100)}
	}
	for name, x := range map[string]toolset.Tool{
		"an object": returning(item{"a", "b"}), "a list": returning([]item{{"a", "b"}}),
		"an empty list": returning([]item{}), "a number": returning(7),
		"an optional object": returning(&item{"a", "b"}), "none": returning((*item)(nil)),
		"a long list": returning(many), "a long text in it": returning(item{"a", strings.Repeat("ü", 200_000)}),
	} {
		schema := x.Output()
		if schema == nil {
			t.Errorf("%s: got no schema", name)
			continue
		}
		resolved, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := x.Call(t.Context(), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var tree any
		if err := json.Unmarshal(r.Structured, &tree); err != nil || resolved.Validate(tree) != nil {
			t.Errorf("%s: got %.200s, want what %v describes: %v", name, r.Structured, schema, resolved.Validate(tree))
		}
		if n := utf8.RuneCountInString(r.Text) + utf8.RuneCount(r.Structured); n > toolset.Limit+1000 {
			t.Errorf("%s: got %d characters, want at most %d", name, n, toolset.Limit)
		}
	}
	text := returning("plain")
	r, err := text.Call(t.Context(), nil)
	if err != nil || text.Output() != nil || r.Structured != nil || r.Text != "plain" {
		t.Errorf("a text: got %+v, %v, want text alone", r, err)
	}
}

// TestLongResults: the beginning and the end of a long result are kept, and all of it is stored if possible.
func TestLongResults(t *testing.T) {
	t.Parallel()
	long := "begin" + strings.Repeat("ü\n", 100_000) + "end"
	stored := map[string]int{}
	store := func(name string, r io.Reader) (string, int64, error) {
		n, err := io.Copy(io.Discard, r)
		stored[name] = int(n)
		return "/results/" + name, n, err
	}
	r, err := returning(long).Call(toolset.WithStore(t.Context(), store), nil)
	if err != nil || !strings.HasPrefix(r.Text, "begin") || !strings.HasSuffix(r.Text, "end") ||
		utf8.RuneCountInString(r.Text) > toolset.Limit || !strings.Contains(r.Text, "/results/give.txt") {
		t.Errorf("got %d characters, %v: %.100s, want both ends and the file", utf8.RuneCountInString(r.Text), err, r.Text)
	}
	if stored["give.txt"] != len(long) || len(r.Files) != 1 || r.Files[0].URI() != "file:///results/give.txt" {
		t.Errorf("got %v, %+v, want the whole text stored", stored, r.Files)
	}
	full := func(string, io.Reader) (string, int64, error) { return "", 0, errors.New("disk full") }
	for name, ctx := range map[string]context.Context{"nowhere": t.Context(), "on a full disk": toolset.WithStore(t.Context(), full)} {
		if r, err := returning(long).Call(ctx, nil); err != nil || !strings.Contains(r.Text, "request less") || len(r.Files) > 0 {
			t.Errorf("stored %s: got %v, %.100s, want it truncated", name, err, r.Text)
		}
	}
	if r, _ := returning("bad \xff utf-8").Call(t.Context(), nil); !utf8.ValidString(r.Text) {
		t.Errorf("got %q, want valid UTF-8", r.Text)
	}
}

func picture(t *testing.T, size int) []byte {
	t.Helper()
	noise := rand.New(rand.NewPCG(1, 2))
	p := image.NewRGBA(image.Rect(0, 0, size, size))
	for i := range p.Pix {
		p.Pix[i] = byte(noise.Uint32())
	}
	p.Set(0, 0, color.White)
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestImages: images are reduced to the limit, and other bytes are stored.
func TestImages(t *testing.T) {
	t.Parallel()
	blob := func(kind string, data []byte) toolset.Tool {
		o := op.New(op.Spec{Name: "give", Content: op.ContentAPI, Route: "GET /give", Tag: "x", Doc: "Give."},
			func(context.Context, op.None) (*op.Blob, error) {
				return &op.Blob{Type: kind, Body: io.NopCloser(bytes.NewReader(data))}, nil
			})
		return toolset.FromOp(o)
	}
	r, err := blob("image/png", picture(t, 420)).Call(t.Context(), nil)
	if err != nil || len(r.Images) != 1 || r.Images[0].Type != "image/jpeg" || len(r.Images[0].Data) > 640<<10 {
		t.Errorf("got %d images, %v, %s, want one that is reduced", len(r.Images), err, r.Text)
	}
	if _, _, err := image.Decode(bytes.NewReader(r.Images[0].Data)); err != nil {
		t.Errorf("the reduced picture: %v", err)
	}
	store := func(name string, r io.Reader) (string, int64, error) {
		n, err := io.Copy(io.Discard, r)
		return "/results/" + name, n, err
	}
	ctx := toolset.WithStore(t.Context(), store)
	for kind, data := range map[string][]byte{"application/zip": make([]byte, 1<<20),
		"image/svg+xml": make([]byte, 1<<20), "text/plain": {0xff, 0xfe}} {
		if r, err := blob(kind, data).Call(ctx, nil); err != nil || len(r.Files) != 1 || !strings.Contains(r.Text, "/results/") {
			t.Errorf("%s: got %+v, %v, want a file", kind, r.Files, err)
		}
	}
	if r, err := blob("text/plain; charset=utf-8", []byte("words")).Call(ctx, nil); err != nil || r.Text != "words" {
		t.Errorf("got %q, %v, want the text", r.Text, err)
	}
}

// TestFirstToolOfANameIsUsed: a set has one tool of each name.
func TestFirstToolOfANameIsUsed(t *testing.T) {
	t.Parallel()
	one, two := returning("one"), returning("two")
	set := toolset.NewSet([]toolset.Tool{one, two})
	got, _ := set.Get("give")
	if r, err := got.Call(t.Context(), nil); err != nil || r.Text != "one" || len(set.Tools) != 1 {
		t.Errorf("got %q of %d tools, %v, want the first", r.Text, len(set.Tools), err)
	}
	if _, ok := set.Get("other"); ok {
		t.Error("got a tool that is not there")
	}
}
