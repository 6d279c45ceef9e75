package kernel

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func out(text string) Output { return Output{Type: Stream, Name: "stdout", Text: text} }

func show(id, text string) Output {
	return Output{Type: DisplayData, DisplayID: id, Data: map[string]any{"text/plain": text}}
}

func update(id, text string) Output {
	o := show(id, text)
	o.Type = UpdateDisplay
	return o
}

func TestFold(t *testing.T) {
	t.Parallel()
	errs := Output{Type: Stream, Name: "stderr", Text: "e"}
	clear, clearWait := Output{Type: ClearOutput}, Output{Type: ClearOutput, Wait: true}
	for name, c := range map[string]struct{ in, want []Output }{
		"nothing":             {nil, nil},
		"adjacent streams":    {[]Output{out("a"), out("b"), errs, out("c")}, []Output{out("ab"), errs, out("c")}},
		"stream, show":        {[]Output{out("a"), show("", "x"), out("b")}, []Output{out("a"), show("", "x"), out("b")}},
		"clear":               {[]Output{out("a"), clear, out("b")}, []Output{out("b")}},
		"clear at the end":    {[]Output{out("a"), clear}, nil},
		"clear waits":         {[]Output{out("a"), clearWait}, []Output{out("a")}},
		"clear waited":        {[]Output{out("a"), clearWait, out("b"), out("c")}, []Output{out("bc")}},
		"clear waited, shown": {[]Output{show("", "a"), clearWait, show("", "b")}, []Output{show("", "b")}},
		"update":              {[]Output{show("1", "a"), show("2", "b"), update("1", "c")}, []Output{show("1", "c"), show("2", "b")}},
		"update both":         {[]Output{show("1", "a"), show("1", "b")}, []Output{show("1", "b"), show("1", "b")}},
		"update elsewhere":    {[]Output{update("9", "a"), update("9", "b")}, []Output{show("9", "b")}},
		"update after clear":  {[]Output{show("1", "a"), clear, update("1", "b")}, []Output{show("1", "b")}},
		"dropped": {[]Output{out("a"), {Type: Dropped, Bytes: 5 << 20}, out("b")},
			[]Output{out("a\n[… 5.0 MB of output omitted …]\nb")}},
		"progress bar":           {[]Output{out("10%\r"), out("50%\r"), out("100%\ndone\r\n")}, []Output{out("100%\ndone\r\n")}},
		"progress bar continues": {[]Output{out("x\n1\r"), out("2\r")}, []Output{out("x\n2\r")}},
		"backspace":              {[]Output{out("ab\b\bc\b\b\bä\bd")}, []Output{out("d")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, Fold(c.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOutputIsNbformat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   Output
		want string
	}{
		{out("a"), `{"output_type":"stream","name":"stdout","text":"a"}`},
		{Output{Type: Error, EName: "E"}, `{"output_type":"error","ename":"E","evalue":"","traceback":[]}`},
		{show("1", "a"), `{"output_type":"display_data","data":{"text/plain":"a"},"metadata":{}}`},
		{Output{Type: ExecuteResult}, `{"output_type":"execute_result","data":{},"metadata":{},"execution_count":0}`},
		{update("1", "a"), `{"output_type":"update_display_data","data":{"text/plain":"a"},"metadata":{},"transient":{"display_id":"1"}}`},
		{Output{Type: ClearOutput, Wait: true}, `{"output_type":"clear_output","wait":true}`},
		{Output{Type: Dropped, Bytes: 7}, `{"output_type":"dropped","bytes":7}`},
	} {
		got, err := json.Marshal(c.in)
		if err != nil || string(got) != c.want {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
	}
}

func TestDecodeOutput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, content string
		want          string // JSON; empty: no output
	}{
		"stream":       {Stream, `{"name":"stderr","text":"a\nb"}`, `{"output_type":"stream","name":"stderr","text":"a\nb"}`},
		"empty stream": {Stream, `{"name":"stderr","text":""}`, ""},
		"large number": {ExecuteResult,
			`{"execution_count":3,"data":{"application/json":{"id":12345678901234567890}}}`,
			`{"output_type":"execute_result","data":{"application/json":{"id":12345678901234567890}},"metadata":{},"execution_count":3}`},
		"colored": {Error, `{"ename":"E","evalue":"\u001b[31mv\u001b[0m",` +
			`"traceback":["\u001b[0;31mE\u001b[0m: v","\u001b]8;;http://x\u0007link\u001b]8;;\u001b\\"]}`,
			`{"output_type":"error","ename":"E","evalue":"v","traceback":["E: v","link"]}`},
		"comm":          {"comm_open", `{"data":{"text/plain":"x"}}`, ""},
		"no data":       {DisplayData, `{"metadata":{}}`, ""},
		"not JSON":      {DisplayData, `{"data":`, ""},
		"other types":   {Stream, `{"name":1,"text":[]}`, ""},
		"not an object": {Error, `"x"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, ok := decodeOutput(&message{head: head{Type: c.kind}, content: []byte(c.content)})
			if ok != (c.want != "") {
				t.Fatalf("got %+v, %v, want ok %v", o, ok, c.want != "")
			}
			if b, _ := json.Marshal(o); ok && string(b) != c.want {
				t.Errorf("got %s, want %s", b, c.want)
			}
		})
	}
}

func TestSinkKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	s := newSink(2000)
	var all, got strings.Builder
	for i := range 10_000 {
		text := fmt.Sprintf("line %d €\n", i)
		all.WriteString(text)
		s.add(out(text), int64(len(text)))
	}
	first := s.take()
	rest, dropped := s.finish()
	marks := 0
	for _, o := range append(first, rest...) {
		if o.Type == Dropped {
			marks++
			if o.Bytes != dropped {
				t.Errorf("got a mark of %d bytes, want %d", o.Bytes, dropped)
			}
		}
		got.WriteString(o.Text)
	}
	if int64(got.Len())+dropped != int64(all.Len()) || marks != 1 {
		t.Errorf("got %d bytes kept and %d dropped of %d, %d marks, want all bytes and 1 mark", got.Len(), dropped, all.Len(), marks)
	}
	if got.Len() > 2000 || !strings.HasPrefix(got.String(), "line 0 €\n") || !strings.HasSuffix(got.String(), "line 9999 €\n") {
		t.Errorf(`got %q, want at most 2000 bytes from "line 0 €\n" to "line 9999 €\n"`, got.String())
	}
}

func TestSinkCutsLongText(t *testing.T) {
	t.Parallel()
	s := newSink(1000)
	text := strings.Repeat("€", 10_000)
	s.add(out(text), int64(len(text)))
	s.add(out("end"), 3)
	rest, dropped := s.finish()
	joined := ""
	for _, o := range rest {
		joined += strings.TrimSuffix(o.Text, "end")
	}
	if strings.Trim(joined, "€") != "" || int64(len(joined))+dropped != int64(len(text)) || rest[len(rest)-1].Text != "end" {
		t.Errorf(`got %q, dropped %d, want only "€", %d bytes together and "end" as the last text`, joined, dropped, len(text))
	}
}

func TestSinkReplacesLargeOutputs(t *testing.T) {
	t.Parallel()
	s := newSink(1000)
	s.add(show("1", "small"), 20)
	s.add(Output{Type: DisplayData, Data: map[string]any{"image/png": strings.Repeat("x", 5000)}}, 5000)
	s.add(show("", "after"), 20)
	rest, dropped := s.finish()
	want := []Output{
		show("1", "small"), {Type: Dropped, Bytes: dropped},
		{Type: DisplayData, Data: map[string]any{"text/plain": "[output of 4.9 KB omitted: too large]"}, Metadata: map[string]any{}},
		show("", "after"),
	}
	if diff := cmp.Diff(want, rest); diff != "" || dropped < 5000 {
		t.Errorf("got %d dropped bytes, want at least 5000\n%s", dropped, diff)
	}
}

func TestSinkRemembersDroppedClears(t *testing.T) {
	t.Parallel()
	s := newSink(2000)
	for i := range 1000 {
		s.add(Output{Type: ClearOutput, Wait: true}, 10)
		s.add(out(fmt.Sprintf("step %d\n", i)), 10)
	}
	rest, _ := s.finish()
	if diff := cmp.Diff([]Output{out("step 999\n")}, Fold(rest)); diff != "" {
		t.Error(diff)
	}
	// The tail may have dropped the clear, but the output before it must still be cleared.
	s = newSink(1000)
	s.add(out("head"), 4)
	s.add(out(strings.Repeat("x", 600)), 600)
	s.add(Output{Type: ClearOutput}, 10)
	s.add(out(strings.Repeat("y", 700)), 700)
	rest, _ = s.finish()
	if shown := Fold(rest); len(shown) != 1 || strings.ContainsAny(shown[0].Text, "xh") {
		t.Errorf(`got %+v, want 1 output without "x" and "h"`, shown)
	}
}
