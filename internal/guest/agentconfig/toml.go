package agentconfig

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// checkTOML reports the first error of a TOML document by its line. It checks the syntax and
// that nothing is defined twice; it keeps no values. Its errors quote nothing of the
// document, which may hold keys.
func checkTOML(text string) (err error) {
	p := &tomlParser{rest: strings.ReplaceAll(text, "\r\n", "\n"), line: 1, seen: map[string]string{}}
	defer func() {
		if fault, ok := recover().(tomlFault); ok {
			err = fmt.Errorf("line %d: %s", p.line, string(fault))
		}
	}()
	if !utf8.ValidString(text) {
		p.fail("the text is not UTF-8")
	}
	for p.skipBlank(); p.rest != ""; p.skipBlank() {
		p.statement()
		p.endLine()
	}
	return nil
}

// tomlFault ends the check. Functions of the parser panic with it instead of returning errors,
// since every one of them can fail.
type tomlFault string

type tomlParser struct {
	rest  string
	line  int
	depth int               // of arrays and inline tables
	table string            // prefix of the keys
	seen  map[string]string // what was defined: "table", "array" (of tables), "value"
	count int               // of tables, to tell the entries of an array of tables apart
}

// maxDepth bounds the nesting.
const maxDepth = 64

func (p *tomlParser) fail(what string) { panic(tomlFault(what)) }

// take consumes a prefix if it is there.
func (p *tomlParser) take(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	if ok {
		p.line += strings.Count(prefix, "\n")
		p.rest = rest
	}
	return ok
}

func (p *tomlParser) need(prefix, what string) {
	if !p.take(prefix) {
		p.fail(what)
	}
}

func (p *tomlParser) skipSpace() { p.rest = strings.TrimLeft(p.rest, " \t") }

// skipBlank skips space, comments and line ends.
func (p *tomlParser) skipBlank() {
	for {
		p.skipSpace()
		if strings.HasPrefix(p.rest, "#") {
			comment, _, _ := strings.Cut(p.rest, "\n")
			if strings.ContainsFunc(comment, isControl) {
				p.fail("a comment has a control character")
			}
			p.rest = p.rest[len(comment):]
		}
		if !p.take("\n") {
			return
		}
	}
}

func (p *tomlParser) endLine() {
	p.skipSpace()
	if p.rest != "" && p.rest[0] != '#' && p.rest[0] != '\n' {
		p.fail("expected the end of the line")
	}
}

// statement is a header or a key with its value.
func (p *tomlParser) statement() {
	switch {
	case p.take("[["):
		p.table = ""
		key := p.key()
		p.need("]]", "expected ]] after the name of the table")
		if kind := p.seen[key]; kind != "" && kind != "array" {
			p.fail("an array of tables has the name of something else")
		}
		p.seen[key] = "array"
		p.count++
		p.table = key + "\x00" + strconv.Itoa(p.count)
	case p.take("["):
		p.table = ""
		key := p.key()
		p.need("]", "expected ] after the name of the table")
		if p.seen[key] != "" {
			p.fail("a table is defined twice")
		}
		p.seen[key] = "table"
		p.table = key
	default:
		p.pair()
	}
}

func (p *tomlParser) pair() {
	key := p.key()
	if p.seen[key] != "" {
		p.fail("a key is defined twice")
	}
	p.seen[key] = "value"
	p.need("=", "expected = after the key")
	p.skipSpace()
	p.value(key)
}

// key reads a dotted key, and returns it with the name of its table.
func (p *tomlParser) key() string {
	full := p.table
	for {
		p.skipSpace()
		full += "\x00" + p.name()
		p.skipSpace()
		if !p.take(".") {
			return full
		}
		if p.seen[full] == "value" {
			p.fail("a value cannot have keys of its own")
		}
	}
}

// name reads one part of a key.
func (p *tomlParser) name() string {
	before := p.rest
	switch {
	case strings.HasPrefix(p.rest, `"`):
		p.basicString(`"`, false)
	case strings.HasPrefix(p.rest, "'"):
		p.literalString("'", false)
	default:
		name := p.word(func(c byte) bool {
			return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
		})
		if name == "" {
			p.fail("expected a key")
		}
		return name
	}
	raw := before[1 : len(before)-len(p.rest)-1]
	if plain, err := strconv.Unquote(`"` + raw + `"`); err == nil && before[0] == '"' {
		return plain
	}
	return raw
}

// word consumes the longest prefix of such characters.
func (p *tomlParser) word(of func(byte) bool) string {
	n := 0
	for n < len(p.rest) && of(p.rest[n]) {
		n++
	}
	word := p.rest[:n]
	p.rest = p.rest[n:]
	return word
}

// tomlScalar matches booleans, numbers and times.
var tomlScalar = sync.OnceValue(func() *regexp.Regexp {
	const digits, date, clock = `[0-9](?:_?[0-9])*`, `[0-9]{4}-[0-9]{2}-[0-9]{2}`, `[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?`
	whole := `[+-]?(?:0|[1-9](?:_?[0-9])*)`
	return regexp.MustCompile(`^(?:true|false|[+-]?(?:inf|nan)|0x[0-9A-Fa-f](?:_?[0-9A-Fa-f])*|0o[0-7](?:_?[0-7])*|0b[01](?:_?[01])*|` +
		whole + `(?:\.` + digits + `)?(?:[eE][+-]?` + digits + `)?|` +
		date + `(?:[Tt ]` + clock + `(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?)?|` + clock + `)$`)
})

func (p *tomlParser) value(key string) {
	p.depth++
	if p.depth > maxDepth {
		p.fail("too deeply nested")
	}
	defer func() { p.depth-- }()
	switch {
	case strings.HasPrefix(p.rest, `"""`):
		p.basicString(`"""`, true)
	case strings.HasPrefix(p.rest, `"`):
		p.basicString(`"`, false)
	case strings.HasPrefix(p.rest, "'''"):
		p.literalString("'''", true)
	case strings.HasPrefix(p.rest, "'"):
		p.literalString("'", false)
	case p.take("["):
		p.array(key)
	case p.take("{"):
		p.inlineTable(key)
	default:
		part := func(c byte) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune(`,]}#"'=[{`, rune(c)) }
		text := p.word(part)
		if len(text) == len("2006-01-02") && len(p.rest) > 1 && p.rest[0] == ' ' && '0' <= p.rest[1] && p.rest[1] <= '9' {
			p.rest = p.rest[1:]
			text += " " + p.word(part)
		}
		if !tomlScalar().MatchString(text) {
			p.fail("expected a value: a string in quotes, a number, true, false, a time, an array or a table")
		}
	}
}

func (p *tomlParser) array(key string) {
	for i := 0; ; i++ {
		p.skipBlank()
		if p.take("]") {
			return
		}
		p.value(key + "\x00" + strconv.Itoa(i))
		p.skipBlank()
		if !p.take(",") {
			p.need("]", "expected , or ] in an array")
			return
		}
	}
}

func (p *tomlParser) inlineTable(key string) {
	outer := p.table
	p.table = key
	defer func() { p.table = outer }()
	p.skipSpace()
	if p.take("}") {
		return
	}
	for {
		p.pair()
		p.skipSpace()
		if !p.take(",") {
			p.need("}", "expected , or } in an inline table")
			return
		}
	}
}

var tomlEscape = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\\(?:[btnfr"\\]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})`)
})

// basicString reads a string with escapes.
func (p *tomlParser) basicString(quote string, lines bool) {
	p.take(quote)
	for !p.closes(quote, lines) {
		if p.rest[0] != '\\' {
			p.char(lines)
			continue
		}
		if escape := tomlEscape().FindString(p.rest); escape != "" {
			p.rest = p.rest[len(escape):]
			continue
		}
		p.rest = p.rest[1:]
		p.skipSpace()
		if !lines || !strings.HasPrefix(p.rest, "\n") {
			p.fail("a string has an invalid escape")
		}
	}
}

// literalString reads a string without escapes.
func (p *tomlParser) literalString(quote string, lines bool) {
	p.take(quote)
	for !p.closes(quote, lines) {
		p.char(lines)
	}
}

// closes consumes the end of a string, which may follow up to two quotes that belong to it.
func (p *tomlParser) closes(quote string, lines bool) bool {
	if p.rest == "" {
		p.fail("a string is not closed")
	}
	if !p.take(quote) {
		return false
	}
	for range 2 {
		if lines {
			p.take(quote[:1])
		}
	}
	return true
}

// char consumes one character of a string.
func (p *tomlParser) char(lines bool) {
	if p.take("\n") {
		if !lines {
			p.fail("a string is not closed on its line")
		}
		return
	}
	c, size := utf8.DecodeRuneInString(p.rest)
	if isControl(c) {
		p.fail("a string has a control character; write it as an escape")
	}
	p.rest = p.rest[size:]
}

func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
