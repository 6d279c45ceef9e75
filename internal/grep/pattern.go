package grep

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// finder finds the spans of a pattern in a text.
type finder struct {
	re *regexp.Regexp
	// wide is asked where a text has letters beyond ASCII and the pattern has word
	// boundaries, which Go's own engine knows only for ASCII.
	wide *regexp2.Regexp
}

// wideLimit bounds one search of the backtracking engine.
const wideLimit = 2 * time.Second

func newFinder(q Query) (finder, error) {
	expr := q.Pattern
	if q.Fixed {
		expr = regexp.QuoteMeta(expr)
	}
	tr, err := translate(expr)
	if err != nil {
		return finder{}, err
	}
	flags := "(?m)"
	if q.IgnoreCase {
		flags = "(?mi)"
	}
	re, err := regexp.Compile(flags + tr.expr)
	if err != nil {
		return finder{}, &PatternError{"regex parse error: " + strings.TrimPrefix(err.Error(), "error parsing regexp: ")}
	}
	if !q.Multiline && spansLines(tr.expr) {
		return finder{}, &PatternError{"the pattern holds a line break; set multiline to search across lines"}
	}
	f := finder{re: re}
	if tr.boundary {
		opts := regexp2.Multiline
		if q.IgnoreCase {
			opts |= regexp2.IgnoreCase
		}
		if f.wide, err = regexp2.Compile(strings.ReplaceAll(expr, "(?P<", "(?<"), opts); err != nil {
			return finder{}, &PatternError{"regex parse error: " + err.Error()}
		}
		f.wide.MatchTimeout = wideLimit
	}
	return f, nil
}

func (f finder) matches(text []byte) bool {
	if f.wide != nil && !ascii(text) {
		ok, err := f.wide.MatchString(string(text))
		return err == nil && ok
	}
	return f.re.Match(text)
}

func (f finder) spans(text []byte, limit int) []span {
	var found [][]int
	if f.wide != nil && !ascii(text) {
		found, _ = f.wide.FindAllStringIndex(string(text), limit)
	} else {
		found = f.re.FindAllIndex(text, limit)
	}
	spans := make([]span, len(found))
	for i, at := range found {
		spans[i] = span{at[0], at[1]}
	}
	return spans
}

func ascii(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// spansLines tells whether an expression asks for a line break by name.
func spansLines(expr string) bool {
	tree, err := syntax.Parse(expr, syntax.Perl)
	return err == nil && hasBreak(tree)
}

func hasBreak(re *syntax.Regexp) bool {
	if re.Op == syntax.OpLiteral && strings.ContainsRune(string(re.Rune), '\n') {
		return true
	}
	for _, sub := range re.Sub {
		if hasBreak(sub) {
			return true
		}
	}
	return false
}

// The classes of ripgrep's engine are those of Unicode, Go's are those of ASCII.
const (
	digits = `\p{Nd}`
	word   = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}`
	spaces = `\t-\r \x{85}\x{A0}\p{Z}`
)

type translation struct {
	expr     string
	boundary bool // has \b or \B
}

// translate turns an expression of ripgrep's engine into one of Go's. What
// cannot be said there is refused rather than understood otherwise.
func translate(expr string) (translation, error) {
	var out strings.Builder
	tr := translation{}
	inClass := false
	for i := 0; i < len(expr); i++ {
		c := expr[i]
		switch {
		case c == '\\' && i+1 < len(expr):
			i++
			tr.boundary = tr.boundary || !inClass && (expr[i] == 'b' || expr[i] == 'B')
			out.WriteString(class(expr[i], inClass))
		case inClass && c == ']':
			inClass = false
			out.WriteByte(c)
		case inClass && operator(expr[i:]):
			return tr, &PatternError{"sets within [ ] need ripgrep, which is not installed (Debian package ripgrep)"}
		case inClass && strings.HasPrefix(expr[i:], "[:"):
			end := strings.Index(expr[i:], ":]")
			if end < 0 {
				return tr, &PatternError{"regex parse error: a class such as [:alpha:] is not closed"}
			}
			out.WriteString(expr[i : i+end+2])
			i += end + 1
		case !inClass && c == '[':
			inClass = true
			out.WriteByte(c)
			// A bracket right at the start of a class stands for itself.
			for i+1 < len(expr) && (expr[i+1] == '^' && expr[i] == '[' || expr[i+1] == ']') {
				i++
				out.WriteByte(expr[i])
			}
		default:
			out.WriteByte(c)
		}
	}
	tr.expr = out.String()
	return tr, nil
}

func operator(rest string) bool {
	return strings.HasPrefix(rest, "&&") || strings.HasPrefix(rest, "--") || strings.HasPrefix(rest, "~~") ||
		rest[0] == '[' && !strings.HasPrefix(rest, "[:")
}

func class(c byte, inClass bool) string {
	var inner string
	var negated bool
	switch c {
	case 'd', 'D':
		inner, negated = digits, c == 'D'
	case 'w', 'W':
		inner, negated = word, c == 'W'
	case 's', 'S':
		inner, negated = spaces, c == 'S'
	default:
		return `\` + string(c)
	}
	switch {
	case !inClass && negated:
		return "[^" + inner + "]"
	case !inClass:
		return "[" + inner + "]"
	case negated && c == 'D':
		return `\P{Nd}`
	case negated:
		return `\` + string(c)
	}
	return inner
}
