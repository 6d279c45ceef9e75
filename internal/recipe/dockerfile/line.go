package dockerfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxText is the maximum size of a file.
const maxText = 1 << 20

// instruction is one instruction with its arguments.
type instruction struct {
	line     int
	name     string // in upper case
	rest     string // after the name, without heredocs
	heredocs []heredoc
}

// heredoc is the text between <<NAME and NAME.
type heredoc struct {
	name    string
	text    string
	literal bool // the name is quoted: variables stay
}

// lineError is an error with a line of the file.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }

func errorAt(line int, format string, args ...any) error {
	return &lineError{line, fmt.Errorf(format, args...)}
}

// reader splits a file into instructions.
type reader struct {
	lines  []string
	next   int
	escape byte
}

var (
	directive = regexp.MustCompile(`^#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*$`)
	// ourSyntax is the syntax that this package reads.
	ourSyntax = regexp.MustCompile(`^(docker\.io/)?docker/dockerfile(:(1(\.[0-9]+)*(-labs)?|latest|labs))?(@sha256:[0-9a-f]{64})?$`)
)

// readInstructions returns the instructions of a file and its escape character.
func readInstructions(text []byte) ([]instruction, byte, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	switch {
	case len(text) > maxText:
		return nil, 0, errorAt(1, "the file is larger than %d bytes", maxText)
	case !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0:
		return nil, 0, errorAt(1, "the file is not UTF-8 text")
	}
	r := &reader{lines: strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n"), escape: '\\'}
	if err := r.directives(); err != nil {
		return nil, 0, err
	}
	var list []instruction
	for {
		in, ok, err := r.instruction()
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			return list, r.escape, nil
		}
		list = append(list, in)
	}
}

// directives reads the comments before everything else that configure the parser.
func (r *reader) directives() error {
	seen := map[string]bool{}
	for ; r.next < len(r.lines); r.next++ {
		m := directive.FindStringSubmatch(strings.TrimSpace(r.lines[r.next]))
		if m == nil {
			return nil
		}
		name, line := strings.ToLower(m[1]), r.next+1
		switch name {
		case "escape":
			if m[2] != "\\" && m[2] != "`" {
				return errorAt(line, "escape %.20q: use \\ or `", m[2])
			}
			r.escape = m[2][0]
		case "syntax":
			if !ourSyntax.MatchString(m[2]) {
				return errorAt(line, "syntax %.100q is unsupported: use docker/dockerfile:1, or remove the line", m[2])
			}
		case "check":
		default:
			return nil // an ordinary comment
		}
		if seen[name] {
			return errorAt(line, "the directive %s is given twice", name)
		}
		seen[name] = true
	}
	return nil
}

func isComment(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "#") }

// continued returns a line without its escape character at the end, and whether it had one.
func (r *reader) continued(line string) (string, bool) {
	trimmed := strings.TrimRight(line, " \t")
	n := len(trimmed)
	if n == 0 || trimmed[n-1] != r.escape || n > 1 && trimmed[n-2] == r.escape {
		return line, false
	}
	return trimmed[:n-1], true
}

// instruction reads the next instruction.
func (r *reader) instruction() (in instruction, ok bool, err error) {
	for r.next < len(r.lines) && (strings.TrimSpace(r.lines[r.next]) == "" || isComment(r.lines[r.next])) {
		r.next++
	}
	if r.next >= len(r.lines) {
		return in, false, nil
	}
	in.line = r.next + 1
	var b strings.Builder
	more := true
	for more && r.next < len(r.lines) {
		line := r.lines[r.next]
		r.next++
		if b.Len() > 0 && (isComment(line) || strings.TrimSpace(line) == "") {
			continue // in the middle of an instruction
		}
		if b.Len() == 0 {
			line = strings.TrimLeft(line, " \t")
		}
		line, more = r.continued(line)
		b.WriteString(line)
	}
	text := strings.TrimSpace(b.String())
	name := text
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		name, in.rest = text[:i], strings.TrimSpace(text[i:])
	}
	in.name = strings.ToUpper(name)
	switch in.name {
	case "RUN", "COPY", "ADD":
		err = r.readHeredocs(&in)
	}
	return in, true, err
}

var heredocWord = regexp.MustCompile(`^[0-9]*<<(-?)([^<]+)$`)

// readHeredocs reads the texts that the words of an instruction begin.
func (r *reader) readHeredocs(in *instruction) error {
	words, err := splitWords(in.rest, r.escape)
	if err != nil {
		return nil //nolint:nilerr // a RUN may have other quotes; the shell decides
	}
	for _, w := range words {
		m := heredocWord.FindStringSubmatch(w)
		if m == nil {
			continue
		}
		h := heredoc{name: strings.Trim(m[2], `"'`)}
		h.literal = h.name != m[2]
		var text strings.Builder
		found := false
		for r.next < len(r.lines) && !found {
			line := r.lines[r.next]
			r.next++
			if m[1] == "-" {
				line = strings.TrimLeft(line, "\t")
			}
			if found = line == h.name; !found {
				text.WriteString(line + "\n")
			}
		}
		if !found {
			return errorAt(in.line, "the text of <<%.60s has no end: add a line with only %[1]s", h.name)
		}
		h.text = text.String()
		in.heredocs = append(in.heredocs, h)
	}
	return nil
}

// splitWords splits text at spaces outside of quotes. Quotes and escape characters stay.
func splitWords(text string, escape byte) (words []string, err error) {
	var b strings.Builder
	var quote byte
	in := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == 0 && (c == ' ' || c == '\t'):
			if in {
				words = append(words, b.String())
				b.Reset()
			}
			in = false
			continue
		case c == escape && quote != '\'' && i+1 < len(text):
			b.WriteByte(c)
			i++
			c = text[i]
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		}
		in = true
		b.WriteByte(c)
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c has no end", quote)
	}
	if in {
		words = append(words, b.String())
	}
	return words, nil
}

// flag is --name=value.
type flag struct{ name, value string }

// takeFlags separates the flags at the begin of the arguments of an instruction.
func takeFlags(rest string, escape byte) (flags []flag, after string, err error) {
	for strings.HasPrefix(rest, "--") {
		end := 0
		var quote byte
		for ; end < len(rest) && (quote != 0 || rest[end] != ' ' && rest[end] != '\t'); end++ {
			switch c := rest[end]; {
			case c == escape && end+1 < len(rest):
				end++
			case c == quote:
				quote = 0
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			}
		}
		word := rest[:end]
		rest = strings.TrimLeft(rest[end:], " \t")
		if word == "--" {
			break
		}
		if quote != 0 {
			return nil, "", fmt.Errorf("%.60s: a quote has no end", word)
		}
		name, value, _ := strings.Cut(word[2:], "=")
		flags = append(flags, flag{name, value})
	}
	return flags, rest, nil
}

// jsonList returns the list of an exec form.
func jsonList(text string) ([]string, bool) {
	if !strings.HasPrefix(text, "[") {
		return nil, false
	}
	var list []string
	if err := json.Unmarshal([]byte(text), &list); err != nil || list == nil {
		return nil, false
	}
	return list, true
}
