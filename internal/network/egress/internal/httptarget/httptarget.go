// Package httptarget reads the method and path of HTTP requests in the ways in which servers may read them.
package httptarget

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// CheckPattern validates the pattern of a path.
func CheckPattern(path string) error {
	const valid = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~+,=:@*"
	if len(path) > 1000 || strings.Trim(path, valid) != "" {
		return errors.New("invalid path; write it decoded, without query, with * for one segment, or at the end for the rest")
	}
	segments := strings.Split(path[1:], "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case strings.Trim(s, ".") == "" && s != "", s == "" && !last:
			return errors.New("invalid path: segments must not be empty or consist of dots")
		case strings.Contains(s, "*") && s != "*" && !(last && strings.Count(s, "*") == 1 && strings.HasSuffix(s, "*")):
			return errors.New("invalid path: * is a whole segment, or the end")
		}
	}
	return nil
}

// Match matches a path with a pattern: * is one segment, or the rest if it is at the end.
func Match(pattern, path string) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i, w := range want {
		begin, rest := strings.CutSuffix(w, "*")
		switch {
		case i >= len(got):
			return false
		case rest && i == len(want)-1:
			return strings.HasPrefix(got[i], begin)
		case rest && got[i] == "", !rest && w != got[i]:
			return false
		}
	}
	return len(got) == len(want)
}

// overrides are headers by which some servers replace the method or path of a request.
var overrides = []string{"x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url",
	"x-original-uri", "x-forwarded-uri", "x-forwarded-path", "x-forwarded-prefix"}

// Evades returns why a request could have another method or path for its server; empty if it cannot.
func Evades(req *http.Request) string {
	for name, values := range req.Header {
		plain := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		switch {
		case slices.Contains(overrides, plain):
			return "the header " + name + " can replace its method or path; omit it"
		case plain == "upgrade" && (len(values) != 1 || !strings.EqualFold(values[0], "websocket") && !strings.EqualFold(values[0], "h2c")):
			return "only WebSockets may be opened on a connection that is read"
		}
	}
	if req.Method == http.MethodConnect || strings.EqualFold(req.Header.Get("Upgrade"), "websocket") && req.Method != http.MethodGet {
		return "tunnels are not readable"
	}
	for part := range strings.FieldsFuncSeq(req.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		name, _, _ := strings.Cut(part, "=")
		if name, err := url.QueryUnescape(name); err != nil || name == "_method" {
			return "the query can replace its method; omit _method"
		}
	}
	return ""
}

// Readings returns the paths as which servers may read an escaped path. It refuses paths with . and .., which
// servers resolve differently.
func Readings(escaped string) ([]string, error) {
	if escaped == "" {
		escaped = "/"
	}
	if escaped == "*" {
		return []string{"*"}, nil
	}
	bad := errors.New("servers read its path in different ways; use a path without . and .. segments, backslashes, and nested escapes")
	if escaped[0] != '/' || strings.Contains(escaped, "%00") {
		return nil, bad
	}
	// Some servers do not decode %2f, so it is not always a slash.
	const slash = "\x00"
	once, err := url.PathUnescape(strings.NewReplacer("%2f", slash, "%2F", slash).Replace(escaped))
	if err != nil || strings.Contains(once, "%") && isEscaped(once) {
		return nil, bad
	}
	kept, full := strings.ReplaceAll(once, slash, "%2f"), strings.ReplaceAll(once, slash, "/")
	if !utf8.ValidString(full) || strings.ContainsFunc(full, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' }) {
		return nil, bad
	}
	var plain []string // segments without parameters, and without empty ones
	for s := range strings.SplitSeq(full, "/") {
		name, _, _ := strings.Cut(s, ";")
		if trimmed := strings.TrimSpace(name); trimmed != "" && strings.Trim(trimmed, ". ") == "" {
			return nil, bad
		}
		if name != "" {
			plain = append(plain, name)
		}
	}
	merged := "/" + strings.Join(plain, "/")
	if strings.HasSuffix(full, "/") && merged != "/" {
		merged += "/"
	}
	out := []string{kept, full, merged}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// isEscaped reports whether a decoded path contains another escape.
func isEscaped(path string) bool {
	for i := strings.IndexByte(path, '%'); i >= 0; {
		if rest := path[i+1:]; len(rest) >= 2 && isHex(rest[0]) && isHex(rest[1]) || strings.HasPrefix(rest, "u") {
			return true
		}
		next := strings.IndexByte(path[i+1:], '%')
		if next < 0 {
			return false
		}
		i += 1 + next
	}
	return false
}

func isHex(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }
