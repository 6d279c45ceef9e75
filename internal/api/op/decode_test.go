package op

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
)

type inner struct {
	Name  string `json:"name" doc:"Name" minLength:"2"`
	Count int    `json:"count" doc:"Count" default:"7"`
}

type size struct{ W, H int }

func (s *size) DecodeOp(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("want WxH")
	}
	_, err := fmt.Sscanf(text, "%dx%d", &s.W, &s.H)
	return err
}

func (size) SchemaOp() *jsonschema.Schema { return &jsonschema.Schema{Type: "string"} }

type everything struct {
	ID       string            `path:"id" doc:"Id"`
	Names    []string          `json:"names" doc:"Names" default:"a,b"`
	Page     int               `query:"page" doc:"Page" default:"1" minimum:"1"`
	Tags     []string          `query:"tag,omitempty" doc:"Tags"`
	Text     string            `json:"text" doc:"Text" maxLength:"5"`
	Maybe    *string           `json:"maybe" doc:"Maybe"`
	Limit    int               `json:"limit" doc:"Limit" default:"30" maximum:"300" nullable:"true"`
	Ratio    float64           `json:"ratio" doc:"Ratio" default:"0.5" exclusiveMinimum:"0" exclusiveMaximum:"1"`
	On       bool              `json:"on" doc:"On" default:"true"`
	Kind     string            `json:"kind" doc:"Kind" enum:"a,b" default:"a"`
	Clicks   int               `json:"clicks" doc:"Clicks" enum:"1,2,3" default:"1"`
	Inner    *inner            `json:"inner" doc:"Inner"`
	List     []inner           `json:"list,omitempty" doc:"List" maxItems:"3"`
	Env      map[string]string `json:"env,omitempty" doc:"Env"`
	Anything any               `json:"anything,omitempty" doc:"Anything"`
	Raw      json.RawMessage   `json:"raw,omitempty" doc:"Raw"`
	Data     []byte            `json:"data,omitempty" doc:"Data"`
	Slug     string            `json:"slug" doc:"Slug" pattern:"^[a-z]+$" default:"x"`
	Screen   size              `json:"screen,omitempty" doc:"Screen"`
	Both     string            `json:"both,omitempty" doc:"Both" alias:"other"`
	Port     uint16            `json:"port,omitempty" doc:"Port"`
}

func input(body string, values map[string][]string) Input {
	return Input{JSON: []byte(body), Value: func(s Source, name string) []string { return values[string(s)+"."+name] }}
}

func bound(t *testing.T, body string, values map[string][]string) (everything, Faults) {
	t.Helper()
	o := New(Spec{Name: "x", Route: "POST /x/{id}", Tag: "x", Doc: "X."},
		func(_ context.Context, in everything) (None, error) { return None{}, nil })
	if values == nil {
		values = map[string][]string{"path.id": {"1"}}
	}
	in, err := o.Bind(input(body, values))
	if err != nil {
		return everything{}, err.(Faults)
	}
	return *in.(*everything), nil
}

func TestDefaultsAndAbsence(t *testing.T) {
	in, faults := bound(t, `{"text":"hi"}`, nil)
	if faults != nil {
		t.Fatal(faults)
	}
	want := everything{ID: "1", Names: []string{"a", "b"}, Page: 1, Text: "hi", Limit: 30,
		Ratio: 0.5, On: true, Kind: "a", Clicks: 1, Slug: "x"}
	if d := cmp.Diff(want, in); d != "" {
		t.Error(d)
	}
}

func TestEverySourceAndKind(t *testing.T) {
	in, faults := bound(t, `{"text":"héllo","maybe":"","limit":0,"ratio":0.25,"on":"no","kind":"b","clicks":3,
		"inner":{"name":"in"},"list":[{"name":"ab","count":"5"},{"name":"cd"}],"env":{"A":"1"},"anything":{"n":12345678901234567890},
		"raw":[1,{"a":null}],"data":"aGk=","slug":"abc","screen":"3x4","other":"by alias","names":["c"],"unknown":[{}],"port":8080.0}`,
		map[string][]string{"path.id": {"a b"}, "query.page": {"12"}, "query.tag": {"x", "y"}})
	if faults != nil {
		t.Fatal(faults)
	}
	want := everything{ID: "a b", Names: []string{"c"}, Page: 12, Tags: []string{"x", "y"}, Text: "héllo", Maybe: new(""), Limit: 0,
		Ratio: 0.25, On: false, Kind: "b", Clicks: 3,
		Inner: &inner{Name: "in", Count: 7}, List: []inner{{"ab", 5}, {"cd", 7}}, Env: map[string]string{"A": "1"},
		Anything: map[string]any{"n": json.Number("12345678901234567890")}, Raw: json.RawMessage(`[1,{"a":null}]`), Data: []byte("hi"),
		Slug: "abc", Screen: size{3, 4}, Both: "by alias", Port: 8080}
	if d := cmp.Diff(want, in); d != "" {
		t.Error(d)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, faults := bound(t, `{"text":"toolong","maybe":5,"limit":301,"ratio":1,"on":"perhaps","kind":"c","clicks":4,
		"inner":{"count":"x"},"list":[{"name":"a"},7],"env":{"A":1},"data":"%%","slug":"A1","screen":5,"port":70000}`,
		map[string][]string{"path.id": {"1"}, "query.page": {"0"}})
	got := map[string]string{}
	for _, f := range faults {
		parts := make([]string, len(f.Loc))
		for i, l := range f.Loc {
			parts[i] = fmt.Sprint(l)
		}
		got[strings.Join(parts, ".")] = f.Type
		if f.Msg == "" {
			t.Errorf("%v has no message", f.Loc)
		}
	}
	want := map[string]string{
		"query.page": "greater_than_equal", "body.text": "string_too_long", "body.maybe": "string_type", "body.limit": "less_than_equal",
		"body.ratio": "less_than", "body.on": "bool_parsing", "body.kind": "literal_error", "body.clicks": "literal_error",
		"body.inner.name": "missing", "body.inner.count": "int_parsing", "body.list.0.name": "string_too_short",
		"body.list.1": "model_attributes_type",
		"body.env.A":  "string_type", "body.data": "bytes_invalid_encoding", "body.slug": "string_pattern_mismatch", "body.screen": "value_error",
		"body.port": "int_parsing_size",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestBodies(t *testing.T) {
	for _, c := range []struct{ name, body, loc, kind string }{
		{"missing", "", "body", "missing"},
		{"null", "null", "body", "model_attributes_type"},
		{"list", "[]", "body", "model_attributes_type"},
		{"cut off", `{"text":`, "body.0", "json_invalid"},
		{"two values", `{"text":"a"} {}`, "body.0", "json_invalid"},
		{"broken", `{"text":"a",}`, "body.13", "json_invalid"},
		{"deep", strings.Repeat("[", 20000), "body.10001", "json_invalid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, faults := bound(t, c.body, nil)
			if len(faults) != 1 || faults[0].Type != c.kind {
				t.Fatalf("got %v, want one %s", faults, c.kind)
			}
			if loc := strings.Trim(strings.ReplaceAll(fmt.Sprint(faults[0].Loc), " ", "."), "[]"); loc != c.loc {
				t.Errorf("got location %s, want %s", loc, c.loc)
			}
		})
	}
}

func TestNullIsMissingOnlyWhereAllowed(t *testing.T) {
	in, faults := bound(t, `{"text":"a","limit":null,"maybe":null,"inner":null}`, nil)
	if faults != nil || in.Limit != 30 || in.Maybe != nil || in.Inner != nil {
		t.Fatalf("got %+v and %v, want limit 30, maybe and inner nil", in, faults)
	}
	_, faults = bound(t, `{"text":null,"ratio":null}`, nil)
	if len(faults) != 2 {
		t.Fatalf("null where it is not allowed: got %v, want two faults", faults)
	}
}

type move struct {
	Kind string  `json:"action_type" const:"MOVE"`
	X    float64 `json:"x" doc:"X"`
}
type wait struct {
	Kind    string `json:"action_type" const:"WAIT"`
	Seconds int    `json:"seconds" doc:"Seconds" default:"1"`
}
type action struct{ OneOf }

func (action) Union() (string, []any) { return "action_type", []any{move{}, wait{}} }

func TestUnion(t *testing.T) {
	o := New(Spec{Name: "act", Route: "POST /act", Tag: "x", Doc: "Act."}, func(_ context.Context, in action) (string, error) {
		switch v := in.Value.(type) {
		case *move:
			return fmt.Sprint("move ", v.X), nil
		case *wait:
			return fmt.Sprint("wait ", v.Seconds), nil
		}
		return "", nil
	})
	for body, want := range map[string]string{
		`{"action_type":"MOVE","x":3}`: "move 3",
		`{"action_type":"WAIT"}`:       "wait 1",
		`{"action_type":"MOVE"}`:       "body.MOVE.x: Field required",
		`{"action_type":"JUMP"}`:       "body: 'JUMP' is not a known action_type; use one of: MOVE, WAIT",
		`{"x":1}`:                      "body: Field 'action_type' is required to select the variant",
	} {
		in, err := o.Bind(Input{JSON: []byte(body)})
		var got string
		if err != nil {
			got = err.Error()
		} else {
			out, err := o.Call(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			got = out.(string)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	flat, err := json.Marshal(o.In().Flat())
	if err != nil || !strings.Contains(string(flat), `"enum":["MOVE","WAIT"]`) || strings.Contains(string(flat), "oneOf") {
		t.Errorf("flat schema: got %s and error %v, want one object with the enum of action_type", flat, err)
	}
}

func TestFlatTakesEverySource(t *testing.T) {
	o := New(Spec{Name: "x", Route: "POST /x/{id}", Tag: "x", Doc: "X."},
		func(_ context.Context, in everything) (string, error) { return in.ID + in.Text, nil })
	in, err := o.Bind(Input{Flat: true, JSON: []byte(`{"id":"7","text":"t","page":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	if e := in.(*everything); e.ID != "7" || e.Page != 2 {
		t.Errorf("got %+v, want id 7 and page 2", e)
	}
	if _, err := o.Bind(Input{Flat: true}); err == nil || !strings.Contains(err.Error(), "id: Field required; text: Field required") {
		t.Errorf("without arguments: got %v, want id and text missing", err)
	}
}

type listOut struct {
	Items []string          `json:"items"`
	Map   map[string]string `json:"map"`
	Deep  []struct {
		List []int `json:"list"`
	} `json:"deep"`
	Ptr *struct {
		List []int `json:"list"`
	} `json:"ptr"`
	Self *listOut `json:"self"`
}

func TestNilListsComeOutEmpty(t *testing.T) {
	o := New(Spec{Name: "x", Route: "GET /x", Tag: "x", Doc: "X."}, func(context.Context, None) (listOut, error) {
		out := listOut{Self: &listOut{}}
		out.Deep = append(out.Deep, struct {
			List []int `json:"list"`
		}{})
		out.Ptr = &struct {
			List []int `json:"list"`
		}{}
		return out, nil
	})
	out, err := o.Call(t.Context(), new(None))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := JSON(out)
	want := `{"items":[],"map":{},"deep":[{"list":[]}],"ptr":{"list":[]},"self":{"items":[],"map":{},"deep":[],"ptr":null,"self":null}}`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMistakesAreFound(t *testing.T) {
	fn := func(context.Context, None) (None, error) { return None{}, nil }
	good := Spec{Name: "a", Route: "GET /a", Tag: "t", Doc: "Doc."}
	type undocumented struct {
		A string `json:"a"`
	}
	type pathless struct {
		A string `path:"a" doc:"A"`
	}
	for name, mistake := range map[string]func(){
		"no name":         func() { s := good; s.Name = ""; New(s, fn) },
		"no doc":          func() { s := good; s.Doc = ""; New(s, fn) },
		"no tag":          func() { s := good; s.Tag = ""; New(s, fn) },
		"no path":         func() { s := good; s.Route = "GET"; New(s, fn) },
		"duplicate name":  func() { b := good; b.Route = "GET /b"; NewTable([]Op{New(good, fn), New(b, fn)}) },
		"parameter":       func() { s := good; s.Route = "GET /a/{id}"; New(s, fn).In() },
		"field, no param": func() { New(good, func(context.Context, pathless) (None, error) { return None{}, nil }).In() },
		"undocumented":    func() { New(good, func(context.Context, undocumented) (None, error) { return None{}, nil }).In() },
		"public parameter": func() {
			Handle(Spec{Content: ContentAPI, Name: "a", Route: "/a/{x}", Tag: "t", Doc: "D.", Public: true}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("got no panic, want one")
				}
			}()
			mistake()
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"text":"a","list":[{"name":"ab"}],"env":{"a":"b"},"screen":"1x1"}`))
	f.Add([]byte(`{"text":"a","limit":1e400,"port":-1,"ratio":"NaN","data":"="}`))
	f.Add([]byte(`{"action_type":"MOVE"}`))
	f.Add([]byte("{\"text\":\"\xff\"}"))
	o := New(Spec{Name: "x", Route: "POST /x/{id}", Tag: "x", Doc: "X."},
		func(_ context.Context, in everything) (everything, error) { return in, nil })
	u := New(Spec{Name: "act", Route: "POST /act", Tag: "x", Doc: "Act."},
		func(_ context.Context, in action) (None, error) { return None{}, nil })
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := o.Bind(input(string(body), map[string][]string{"path.id": {"1"}}))
		if err == nil {
			e := in.(*everything)
			if e.Limit > 300 || e.Ratio <= 0 || e.Ratio >= 1 || len(e.List) > 3 {
				t.Fatalf("got %+v, want values within the limits", e)
			}
			if _, err := o.Call(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		} else if len(err.(Faults)) == 0 {
			t.Fatal("got an error without faults, want at least one")
		}
		_, _ = u.Bind(Input{JSON: body})
		_, _ = u.Bind(Input{JSON: body, Flat: true})
	})
}
