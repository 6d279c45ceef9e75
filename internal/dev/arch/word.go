package arch

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
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
	{"lest", "so that … not"},
	{"hands out", "issues, or assigns"}, {"handed out", "issued, or assigned"},
	{"gives back", "releases, or returns"}, {"given back", "released, or returned"}, {"give back", "release, or return"},
	{"stays away", "stays absent"}, {"stay away", "stay absent"},
	{"hark", "listen"},
}

// own matches the possessive behind its noun, as in "a process of its own".
var own = Word{`\b(?:an?|no|such) (?:[\w'-]+ ){0,2}[\w'-]+ of (?:its|their) own\b|\bof (?:its|their) own[,.;:)"]`,
	"own before the noun, or separate"}

// textFiles are the endings of files that people read.
var textFiles = []string{".go", ".md", ".js", ".mjs", ".html", ".css", ".py", ".sh", ".yaml", ".yml", ".json", ".txt"}

// checkWords finds phrases of the list in all files that people read.
func checkWords(tree fs.FS, list []Word) ([]Fault, error) {
	if len(list) == 0 {
		return nil, nil
	}
	phrases := make([]string, len(list))
	instead := map[string]string{}
	for i, w := range list {
		phrases[i], instead[w.Phrase] = regexp.QuoteMeta(w.Phrase), w.Instead
	}
	found := regexp.MustCompile(`(?i)\b(?:` + strings.Join(phrases, "|") + `)\b|` + own.Phrase)
	var faults []Fault
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (isSkipped(name) || name == "web/vendor" || name == "web/bundle" || path.Base(name) == "__pycache__"):
			return fs.SkipDir
		case d.IsDir(), !d.Type().IsRegular(), !slices.Contains(textFiles, path.Ext(name)),
			strings.HasPrefix(name, "internal/dev/arch/word"), path.Base(name) == "package-lock.json":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			for _, word := range found.FindAllString(line, -1) {
				text := fmt.Sprintf("%q: write %s", word, cmp.Or(instead[strings.ToLower(word)], own.Instead))
				faults = append(faults, Fault{"words", name, number, text})
			}
		}
		return nil
	})
	return faults, err
}
