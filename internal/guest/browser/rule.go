package browser

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// rule is one entry of a list in the format of Chromium's URLBlocklist and URLAllowlist policies:
// [scheme://][.]host[:port][/path][?query]. A host includes its subdomains unless a dot precedes it; * matches anything.
type rule struct {
	scheme string // empty: any
	host   string // empty: any
	exact  bool   // without its subdomains
	port   string // empty: any
	path   string // prefix
	query  []string
}

// maxRule is the maximum length of a rule.
const maxRule = 2 << 10

// parseRule parses an entry of a list.
func parseRule(text string) (rule, error) {
	var r rule
	switch {
	case text == "":
		return r, errors.New("it is empty")
	case len(text) > maxRule:
		return r, fmt.Errorf("it is longer than %d bytes", maxRule)
	case strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return r, errors.New("it contains white space")
	case text == "*":
		return r, nil
	}
	rest := text
	if scheme, after, ok := strings.Cut(rest, "://"); ok {
		r.scheme, rest = strings.ToLower(scheme), after
	} else if scheme, ok := strings.CutSuffix(rest, ":*"); ok && !strings.ContainsAny(scheme, "./:") {
		r.scheme, rest = strings.ToLower(scheme), "*"
	}
	if r.scheme == "*" {
		r.scheme = ""
	}
	if r.scheme != "" && strings.Trim(r.scheme, "abcdefghijklmnopqrstuvwxyz0123456789+-.") != "" {
		return r, fmt.Errorf("%q is not a scheme", r.scheme)
	}
	if at := strings.IndexByte(rest, '?'); at >= 0 {
		r.query, rest = strings.Split(rest[at+1:], "&"), rest[:at]
	}
	if at := strings.IndexByte(rest, '/'); at >= 0 {
		r.path, rest = rest[at:], rest[:at]
	}
	return r, r.setHost(rest)
}

func (r *rule) setHost(text string) error {
	host := strings.ToLower(text)
	if at := strings.LastIndexByte(host, ':'); at >= 0 && !strings.HasSuffix(host, "]") {
		port := host[at+1:]
		if n, err := strconv.Atoi(port); port != "*" && (err != nil || n < 1 || n > 65535) {
			return fmt.Errorf("%q is not a port", port)
		}
		if host = host[:at]; port != "*" {
			r.port = port
		}
	}
	if host == "*" || host == "" {
		return nil
	}
	host, r.exact = strings.CutPrefix(host, ".")
	if host == "" || strings.ContainsAny(host, "*@\\") {
		return fmt.Errorf("%q is not a host; a host name includes its subdomains", text)
	}
	r.host = strings.TrimSuffix(host, ".")
	return nil
}

// matches reports whether the rule applies to a URL.
func (r rule) matches(u *url.URL) bool {
	if r.scheme != "" && r.scheme != u.Scheme {
		return false
	}
	if r.host != "" {
		host := strings.TrimSuffix(strings.ToLower(u.Host), ".")
		if name := strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")); name != "" {
			host = name
		}
		want := strings.Trim(r.host, "[]")
		if host != want && (r.exact || !strings.HasSuffix(host, "."+want)) {
			return false
		}
	}
	if r.port != "" && r.port != portOf(u) {
		return false
	}
	path := u.EscapedPath()
	if u.Opaque != "" {
		path = u.Opaque
	}
	if !strings.HasPrefix(path, r.path) && !(r.path == "/" && path == "") {
		return false
	}
	return r.matchesQuery(u.RawQuery)
}

// matchesQuery requires every part of the rule's query; a part that ends in * is a prefix.
func (r rule) matchesQuery(query string) bool {
	have := strings.Split(query, "&")
	for _, want := range r.query {
		found := false
		for _, h := range have {
			begin, open := strings.CutSuffix(want, "*")
			found = found || h == want || open && strings.HasPrefix(h, begin)
		}
		if !found {
			return false
		}
	}
	return true
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}[u.Scheme]
}

// moreSpecific reports whether r is more specific than other: the more specific rule decides.
func (r rule) moreSpecific(other rule) bool {
	if (r.host != "" && r.exact) != (other.host != "" && other.exact) {
		return r.host != "" && r.exact
	}
	for _, pair := range [][2]int{{len(r.host), len(other.host)}, {len(r.path), len(other.path)}, {len(r.query), len(other.query)}} {
		if pair[0] != pair[1] {
			return pair[0] > pair[1]
		}
	}
	return false
}

// rules are the lists of a browser.
type rules struct{ block, allow []rule }

// newRules parses lists that were validated when they were stored.
func newRules(set setup) (rules, error) {
	var out rules
	for _, list := range []struct {
		from []string
		to   *[]rule
	}{{set.Block, &out.block}, {set.Allow, &out.allow}} {
		for _, text := range list.from {
			r, err := parseRule(text)
			if err != nil {
				return out, fmt.Errorf("rule %q: %w", text, err)
			}
			*list.to = append(*list.to, r)
		}
	}
	return out, nil
}

// blocks reports whether a URL is blocked. URLs that a page makes itself, such as blob:, are blocked only by a rule that names
// their scheme.
func (l rules) blocks(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return len(l.block) > 0 // deny what cannot be parsed
	}
	block, found := mostSpecific(l.block, u)
	if !found {
		return false
	}
	switch u.Scheme {
	case "about", "blob", "data", "javascript", "devtools", "chrome-error", "chrome-untrusted":
		if block.scheme != u.Scheme {
			return false
		}
	}
	allow, found := mostSpecific(l.allow, u)
	return !found || block.moreSpecific(allow)
}

// mostSpecific returns the most specific rule that matches a URL.
func mostSpecific(list []rule, u *url.URL) (best rule, found bool) {
	for _, r := range list {
		if r.matches(u) && (!found || r.moreSpecific(best)) {
			best, found = r, true
		}
	}
	return best, found
}
