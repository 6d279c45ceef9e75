package text

import (
	"strings"

	"github.com/dlclark/regexp2/v2"
)

// compile compiles a Python regular expression. The engine has the syntax of .NET, which
// differs in a few places.
func compile(expr string) (*regexp2.Regexp, error) {
	return regexp2.Compile(translate(expr), regexp2.OptionMaintainCaptureOrder())
}

func translate(expr string) string {
	var out strings.Builder
	inClass := false
	for i := 0; i < len(expr); i++ {
		rest := expr[i:]
		switch {
		case rest[0] == '\\' && len(rest) > 1:
			if rest[1] == 'Z' && !inClass {
				out.WriteString(`\z`)
			} else {
				out.WriteString(rest[:2])
			}
			i++
		case inClass:
			if rest[0] == '[' {
				out.WriteByte('\\') // a bracket would start a subtraction
			}
			inClass = rest[0] != ']'
			out.WriteByte(rest[0])
		case rest[0] == '[':
			inClass = true
			n := classHead(rest)
			out.WriteString(rest[:n])
			i += n - 1
		case strings.HasPrefix(rest, "(?P<"):
			out.WriteString("(?<")
			i += len("(?P<") - 1
		case strings.HasPrefix(rest, "(?P="):
			name, _, ok := strings.Cut(rest[len("(?P="):], ")")
			if !ok {
				out.WriteString(rest)
				return out.String()
			}
			out.WriteString(`\k<` + name + `>`)
			i += len("(?P=") + len(name)
		case strings.HasPrefix(rest, "{,") && len(rest) > 2 && rest[2] >= '0' && rest[2] <= '9':
			out.WriteString("{0,")
			i++
		default:
			out.WriteByte(rest[0])
		}
	}
	return out.String()
}

// classHead returns the length of the start of a character class, including a closing bracket
// that is a literal because of its position.
func classHead(s string) int {
	n := 1
	if strings.HasPrefix(s[n:], "^") {
		n++
	}
	if strings.HasPrefix(s[n:], "]") {
		n++
	}
	return n
}
