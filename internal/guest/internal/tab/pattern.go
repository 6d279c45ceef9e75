package tab

import (
	"regexp"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// URLMatcher compiles a pattern: /regex/, a glob, or plain text. Text must equal the whole URL, or a part of it if part is set.
func URLMatcher(pattern string, part bool) (func(string) bool, error) {
	if len(pattern) > 2 && pattern[0] == '/' && pattern[len(pattern)-1] == '/' {
		re, err := regexp.Compile(pattern[1 : len(pattern)-1])
		if err != nil {
			return nil, op.Errorf(op.Invalid, "invalid regular expression %q: %w", pattern, err)
		}
		return re.MatchString, nil
	}
	if strings.ContainsAny(pattern, "*{") {
		re, err := regexp.Compile(globToRegexp(pattern))
		if err != nil {
			return nil, op.Errorf(op.Invalid, "invalid pattern %q", pattern)
		}
		return re.MatchString, nil
	}
	if part {
		return func(u string) bool { return strings.Contains(u, pattern) }, nil
	}
	return func(u string) bool {
		return u == pattern || strings.TrimSuffix(u, "/") == strings.TrimSuffix(pattern, "/")
	}, nil
}

// globToRegexp translates a glob for URLs: ** matches anything, * anything except a slash, {a,b} either text.
func globToRegexp(glob string) string {
	var b strings.Builder
	b.WriteString("^")
	group := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '*' && strings.HasPrefix(glob[i:], "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case c == '*' && strings.HasPrefix(glob[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '{':
			b.WriteString("(?:")
			group++
		case c == '}' && group > 0:
			b.WriteString(")")
			group--
		case c == ',' && group > 0:
			b.WriteString("|")
		case c == '\\' && i+1 < len(glob):
			i++
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	b.WriteString("$")
	return b.String()
}
