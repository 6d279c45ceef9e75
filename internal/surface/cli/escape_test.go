package cli

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"größe 日本 🙂\n\tx":                  "größe 日本 🙂\n\tx",
		"\x1b]0;title\x07":                 `\u001b]0;title\u0007`,
		"\u009b31m\x7f":                    `\u009b31m\u007f`,
		"a\rb\r\nc\r":                      `a\u000db` + "\r\n" + `c\u000d`,
		"safe\u202egpj.exe\u2066":          `safe\u202egpj.exe\u2066`,
		"z\u200bw\ufeff\u2028\u2029\u00ad": `z\u200bw\ufeff\u2028\u2029\u00ad`,
		"tag\U000e0041":                    `tag\udb40\udc41`,
		"\x9b31m\xc3":                      `\ufffd31m\ufffd`,
		"\ufffd":                           "\ufffd",
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q): got %q, want %q", in, got, want)
		}
	}
	if got, want := Line("a\tb\r\nc\nd\x1b"), `a\tb⏎c⏎d\u001b`; got != want {
		t.Errorf("Line: got %q, want %q", got, want)
	}
}

// The writer escapes a text correctly if it arrives in pieces.
func TestWriterEscapesPieces(t *testing.T) {
	const text = "ä\u009b\U000e0041\x1b[0m\r\nx\ry\xc3\x28\u202e\xe2\x80"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := Writer(&out)
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := out.String(), Escape(text); got != want {
			t.Errorf("pieces of %d: got %q, want %q", size, got, want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, seed := range []string{"\x1b[2J", `{"a":"` + "\u009b\u202e\U000e0041" + `"}`, "\xff\xc3", "\r\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := Escape(in)
		bad := strings.IndexFunc(strings.ReplaceAll(got, "\r\n", ""), func(r rune) bool { return r != utf8.RuneError && unsafeRune(r) })
		if bad >= 0 || !utf8.ValidString(got) || Escape(got) != got {
			t.Errorf("%q: got %q, want text that is safe to print", in, got)
		}
		var before, after any
		if json.Unmarshal([]byte(in), &before) == nil && !strings.Contains(in, "\r") {
			if err := json.Unmarshal([]byte(got), &after); err != nil || !reflect.DeepEqual(before, after) {
				t.Errorf("%q: got %q, %v, want the same JSON", in, got, err)
			}
		}
	})
}

// Bytes on a terminal are escaped, unless the verb prints raw output. A pipe gets unmodified bytes.
func TestBytesForAPerson(t *testing.T) {
	const body = "\x1b]0;x\x07\u009b"
	for _, c := range []struct {
		person, raw bool
		want        string
	}{{true, false, `\u001b]0;x\u0007\u009b`}, {true, true, body}, {false, false, body}} {
		var out bytes.Buffer
		r := &run{Config: Config{Stdout: &out, Person: func() bool { return c.person }}, file: "-", preset: Preset{Raw: c.raw}}
		if err := r.writeBytes(strings.NewReader(body)); err != nil || out.String() != c.want {
			t.Errorf("person %v, raw %v: got %q, %v, want %q", c.person, c.raw, out.String(), err, c.want)
		}
	}
}
