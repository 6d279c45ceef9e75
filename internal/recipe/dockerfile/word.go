package dockerfile

import (
	"fmt"
	"strings"
)

// quoter converts a word with the quotes of a Dockerfile to a text for recipe.Expand, which knows variables but no
// quotes.
type quoter struct {
	text   string
	at     int
	escape byte
	depth  int // of braces
	out    strings.Builder
	held   int      // backslashes that are not written yet
	names  []string // of all variables
}

// unquote removes the quotes of a word, and returns the names of its variables. Literal dollar signs are escaped.
func unquote(text string, escape byte) (out string, names []string, err error) {
	q := &quoter{text: text, escape: escape}
	if err := q.word(); err != nil {
		return "", nil, fmt.Errorf("%.60s: %w", text, err)
	}
	q.release(1)
	return q.out.String(), q.names, nil
}

// release writes the backslashes that are held: doubled before a character that a backslash would change.
func (q *quoter) release(times int) {
	q.out.WriteString(strings.Repeat(`\`, q.held*times))
	q.held = 0
}

// literal writes a character that has no meaning.
func (q *quoter) literal(c byte) {
	switch {
	case c == '\\':
		q.held++
		return
	case c == '$' || c == '}' && q.depth > 0:
		q.held = 2*q.held + 1
	}
	q.release(1)
	q.out.WriteByte(c)
}

// maxDepth bounds nested variables.
const maxDepth = 4

// word reads to the end of the text, or of the braces.
func (q *quoter) word() error {
	for q.at < len(q.text) {
		c := q.text[q.at]
		switch {
		case c == '}' && q.depth > 0:
			return nil
		case c == '\'':
			end := strings.IndexByte(q.text[q.at+1:], '\'')
			if end < 0 {
				return fmt.Errorf("a quote has no end")
			}
			for _, b := range []byte(q.text[q.at+1 : q.at+1+end]) {
				q.literal(b)
			}
			q.at += end + 2
		case c == '"':
			q.at++
			if err := q.quoted(); err != nil {
				return err
			}
		case c == q.escape:
			if q.at++; q.at < len(q.text) {
				q.literal(q.text[q.at])
				q.at++
			}
		case c == '$':
			if err := q.variable(); err != nil {
				return err
			}
		default:
			q.literal(c)
			q.at++
		}
	}
	return nil
}

// quoted reads to the end of double quotes.
func (q *quoter) quoted() error {
	for q.at < len(q.text) {
		c := q.text[q.at]
		switch {
		case c == '"':
			q.at++
			return nil
		case c == q.escape && q.at+1 < len(q.text) && strings.IndexByte(`"$`+string(q.escape), q.text[q.at+1]) >= 0:
			q.literal(q.text[q.at+1])
			q.at += 2
		case c == '$':
			if err := q.variable(); err != nil {
				return err
			}
		default:
			q.literal(c)
			q.at++
		}
	}
	return fmt.Errorf("a quote has no end")
}

func nameLength(text string) int {
	n := 0
	for n < len(text) && (text[n] == '_' || text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z' || n > 0 && text[n] >= '0' && text[n] <= '9') {
		n++
	}
	return n
}

// variable reads $NAME or ${NAME…}.
func (q *quoter) variable() error {
	q.at++
	rest := q.text[q.at:]
	if n := nameLength(rest); n > 0 {
		q.release(2)
		q.out.WriteString("${" + rest[:n] + "}")
		q.names = append(q.names, rest[:n])
		q.at += n
		return nil
	}
	if rest != "" && strings.IndexByte("0123456789@*#?-$!", rest[0]) >= 0 {
		q.at++ // a parameter of a shell, which is empty here
		return nil
	}
	if !strings.HasPrefix(rest, "{") {
		q.literal('$')
		return nil
	}
	n := nameLength(rest[1:])
	if n == 0 {
		return fmt.Errorf("${ needs the name of a variable; write \\$ for a dollar sign")
	}
	name, after := rest[1:1+n], rest[1+n:]
	q.names = append(q.names, name)
	op := ""
	for _, known := range []string{":-", ":+", "-", "+"} {
		if op == "" && strings.HasPrefix(after, known) {
			op = known
		}
	}
	if op == "" && !strings.HasPrefix(after, "}") {
		return fmt.Errorf("${%s%.10s is unsupported: use ${%[1]s}, ${%[1]s:-default} or ${%[1]s:+other}", name, after)
	}
	q.release(2)
	q.out.WriteString("${" + name + op)
	q.at += 1 + n + len(op)
	if q.depth++; q.depth > maxDepth {
		return fmt.Errorf("more than %d nested variables", maxDepth)
	}
	if err := q.word(); err != nil {
		return err
	}
	if q.at >= len(q.text) {
		return fmt.Errorf("${%s has no }", name)
	}
	q.depth--
	q.release(2)
	q.out.WriteByte('}')
	q.at++
	return nil
}

// quoteShell quotes arguments for a shell.
func quoteShell(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.Trim(a, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-") != "" {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
