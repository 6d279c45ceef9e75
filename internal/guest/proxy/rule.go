package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	maxMappings = 1000
	maxPatterns = 1000
)

// rules is an immutable state of the configuration.
type rules struct {
	mappings []mapping // most specific first
	exclude  []pattern
	include  []pattern
	upstream *upstream
}

// mapping maps a host to a local service.
type mapping struct {
	source, target     string // as the caller wrote them
	scheme, host, path string // of the source; an empty scheme matches http and https
	port               int    // 0 means the default port of the scheme
	toHost, toPath     string
	toPort             int
}

// pattern selects hosts.
type pattern struct {
	text   string
	prefix netip.Prefix // of a network
}

func newRules(c Config) (*rules, error) {
	r := &rules{}
	var faults []error
	entries, err := splitMap(c.Map)
	if err != nil {
		faults = append(faults, err)
	}
	for _, entry := range entries {
		source, target, ok := strings.Cut(entry, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("proxy_map: %q is not SOURCE=TARGET, such as api.example.com=3000", entry))
			continue
		}
		m, err := parseMapping(source, target, c.Deny)
		if err != nil {
			faults = append(faults, fmt.Errorf("proxy_map: %w", err))
			continue
		}
		r = r.withMapping(m)
	}
	for _, list := range []struct {
		texts []string
		to    *[]pattern
	}{{c.Exclude, &r.exclude}, {c.Include, &r.include}} {
		for _, text := range list.texts {
			p, err := parsePattern(text)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			*list.to = append(*list.to, p)
		}
	}
	if c.Upstream != "" {
		var err error
		if r.upstream, err = parseUpstream(c.Upstream); err != nil {
			faults = append(faults, err)
		}
	}
	return r, errors.Join(faults...)
}

// splitMap splits a list of mappings: SOURCE=TARGET, separated by commas, semicolons or newlines, or a JSON object.
func splitMap(text string) ([]string, error) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "{") {
		return strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(",;\n\r\t ", c) }), nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return nil, fmt.Errorf("proxy_map: invalid JSON: %w", err)
	}
	var list []string
	for _, source := range slices.Sorted(maps.Keys(object)) {
		list = append(list, source+"="+strings.Trim(string(object[source]), `"`))
	}
	return list, nil
}

// withMapping returns the rules with a mapping, which replaces an existing one with the same source.
func (r rules) withMapping(m mapping) *rules {
	r.mappings = append(slices.DeleteFunc(slices.Clone(r.mappings), m.sameSource), m)
	slices.SortStableFunc(r.mappings, func(a, b mapping) int {
		return cmp.Or(
			cmp.Compare(strings.Count(a.host, "*"), strings.Count(b.host, "*")), cmp.Compare(len(b.host), len(a.host)),
			cmp.Compare(min(b.port, 1), min(a.port, 1)), cmp.Compare(len(b.path), len(a.path)),
			cmp.Compare(min(len(b.scheme), 1), min(len(a.scheme), 1)))
	})
	return &r
}

func (m mapping) sameSource(other mapping) bool {
	return m.scheme == other.scheme && m.host == other.host && m.port == other.port && m.path == other.path
}

// parseMapping parses a source, [scheme://]host[:port][/path], and a target, [host:]port[/path].
func parseMapping(source, target string, deny func(int) bool) (mapping, error) {
	m := mapping{source: strings.TrimSpace(source), target: strings.TrimSpace(target)}
	if err := m.parseSource(m.source); err != nil {
		return m, fmt.Errorf("invalid source %.200q: %w", source, err)
	}
	if err := m.parseTarget(m.target); err != nil {
		return m, fmt.Errorf("invalid target %.200q: %w", target, err)
	}
	if deny(m.toPort) {
		return m, fmt.Errorf("invalid target %.200q: port %d is reserved for the sandbox; run your service on another port", target, m.toPort)
	}
	return m, nil
}

func (m *mapping) parseSource(text string) error {
	rest := text
	// Clients and proxies merge the slashes of a source that is part of a URL's path.
	if scheme, after, ok := strings.Cut(text, ":/"); ok && !strings.Contains(scheme, "/") {
		switch strings.ToLower(scheme) {
		case "http", "ws":
			m.scheme = "http"
		case "https", "wss":
			m.scheme = "https"
		default:
			return fmt.Errorf("unknown scheme %q; use http or https", scheme)
		}
		rest = strings.TrimPrefix(after, "/")
	}
	host, path, _ := strings.Cut(rest, "/")
	m.path = "/" + path
	if strings.ContainsAny(path, "?#") {
		return errors.New("a mapping cannot contain a query; use scheme, host, port and path")
	}
	host, port, err := splitPort(host)
	if err != nil {
		return err
	}
	m.port = port
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		m.host = ip.Unmap().String()
		if ip.IsLoopback() || ip.IsUnspecified() {
			return errors.New("programs reach this machine without the proxy; map an external host")
		}
		return nil
	}
	m.host = strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case m.host == "" || len(m.host) > 253 ||
		strings.Trim(m.host, "abcdefghijklmnopqrstuvwxyz0123456789-_.*") != "" || strings.Contains(m.host, ".."):
		return errors.New("use a host such as api.example.com or *.example.com")
	case m.host == "localhost" || strings.HasSuffix(m.host, ".localhost"):
		return errors.New("programs reach this machine without the proxy; map an external host")
	case strings.Count(m.host, "*") > 4:
		return errors.New("use at most four wildcards")
	}
	return nil
}

// splitPort splits an optional port off.
func splitPort(text string) (host string, port int, err error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 || strings.HasSuffix(text, "]") || strings.Count(text, ":") > 1 && !strings.HasPrefix(text, "[") {
		return text, 0, nil
	}
	port, err = parsePort(text[i+1:])
	return text[:i], port, err
}

func parsePort(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' || text[0] == '+' {
		return 0, fmt.Errorf("invalid port %.20q; use 1 to 65535", text)
	}
	return int(n), nil
}

func (m *mapping) parseTarget(text string) error {
	if after, ok := strings.CutPrefix(text, "http://"); ok {
		text = after
	}
	if strings.Contains(text, "://") {
		return errors.New("use [host:]port[/path]; the proxy connects to the service by plain HTTP")
	}
	address, path, ok := strings.Cut(text, "/")
	if ok {
		m.toPath = "/" + path
	}
	if strings.ContainsAny(path, "?#") || (&url.URL{Path: m.toPath}).EscapedPath() != m.toPath {
		return errors.New("the path must not contain a query, a fragment or characters that need escaping")
	}
	host, port := "", address
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		host, port = address[:i], address[i+1:]
	}
	var err error
	if m.toPort, err = parsePort(port); err != nil {
		return err
	}
	// Other notations of loopback, such as 127.1, 0x7f.1, 2130706433 and host names, are refused.
	switch strings.ToLower(host) {
	case "", "localhost", "127.0.0.1":
		m.toHost = "127.0.0.1"
	case "::1", "[::1]":
		m.toHost = "::1"
	default:
		return fmt.Errorf("host %.80q is not this machine; use a port, 127.0.0.1:port or [::1]:port", host)
	}
	return nil
}

// covers reports whether a connection to a host and port may carry mapped requests.
func (m *mapping) covers(host string, port int) bool {
	return (m.matchesPort("http", port, 80) || m.matchesPort("https", port, 443)) && glob(m.host, host)
}

func (m *mapping) matchesPort(scheme string, port, standard int) bool {
	return (m.scheme == "" || m.scheme == scheme) && (m.port == port || m.port == 0 && port == standard)
}

// matches reports whether a request is mapped.
func (m *mapping) matches(scheme, host string, port int, path string) bool {
	if !m.matchesPort(scheme, port, map[string]int{"http": 80, "https": 443}[scheme]) || !glob(m.host, host) {
		return false
	}
	return hasPrefix(path, m.path)
}

// hasPrefix reports whether a path is a prefix or below it.
func hasPrefix(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || strings.HasSuffix(prefix, "/") || rest[0] == '/')
}

// covered reports whether a connection may carry mapped requests, so that the proxy must intercept it.
func (r *rules) covered(host string, port int) bool {
	return slices.ContainsFunc(r.mappings, func(m mapping) bool { return m.covers(host, port) })
}

// match returns the mapping of a request, or nil.
func (r *rules) match(scheme, host string, port int, path string) *mapping {
	if path == "" {
		path = "/"
	}
	for i := range r.mappings {
		if m := &r.mappings[i]; m.matches(scheme, host, port, path) {
			return m
		}
	}
	return nil
}

// glob matches a name; * matches any characters.
func glob(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	name, ok := strings.CutPrefix(name, head)
	if !ok || !wild {
		return ok && name == ""
	}
	for i := 0; i <= len(name); i++ {
		if glob(rest, name[i:]) {
			return true
		}
	}
	return false
}

// parsePattern parses a pattern for hosts that bypass the upstream proxy: a name with its subdomains, *.name, .name, an
// address or a network.
func parsePattern(text string) (pattern, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	p := pattern{text: text}
	if prefix, err := netip.ParsePrefix(text); err == nil {
		p.prefix = prefix.Masked()
		return p, nil
	}
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		p.prefix = netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())
		return p, nil
	}
	if text == "" || len(text) > 253 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-_.*") != "" || strings.Count(text, "*") > 4 {
		return p, fmt.Errorf("invalid pattern %.80q; use a name, *.name, .name, an address or a network such as 10.0.0.0/8", text)
	}
	return p, nil
}

func (p pattern) matches(host string) bool {
	if p.prefix.IsValid() {
		ip, err := netip.ParseAddr(host)
		return err == nil && p.prefix.Contains(ip.Unmap())
	}
	if bare, ok := strings.CutPrefix(p.text, "."); ok {
		return host == bare || strings.HasSuffix(host, p.text)
	}
	return glob(p.text, host) || !strings.Contains(p.text, "*") && strings.HasSuffix(host, "."+p.text)
}

// bypass returns why a host does not use the upstream proxy. It is empty if the host uses it.
func (r *rules) bypass(host string) string {
	for _, p := range r.exclude {
		if p.matches(host) {
			return "excluded by " + p.text
		}
	}
	if len(r.include) > 0 && !slices.ContainsFunc(r.include, func(p pattern) bool { return p.matches(host) }) {
		return "not in the list of included hosts"
	}
	return ""
}
