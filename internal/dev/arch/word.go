package arch

import (
	"bytes"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Word is a phrase that readers stumble over, and what to write instead.
type Word struct{ Phrase, Instead string }

// words are phrases that the documentation of comparable projects never uses.
var words = []Word{
	{"anew", "again, or a verb with re-"},
	{"mend", "fix"}, {"mends", "fixes"}, {"mended", "fixed"}, {"mending", "fixing"},
	{"all the same", "anyway"},
	{"for ever", "forever, or indefinitely"},
	{"is away", "is unreachable, or is missing"}, {"was away", "was unreachable"}, {"are away", "are unreachable"},
	{"rouse", "wake"}, {"rouses", "wakes"}, {"roused", "woken"}, {"rousing", "waking"},
	{"heed", "follow, or obey"}, {"heeds", "follows"}, {"heeded", "followed"},
	{"scrap", "discard"}, {"scraps", "discards"}, {"scrapped", "discarded"},
	{"nobody's", "a noun: no caller's, unowned"},
	{"by hand of", "by"},
	{"such a one", "the noun"},
	{"whoever", "a noun: clients, callers"}, {"whomever", "a noun: clients, callers"},
	{"is told", "gets, or is informed"}, {"are told", "get, or are informed"},
	{"lest", "so that … not"},
	{"hand out", "issue, or assign"}, {"hands out", "issues, or assigns"}, {"handed out", "issued, or assigned"},
	{"gives back", "releases, or returns"}, {"given back", "released, or returned"}, {"give back", "release, or return"},
	{"stays away", "stays absent"}, {"stay away", "stay absent"},
	{"hark", "listen"}, {"deaf", "ignores, or rejects"},
	{"any more", "no longer, or no … remains"}, {"nobody else", "a noun: no other caller"},
	{"whatever", "any, or regardless of"}, {"wherever", "if, or where"},
}

// pattern is a kind of phrase that a list of phrases cannot name. Each match contains the key.
type pattern struct {
	key     string
	expr    *regexp.Regexp
	instead string
}

var patterns = []pattern{
	// A possessive behind its noun, as in "a process of its own".
	{"own", regexp.MustCompile(`(?i)\b(?:an?|no|such) (?:[\w'-]+ ){0,2}[\w'-]+ of (?:its|their) own\b|` +
		`\bof (?:its|their) own[,.;:)"]`), "own before the noun, or separate"},
	// Programs and hosts are things.
	{"who", regexp.MustCompile(`(?i)\b(?:hub|server|sandbox(?:es)?|program|process(?:es)?|pod|node|client|caller|kernel|engine|` +
		`container|browser|replica|store|registry|registries|provider|cluster|proxy|proxies|machine|host|daemon|command|` +
		`request|connection)s? who\b`), "that"},
	{"who", regexp.MustCompile(`(?i)\b(?:to|for|by|from) who [a-z]+s\b`), "a noun: clients that, callers that"},
	// A sentence such as "Who waits gets an error." Questions may begin so.
	{"who", regexp.MustCompile(`\bWho [a-z]+\b[^?.!"\n]*\.`), "a noun: a client that, a caller that"},
}

// isForeign reports whether a folder has texts of others, or nothing that is kept.
func isForeign(dir string) bool {
	switch base := path.Base(dir); {
	case strings.HasPrefix(base, ".venv"):
		return true
	case slices.Contains([]string{".git", ".tools", "node_modules", "__pycache__"}, base):
		return true
	}
	return slices.Contains([]string{"bin", "dist", "web/vendor", "web/bundle", "test/dev", "test/contract/testdata"}, dir)
}

// isProse reports whether people read a file: all text, except lock files, licenses and the list itself.
func isProse(name string, text []byte) bool {
	switch base := path.Base(name); {
	case strings.HasPrefix(name, "internal/dev/arch/word"), base == "go.sum", base == "package-lock.json", base == "LICENSE":
		return false
	}
	return utf8.Valid(text) && !bytes.ContainsRune(text, 0)
}

// checkWords finds phrases of the list and patterns in all files that people read.
func checkWords(tree fs.FS, list []Word) ([]Fault, error) {
	if len(list) == 0 {
		return nil, nil
	}
	var faults []Fault
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isForeign(name):
			return fs.SkipDir
		case d.IsDir(), !d.Type().IsRegular():
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil || !isProse(name, text) {
			return err
		}
		plain, starts := plainText(string(text))
		lower := strings.ToLower(plain)
		add := func(from, to int, instead string) {
			line, _ := slices.BinarySearch(starts, from+1)
			faults = append(faults, Fault{"words", name, line, fmt.Sprintf("%q: write %s", plain[from:to], instead)})
		}
		for _, w := range list {
			for from := range occurrences(lower, w.Phrase) {
				if to := from + len(w.Phrase); isEdge(lower, from) && isEdge(lower, to) {
					add(from, to, w.Instead)
				}
			}
		}
		for _, p := range patterns {
			end := 0
			for key := range occurrences(lower, p.key) {
				begin := max(end, key-around)
				at := p.expr.FindStringIndex(plain[begin:min(len(plain), key+around)])
				if at != nil && begin+at[0] <= key && key < begin+at[1] {
					end = begin + at[1]
					add(begin+at[0], end, p.instead)
				}
			}
		}
		return nil
	})
	return faults, err
}

// around is how much text a pattern sees on each side of its key.
const around = 120

// occurrences yields where a text contains a phrase.
func occurrences(text, phrase string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], phrase)
			if i < 0 || !yield(from+i) {
				return
			}
			from += i
		}
	}
}

// isEdge reports whether a word begins or ends at an offset.
func isEdge(text string, at int) bool {
	return at == 0 || at == len(text) || !isLetter(text[at-1]) || !isLetter(text[at])
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

var (
	marker    = regexp.MustCompile(`^(?://+|#+|\*+|<!--|--+|;+|>)\s*`)
	camel     = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
	concluded = regexp.MustCompile("[\"'`]\\s*\\+?$")
	opened    = regexp.MustCompile("^\\+?\\s*[\"'`]")
)

// plainText returns the words of a text on one line, so that phrases are found across line
// breaks, and the offset of each line. It leaves out marks of comments and the ends of
// literals that continue on the next line, and separates the words of identifiers. An empty
// line remains a line break.
func plainText(text string) (plain string, starts []int) {
	var out strings.Builder
	continued := false
	for line := range strings.Lines(text) {
		starts = append(starts, out.Len())
		line = marker.ReplaceAllString(strings.TrimSpace(line), "")
		if line == "" {
			out.WriteByte('\n')
			continue
		}
		if continued {
			line = opened.ReplaceAllString(line, "")
		}
		continued = strings.HasSuffix(line, "+") || strings.HasSuffix(line, `"`)
		if continued {
			line = strings.TrimRight(concluded.ReplaceAllString(line, ""), " ")
		}
		out.WriteString(camel.ReplaceAllString(strings.ReplaceAll(line, "_", " "), "$1$3 $2$4"))
		out.WriteByte(' ')
	}
	return out.String(), starts
}
