package arch

import (
	"fmt"
	"go/ast"
	"hash/maphash"
	"strings"
)

// place is where a run of lines begins.
type place struct {
	file *file
	at   int // index into its code
}

// code is a line of a file with its number. Blank lines, comments and imports are
// no code.
type code struct {
	text string
	line int
}

// checkRepetition finds runs of equal lines in two files that are no tests.
func (r Rules) checkRepetition(files []file) []Fault {
	seed := maphash.MakeSeed()
	seen := map[uint64]place{}
	codes := map[*file][]code{}
	var faults []Fault
	for i := range files {
		f := &files[i]
		if f.test || isTooling(f.pkg) {
			continue
		}
		codes[f] = codeOf(f)
		until := 0 // what was reported already
		for at := 0; at+r.MaxEqual <= len(codes[f]); at++ {
			window := codes[f][at : at+r.MaxEqual]
			var h maphash.Hash
			h.SetSeed(seed)
			for _, c := range window {
				h.WriteString(c.text)
				h.WriteByte('\n')
			}
			other, ok := seen[h.Sum64()]
			switch {
			case !ok:
				seen[h.Sum64()] = place{f, at}
			case other.file != f && at >= until && equal(window, codes[other.file][other.at:]):
				until = at + r.MaxEqual
				first := codes[other.file][other.at]
				text := fmt.Sprintf("the next %d lines equal those at %s:%d: write them once", r.MaxEqual, other.file.name, first.line)
				faults = append(faults, Fault{"repetition", f.name, window[0].line, text})
			}
		}
	}
	return faults
}

func equal(window, other []code) bool {
	for i := range window {
		if window[i].text != other[i].text {
			return false
		}
	}
	return true
}

func codeOf(f *file) []code {
	skip := map[int]bool{}
	mark := func(n ast.Node) {
		for l := f.set.Position(n.Pos()).Line; l <= f.set.Position(n.End()).Line; l++ {
			skip[l] = true
		}
	}
	for _, d := range f.ast.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok.String() == "import" {
			mark(g)
		}
	}
	var out []code
	for i, text := range strings.Split(f.text, "\n") {
		text = strings.TrimSpace(text)
		if text == "" || skip[i+1] || strings.HasPrefix(text, "//") {
			continue
		}
		out = append(out, code{text, i + 1})
	}
	return out
}
