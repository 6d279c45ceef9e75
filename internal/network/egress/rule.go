package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Rules are a parsed network policy.
type Rules struct {
	mode  sandbox.NetworkMode
	names []nameRule
	nets  []netRule
	texts []string // of all rules

	requests []requestRule
}

// nameRule allows a name, or all its subdomains; port 0 means any.
type nameRule struct {
	name  string // empty with below: every name
	below bool
	port  int
	place place
}

// place is the position of a rule in the list, and whether it denies. The first rule that matches decides.
type place struct {
	index int
	deny  bool
}

type netRule struct {
	prefix netip.Prefix
	port   int
	place  place
}

// Parse parses a policy. Rules are "name", "*.name" (all its subdomains), "*",
// an address or a range ("192.0.2.7", "[2001:db8::1]", "192.0.2.0/24"), each
// optionally followed by ":port". Methods before a name and a path after it restrict a rule to requests: "GET,POST
// api.example/v1/*". A rule that begins with ! denies. The first rule that matches decides.
func Parse(n sandbox.Network) (*Rules, error) {
	r := &Rules{mode: n.Mode}
	switch n.Mode {
	case "":
		r.mode = sandbox.NetworkNone
	case sandbox.NetworkNone, sandbox.NetworkAllow, sandbox.NetworkAsk, sandbox.NetworkOpen:
	default:
		return nil, fmt.Errorf("invalid network mode %q; use none, allow, ask or open", n.Mode)
	}
	for i, text := range n.Allow {
		if err := r.add(text, i); err != nil {
			return nil, fmt.Errorf("invalid network rule %q: %w", text, err)
		}
		r.texts = append(r.texts, text)
	}
	return r, nil
}

func (r *Rules) add(text string, index int) error {
	text, denies := strings.CutPrefix(text, "!")
	at := place{index, denies}
	methods, path, text, requests, err := parseRequest(text)
	if err != nil {
		return err
	}
	host, port, err := splitRule(text)
	if err != nil {
		return err
	}
	if prefix, ok := parsePrefix(host); ok {
		if requests {
			return errors.New("a method or path requires a name, which a certificate can prove, instead of an address")
		}
		r.nets = append(r.nets, netRule{prefix, port, at})
		return nil
	}
	if strings.ContainsAny(host, "/[]:") {
		return errors.New("use a name, an address or a range such as 192.0.2.0/24")
	}
	rule := nameRule{below: true, port: port, place: at}
	if host != "*" {
		rule.name, rule.below = strings.CutPrefix(host, "*.")
		if rule.name, err = CleanName(rule.name); err != nil {
			return err
		}
	}
	if requests {
		r.requests = append(r.requests, requestRule{rule, methods, path})
	} else {
		r.names = append(r.names, rule)
	}
	return nil
}

// splitRule splits off the port; an IPv6 address with a port needs brackets.
func splitRule(text string) (host string, port int, err error) {
	if _, ok := parsePrefix(text); ok {
		return text, 0, nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 || strings.HasSuffix(text, "]") {
		return text, 0, nil
	}
	if port, err = parsePort(text[i+1:]); err != nil {
		return "", 0, err
	}
	return text[:i], port, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("invalid port %q; use 1 to 65535", s)
	}
	return int(n), nil
}

// parsePrefix parses an address, with or without brackets, or a range.
func parsePrefix(s string) (netip.Prefix, bool) {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()), true
}

// CleanName returns a host name in lower case without its final dot. It refuses
// invalid names, and names that some programs parse as an address.
func CleanName(s string) (string, error) {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if s == "" || len(s) > 253 {
		return "", errors.New("a host name has 1 to 253 characters")
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", errors.New("invalid host name; use letters, digits, hyphens and dots, and the xn-- form of other names")
		}
		last = label
	}
	// 127.1, 0x7f000001 and 2130706433 are ways to write 127.0.0.1.
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return "", errors.New("it ends in a number but is not an address; write addresses in full")
	}
	return s, nil
}

// Allow returns an error if connections to a host and port are refused. The host
// is a clean name or an address.
func (r *Rules) Allow(host string, port int) error {
	_, err := r.decide(host, port)
	return err
}

// lists reports whether the list of rules applies.
func (r *Rules) lists() bool { return r.mode == sandbox.NetworkAllow || r.mode == sandbox.NetworkAsk }

// decide returns the rule that allows connections to a host and port, or why they are refused.
func (r *Rules) decide(host string, port int) (rule string, err error) {
	switch r.mode {
	case sandbox.NetworkOpen:
		return "", nil
	case sandbox.NetworkAllow, sandbox.NetworkAsk:
	default:
		return "", unmatched(host, port, "its egress policy is none")
	}
	ip, err := netip.ParseAddr(host)
	name := host
	if err == nil {
		name, host = "", ip.String()
	}
	at, ok := r.first(name, ip, port)
	if name != "" {
		allows := r.firstRequest(name, port, func(q *requestRule) bool { return !q.place.deny })
		if allows >= 0 && (!ok || allows < at.index) {
			return r.texts[allows], nil // its requests are checked
		}
	}
	switch {
	case !ok:
		return "", unmatched(host, port, fmt.Sprintf("its egress policy is %s, and none of its %d rules matches", r.mode, len(r.texts)))
	case at.deny:
		return "", r.denyBy(at, net.JoinHostPort(host, strconv.Itoa(port)))
	}
	return r.texts[at.index], nil
}

// denyBy explains which rule denies a connection.
func (r *Rules) denyBy(at place, target string) error {
	rule := r.texts[at.index]
	return &deniedError{rule: rule, why: fmt.Sprintf("this sandbox must not connect to %s: the rule %q of its egress policy denies it",
		target, rule), fix: "its owner can change the rules with cove network set NAME"}
}

// AllowAt returns an error if connections to a host that is allowed are refused at one of its addresses.
func (r *Rules) AllowAt(host string, ip netip.Addr, port int) error {
	if !r.lists() {
		return nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil // Allow has checked it
	}
	allows := r.firstRequest(host, port, func(q *requestRule) bool { return !q.place.deny })
	if at, ok := r.first(host, ip, port); ok && at.deny && (allows < 0 || at.index < allows) {
		return r.denyBy(at, fmt.Sprintf("%s, an address of %s", ip, net.JoinHostPort(host, strconv.Itoa(port))))
	}
	return nil
}

// first returns the first rule that matches a name or an address; both may be empty.
func (r *Rules) first(name string, ip netip.Addr, port int) (at place, ok bool) {
	found := func(p place) {
		if !ok || p.index < at.index {
			at, ok = p, true
		}
	}
	for _, n := range r.nets {
		if ip.IsValid() && n.prefix.Contains(ip.Unmap()) && (n.port == 0 || n.port == port) {
			found(n.place)
		}
	}
	for _, n := range r.names {
		if name != "" && (n.port == 0 || n.port == port) && n.matches(name) {
			found(n.place)
		}
	}
	return at, ok
}

// unmatched explains why a sandbox cannot connect to a host for which there is no rule, and how its owner can allow it.
func unmatched(host string, port int, why string) error {
	at := net.JoinHostPort(host, strconv.Itoa(port))
	return &deniedError{why: fmt.Sprintf("this sandbox must not connect to %s: %s", at, why), unmatched: true,
		fix: "its owner can allow it with cove egress allow NAME " + at}
}

// matches reports whether a rule is for a name.
func (n nameRule) matches(host string) bool {
	return n.name == host && !n.below || n.below && (n.name == "" || strings.HasSuffix(host, "."+n.name))
}

// deniedError is a refusal by a rule, as opposed to a failure to connect. Programs
// in the sandbox see its text.
type deniedError struct {
	why       string
	rule      string // that denies; empty: another reason
	fix       string // what the owner of the sandbox can do; empty: nothing
	unmatched bool   // no rule matches
}

func (e *deniedError) Error() string {
	if e.fix == "" {
		return e.why
	}
	return e.why + "; " + e.fix
}

func deny(format string, args ...any) error { return &deniedError{why: fmt.Sprintf(format, args...)} }

// Deny returns the error of a refused connection. Programs in the sandbox see its text.
func Deny(format string, args ...any) error { return deny(format, args...) }

// Denied reports whether an error is a refusal.
func Denied(err error) bool {
	_, ok := errors.AsType[*deniedError](err)
	return ok
}
