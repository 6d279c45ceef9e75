package shell

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// found records the parts that a scanner finds. Hooks with the key "good" are genuine.
type found struct {
	all strings.Builder
	raw bytes.Buffer // all but the hooks
}

func (f *found) text(b []byte) {
	f.raw.Write(b)
	f.all.Write(b)
}

func (f *found) query(b []byte) {
	f.raw.Write(b)
	fmt.Fprintf(&f.all, "<ask %q>", b[1:])
}

func (f *found) handleHook(body []byte) bool {
	_, rest, _ := strings.Cut(string(body), ";")
	if key, _, _ := strings.Cut(rest, ";"); key != "good" {
		return false
	}
	fmt.Fprintf(&f.all, "<%s>", body)
	return true
}

func scan(pieces ...[]byte) *found {
	var s scanner
	f := &found{}
	for _, p := range pieces {
		s.feed(p, f)
	}
	s.flush(f)
	return f
}

func bytewise(b []byte) (pieces [][]byte) {
	for i := range b {
		pieces = append(pieces, b[i:i+1])
	}
	return pieces
}

func TestScan(t *testing.T) {
	t.Parallel()
	const hook = "\x1b]5379;E;good;0\a"
	long := strings.Repeat("x", maxString+10)
	for name, c := range map[string]struct{ in, want string }{
		"text":                       {"héllo\r\n", "héllo\r\n"},
		"hook":                       {"a" + hook + "b", "a<E;good;0>b"},
		"hooks":                      {hook + hook, "<E;good;0><E;good;0>"},
		"forged":                     {"a\x1b]5379;E;bad;0\ab", "a\x1b]5379;E;bad;0\ab"},
		"no key":                     {"\x1b]5379;E\a\x1b]5379;\a", "\x1b]5379;E\a\x1b]5379;\a"},
		"other number":               {"\x1b]53790;E;good\a", "\x1b]53790;E;good\a"},
		"hook must end with a bell":  {"\x1b]5379;E;good;0\x1b\\", "\x1b]5379;E;good;0\x1b\\"},
		"after an escape":            {"\x1b" + hook, "\x1b<E;good;0>"},
		"after half a sequence":      {"\x1b[12" + hook + "m", "\x1b[12<E;good;0>m"},
		"after half a string":        {"\x1b]0;tit" + hook, "\x1b]0;tit<E;good;0>"},
		"after half a device string": {"\x1bP1;2" + hook, "\x1bP1;2<E;good;0>"},
		"after half a hook":          {"\x1b]5379;E;good" + hook, "\x1b]5379;E;good<E;good;0>"},
		"after half a character":     {"\xe4\xb8" + hook, "\xe4\xb8<E;good;0>"},
		"within a string":            {"\x1b]0;a" + hook + "b\a", "\x1b]0;a<E;good;0>b\a"},
		"canceled":                   {"\x1b]5379;E;good\x18;0\a", "\x1b]5379;E;good\x18;0\a"},
		"colors":                     {"\x1b[1;31mred\x1b[m", "\x1b[1;31mred\x1b[m"},
		"title":                      {"\x1b]0;title\a", "\x1b]0;title\a"},
		"too long":                   {"\x1b]0;" + long + "\a", "\x1b]0;" + long + "\a"},
		"sequence too long":          {"\x1b[" + long + "m", "\x1b[" + long + "m"},
		"cut off":                    {"a\x1b]5379;E;go", "a\x1b]5379;E;go"},
		"cut off escape":             {"a\x1b]0;x\x1b", "a\x1b]0;x\x1b"},
		"cursor position":            {"\x1b[6n\x1b[?6n", `<ask "[6n"><ask "[?6n">`},
		"attributes":                 {"\x1b[c\x1b[0c\x1b[>c", `<ask "[c"><ask "[0c"><ask "[>c">`},
		"modes":                      {"\x1b[?2026$p\x1b[!p", `<ask "[?2026$p">` + "\x1b[!p"},
		"size and titles":            {"\x1b[18t\x1b[22;0t\x1b[22t", `<ask "[18t">` + "\x1b[22;0t\x1b[22t"},
		"color query":                {"\x1b]11;?\a\x1b]11;?\x1b\\\x1b]11;#fff\a", `<ask "]11;?\a"><ask "]11;?\x1b\\">` + "\x1b]11;#fff\a"},
		"capabilities":               {"\x1bP+q544e\x1b\\\x1bP$qm\x1b\\", `<ask "P+q544e\x1b\\"><ask "P$qm\x1b\\">`},
		"keyboard and version":       {"\x1b[?u\x1b[>q\x1b[u\x1b[2 q", `<ask "[?u"><ask "[>q">` + "\x1b[u\x1b[2 q"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := scan([]byte(c.in)).all.String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := scan(bytewise([]byte(c.in))...).all.String(); got != c.want {
				t.Errorf("byte by byte: got %q, want %q", got, c.want)
			}
		})
	}
}

// FuzzScan: dividing the stream does not change the result, only genuine hooks are removed,
// and all other bytes are emitted.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		"plain", "\x1b]5379;E;good;0\a", "a\x1b]5379;P;good;0;next;/dir\ab", "\x1b]5379;E;bad\a", "\x1b[6n\x1b[1m",
		"\x1b]0;x\x1b\\", "\x1bP$qm\x1b\x1b]\x18",
		"\x1b\x1b]5379;\x1b]5379;L;good\a", "\x1b]11;?\a", "\xe4\xb8\x1b[",
	} {
		f.Add([]byte(seed), 1)
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		once := scan(in)
		cut = min(max(cut, 0), len(in))
		for name, other := range map[string]*found{"cut": scan(in[:cut], in[cut:]), "bytewise": scan(bytewise(in)...)} {
			if other.all.String() != once.all.String() {
				t.Fatalf("%s: got %q, want %q", name, other.all.String(), once.all.String())
			}
		}
		hooks := len(in) - once.raw.Len()
		if genuine := strings.Count(string(in), ";good"); hooks < 0 || genuine == 0 && hooks > 0 {
			t.Fatalf("got %d bytes removed from %q, want none without a genuine hook", hooks, in)
		}
		if hooks == 0 && !bytes.Equal(once.raw.Bytes(), in) {
			t.Fatalf("got %q, want the input %q unchanged", once.raw.Bytes(), in)
		}
	})
}

func TestRing(t *testing.T) {
	t.Parallel()
	var r ring
	var all []byte
	for i := 0; len(all) < 3*ringSize; i++ {
		line := []byte(fmt.Sprintf("line %d: %s\n", i, strings.Repeat("ä", i%3000)))
		r.write(line)
		all = append(all, line...)
		if r.end != int64(len(all)) || r.end-r.start > ringSize {
			t.Fatalf("got [%d, %d) of %d bytes, want at most the last %d", r.start, r.end, len(all), ringSize)
		}
		if i%37 == 0 {
			if got := r.read(nil, r.start, ringSize); !bytes.Equal(got, all[r.start:]) {
				t.Fatalf("got other bytes than the last %d of %d", r.end-r.start, len(all))
			}
			if at := r.entry(); at != 0 && all[at-1] != '\n' {
				t.Fatalf("got an entry at %d, want the start of a line", at)
			}
		}
	}
	r.write(all)
	if got := r.read(nil, r.start, 1<<30); !bytes.Equal(got, all[len(all)-ringSize:]) {
		t.Errorf("got other bytes than the last %d of one large write", ringSize)
	}
	var long ring
	long.write([]byte(strings.Repeat("世", ringSize/2)))
	if at := long.entry(); at%3 != 0 {
		t.Errorf("got entry %d inside a character, want a multiple of 3", at)
	}
	for in, want := range map[string]int{"": 0, "a": 1, "ä": 2, "a\xc3": 1, "a\xe4\xb8": 1, "\xf0\x9f\x98": 0,
		"a\xff": 2, "\x80\x80\x80\x80\x80": 5} {
		if got := completePrefix([]byte(in)); got != want {
			t.Errorf("completePrefix(%q): got %d, want %d", in, got, want)
		}
	}
}
