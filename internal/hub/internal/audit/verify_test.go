package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// folder is a log in memory that tests modify.
type folder struct {
	names []string
	lines [][]string // of each file, with newlines
	first []int      // sequence number of each file's first line
	head  []byte
}

func load(t *testing.T, dir string) folder {
	t.Helper()
	files, err := listFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	var d folder
	for _, first := range files {
		b, err := os.ReadFile(filepath.Join(dir, fileName(first)))
		if err != nil {
			t.Fatal(err)
		}
		d.names = append(d.names, fileName(first))
		d.lines = append(d.lines, slices.Collect(strings.Lines(string(b))))
		d.first = append(d.first, int(first))
	}
	if d.head, err = os.ReadFile(filepath.Join(dir, headName)); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d folder) clone() folder {
	d.names, d.first, d.head = slices.Clone(d.names), slices.Clone(d.first), slices.Clone(d.head)
	d.lines = slices.Clone(d.lines)
	for i := range d.lines {
		d.lines[i] = slices.Clone(d.lines[i])
	}
	return d
}

func (d folder) store(t *testing.T, dir string) {
	t.Helper()
	for i, name := range d.names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(d.lines[i], "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d.head != nil {
		if err := os.WriteFile(filepath.Join(dir, headName), d.head, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// want is the problem that Verify must report; an empty file or a zero line matches any.
type want struct {
	Place
	why []Why
}

var edits = map[string]func(r *rand.Rand, d *folder) want{
	"change a byte": func(r *rand.Rand, d *folder) want {
		f := r.IntN(len(d.lines))
		n := r.IntN(len(d.lines[f]))
		b := []byte(d.lines[f][n])
		b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
		d.lines[f][n] = string(b)
		// If the last line of a file has no newline, it was truncated.
		return want{Place{d.names[f], n + 1, uint64(d.first[f] + n)}, []Why{Changed, Truncated}}
	},
	"remove a line": func(r *rand.Rand, d *folder) want {
		f := r.IntN(len(d.lines))
		n := r.IntN(len(d.lines[f]))
		last := n == len(d.lines[f])-1
		d.lines[f] = slices.Delete(d.lines[f], n, n+1)
		w := want{Place{d.names[f], n + 1, uint64(d.first[f] + n)}, []Why{Missing}}
		switch {
		case last && f == len(d.lines)-1:
			w.why = []Why{Truncated}
		case last: // the gap shows where the next file begins
			w.File, w.Line = d.names[f+1], 1
		}
		return w
	},
	"swap two lines": func(r *rand.Rand, d *folder) want {
		f := r.IntN(len(d.lines))
		n := r.IntN(len(d.lines[f]) - 1)
		m := n + 1 + r.IntN(len(d.lines[f])-n-1)
		d.lines[f][n], d.lines[f][m] = d.lines[f][m], d.lines[f][n]
		return want{Place{d.names[f], n + 1, uint64(d.first[f] + n)}, []Why{Reordered}}
	},
	"duplicate a line": func(r *rand.Rand, d *folder) want {
		f := r.IntN(len(d.lines))
		n := r.IntN(len(d.lines[f]))
		at := n + 1 + r.IntN(len(d.lines[f])-n)
		d.lines[f] = slices.Insert(d.lines[f], at, d.lines[f][n])
		return want{Place{d.names[f], at + 1, uint64(d.first[f] + at)}, []Why{Duplicated}}
	},
	"cut the end": func(r *rand.Rand, d *folder) want {
		f := len(d.lines) - 1
		n := r.IntN(len(d.lines[f]))
		d.lines[f] = d.lines[f][:n+1]
		d.lines[f][n] = d.lines[f][n][:r.IntN(len(d.lines[f][n]))]
		return want{Place{d.names[f], n + 1, uint64(d.first[f] + n)}, []Why{Truncated}}
	},
	"remove a file": func(r *rand.Rand, d *folder) want {
		f := r.IntN(len(d.lines))
		w := want{Place{Seq: uint64(d.first[f])}, []Why{Missing}}
		if f == len(d.lines)-1 {
			w.why = []Why{Truncated}
		}
		d.names, d.lines = slices.Delete(d.names, f, f+1), slices.Delete(d.lines, f, f+1)
		return w
	},
	"change the head": func(r *rand.Rand, d *folder) want {
		d.head[r.IntN(len(d.head))] ^= byte(1 + r.IntN(255))
		return want{Place{File: headName}, []Why{Changed}}
	},
	"cut the head": func(r *rand.Rand, d *folder) want {
		d.head = d.head[:r.IntN(len(d.head))]
		return want{Place{File: headName}, []Why{Changed}}
	},
	"remove the head": func(r *rand.Rand, d *folder) want { d.head = nil; return want{Place{File: headName}, []Why{Missing}} },
}

func TestEveryEditIsFound(t *testing.T) {
	t.Parallel()
	for _, keyed := range []bool{false, true} {
		cfg := Config{Dir: t.TempDir(), MaxBytes: 3000, Keep: 4}
		if keyed {
			cfg.Key = []byte("key")
		}
		l := open(t, cfg)
		for i := range 100 {
			add(t, l, Entry{Tenant: fmt.Sprint(i % 3), Op: "x", Sandbox: fmt.Sprint("sb-", i), Status: 200})
		}
		shut(t, l)
		sound(t, Check{Dir: cfg.Dir, Key: cfg.Key})
		whole := load(t, cfg.Dir)
		for name, change := range edits {
			t.Run(fmt.Sprintf("%s/keyed=%v", name, keyed), func(t *testing.T) {
				for seed := range uint64(30) {
					d, dir := whole.clone(), t.TempDir()
					w := change(rand.New(rand.NewPCG(seed, 7)), &d)
					d.store(t, dir)
					check(t, seed, verify(t, Check{Dir: dir, Key: cfg.Key}), w)
				}
			})
		}
	}
}

func check(t *testing.T, seed uint64, r Report, w want) {
	t.Helper()
	p := r.Problem
	switch {
	case p == nil:
		t.Errorf("seed %d: got no problem, want %+v", seed, w)
	case !slices.Contains(w.why, p.Why), w.File != "" && p.File != w.File, w.Line != 0 && p.Line != w.Line, p.Seq != w.Seq:
		t.Errorf("seed %d: got %v, want %+v", seed, p, w)
	}
}

// TestRewrittenChain: without the key the chain cannot be recomputed.
func TestRewrittenChain(t *testing.T) {
	rewrite := func(own, with key) (string, Mark) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir, Key: own})
		for i := range 5 {
			add(t, l, Entry{Op: "x", Status: 200 + i})
		}
		shut(t, l)
		noted := sound(t, Check{Dir: dir, Key: own}).Last
		d, at := load(t, dir), position{Mark: Mark{Hash: genesis}}
		for i, line := range d.lines[0] {
			parsed, err := parse([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			d.lines[0][i] = encode(with, &at, Line{Time: parsed.Time, Entry: Entry{Op: "x", Status: 500}})
		}
		h := head{N: 9, position: at, Gone: Mark{Hash: genesis}, Keyed: len(own) > 0}
		one, err := h.record(with)
		if err != nil {
			t.Fatal(err)
		}
		d.head = bytes.Repeat(one, 2)
		d.store(t, dir)
		return dir, noted
	}
	dir, noted := rewrite(nil, nil)
	sound(t, Check{Dir: dir}) // an unkeyed chain does not detect it
	if r := verify(t, Check{Dir: dir, Known: noted}); r.Problem == nil || r.Problem.Seq != noted.Seq {
		t.Errorf("known line: got %v, want a problem with line %d", r.Problem, noted.Seq)
	}
	for _, with := range []key{nil, key("guess")} {
		dir, _ := rewrite([]byte("key"), with)
		if r := verify(t, Check{Dir: dir, Key: []byte("key")}); r.Problem == nil || r.Problem.Seq != 1 || r.Problem.Why != Changed {
			t.Errorf("rewritten with key %q: got %v, want line 1 changed", with, r.Problem)
		}
	}
}

// TestRehashedLine: a changed line whose own hash was recomputed is found by the next
// line, or by the head.
func TestRehashedLine(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	l := open(t, cfg)
	for range 5 {
		add(t, l, Entry{Op: "x", Status: 200})
	}
	shut(t, l)
	whole := load(t, cfg.Dir)
	for n := range 5 {
		d, dir := whole.clone(), t.TempDir()
		old, err := parse([]byte(d.lines[0][n]))
		if err != nil {
			t.Fatal(err)
		}
		before := position{Mark: Mark{old.Seq - 1, old.Prev}}
		d.lines[0][n] = encode(key(nil), &before, Line{Time: old.Time, Entry: Entry{Op: "x", Status: 500}})
		d.store(t, dir)
		at := min(n+2, 5)
		check(t, uint64(n), verify(t, Check{Dir: dir}), want{Place{fileName(1), at, uint64(at)}, []Why{Changed}})
	}
}

// TestOlderCopy: an older copy verifies unless a later line is known.
func TestOlderCopy(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	l := open(t, cfg)
	add(t, l, Entry{Op: "a"})
	shut(t, l)
	old := load(t, cfg.Dir)
	l = open(t, cfg)
	add(t, l, Entry{Op: "b"})
	shut(t, l)
	noted := sound(t, Check{Dir: cfg.Dir}).Last
	dir := t.TempDir()
	old.store(t, dir)
	sound(t, Check{Dir: dir})
	if r := verify(t, Check{Dir: dir, Known: noted}); r.Problem == nil || r.Problem.Why != Truncated || r.Problem.Seq != 2 {
		t.Errorf("got %v, want line 2 truncated", r.Problem)
	}
}

func TestVerifyNeedsALogAndItsKey(t *testing.T) {
	if _, err := Verify(context.Background(), Check{Dir: t.TempDir()}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no log: got %v, want %v", err, os.ErrNotExist)
	}
	dir := t.TempDir()
	shut(t, open(t, Config{Dir: dir, Key: []byte("key")}))
	sound(t, Check{Dir: dir, Key: []byte("key")})
	if _, err := Verify(context.Background(), Check{Dir: dir}); !errors.Is(err, ErrKey) {
		t.Errorf("no key: got %v, want %v", err, ErrKey)
	}
}
