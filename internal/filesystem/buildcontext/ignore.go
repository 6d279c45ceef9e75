package buildcontext

import (
	"bufio"
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Patterns select paths with the rules of .dockerignore: the last pattern that matches a path or one of its parents decides.
type Patterns struct {
	list    []pattern
	negated bool // one begins with !
}

type pattern struct {
	re      *regexp.Regexp
	negated bool
}

// The limits of a file of patterns.
const (
	maxPatterns = 10_000
	maxIgnore   = 1 << 20
)

// ParsePatterns reads the content of a .dockerignore.
func ParsePatterns(text []byte) (*Patterns, error) {
	if len(text) > maxIgnore {
		return nil, fmt.Errorf("larger than %d bytes", maxIgnore)
	}
	var lines []string
	scan := bufio.NewScanner(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
	scan.Buffer(nil, maxIgnore+1)
	for scan.Scan() {
		if line := scan.Text(); !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return NewPatterns(lines)
}

// NewPatterns returns patterns; empty ones have no effect.
func NewPatterns(lines []string) (*Patterns, error) {
	if len(lines) > maxPatterns {
		return nil, fmt.Errorf("more than %d patterns", maxPatterns)
	}
	p := &Patterns{}
	for _, line := range lines {
		text := strings.TrimSpace(line)
		name, negated := strings.CutPrefix(text, "!")
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		name = strings.TrimPrefix(path.Clean("/"+strings.ReplaceAll(name, "\\\\", "\\")), "/")
		if name == "" {
			continue // the context itself
		}
		re, err := compile(name)
		if err != nil {
			return nil, fmt.Errorf("pattern %.100q: %w", text, err)
		}
		p.list = append(p.list, pattern{re, negated})
		p.negated = p.negated || negated
	}
	return p, nil
}

// compile converts a pattern to a regular expression that also matches what is below.
func compile(text string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString("^")
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case strings.HasPrefix(text[i:], "**/"):
			b.WriteString("(.*/)?")
			i += 2
		case strings.HasPrefix(text[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '[':
			end := strings.IndexByte(text[i+1:], ']')
			if end <= 0 {
				return nil, fmt.Errorf("[ has no ]")
			}
			class := strings.ReplaceAll(text[i+1:i+1+end], "[", `\[`)
			b.WriteString("[" + class + "]")
			i += end + 1
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteString(regexp.QuoteMeta(text[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(text[i : i+1]))
		}
	}
	b.WriteString("(/.*)?$")
	// Names are bytes, which need not be UTF-8.
	return regexp.Compile("(?s)" + b.String())
}

// Match reports whether a path is selected.
func (p *Patterns) Match(name string) bool {
	selected := false
	for _, one := range p.list {
		if selected == one.negated && one.re.MatchString(name) {
			selected = !one.negated
		}
	}
	return selected
}

// skips reports whether nothing below a folder can be unselected.
func (p *Patterns) skips(dir string) bool { return !p.negated && p.Match(dir) }
