package egress

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress/internal/httptarget"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// requestRule allows or denies requests to a host by method and path.
type requestRule struct {
	nameRule
	methods []string // in upper case; empty: all
	path    string   // pattern; empty: all paths
}

// parseRequest splits off the methods and the path of a rule. found is false if it has neither.
func parseRequest(text string) (methods []string, path, host string, found bool, err error) {
	list, rest, spaced := strings.Cut(text, " ")
	if !spaced {
		rest = text
	} else {
		methods = strings.Split(list, ",")
		for _, m := range methods {
			if m == "" || len(m) > 20 || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
				return nil, "", "", false, errors.New("invalid method; write methods in capitals with commas, such as GET,POST name/v1/*")
			}
		}
	}
	host = rest
	plain, _, err := splitRule(rest)
	if _, ok := parsePrefix(plain); err != nil || !ok { // the slash of a range begins no path
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			host, path = rest[:i], rest[i:]
			if err := httptarget.CheckPattern(path); err != nil {
				return nil, "", "", false, err
			}
		}
	}
	return methods, path, host, spaced || path != "", nil
}

// covers reports whether a rule is for the requests to a host and port.
func (q *requestRule) covers(host string, port int) bool {
	return (q.port == 0 || q.port == port) && q.matches(host)
}

// fits reports whether a rule matches a method and a path. Rules that deny ignore case, because some servers do.
func (q *requestRule) fits(method, path string) bool {
	pattern := q.path
	if q.place.deny {
		method, path, pattern = strings.ToUpper(method), strings.ToLower(path), strings.ToLower(pattern)
	}
	head := method == http.MethodHead && slices.Contains(q.methods, http.MethodGet)
	if len(q.methods) > 0 && !slices.Contains(q.methods, method) && !head {
		return false
	}
	return pattern == "" || httptarget.Match(pattern, path)
}

// reads reports whether requests to a host must be read: a rule with a method or path applies before the
// first rule for the whole host.
func (r *Rules) reads(host string, port int) bool {
	i := r.firstRequest(host, port, func(*requestRule) bool { return true })
	if i < 0 || !r.lists() {
		return false
	}
	at, ok := r.firstName(host, port)
	return !ok || i < at.index
}

// HasRequests reports whether some rule has a method or path. Sandboxes with such rules must trust the Authority.
func (r *Rules) HasRequests() bool { return len(r.requests) > 0 && r.lists() }

// firstRequest returns the position of the first request rule for a host that also satisfies a condition; -1 if
// there is none.
func (r *Rules) firstRequest(host string, port int, also func(*requestRule) bool) int {
	for i := range r.requests {
		if q := &r.requests[i]; q.covers(host, port) && also(q) {
			return q.place.index
		}
	}
	return -1
}

// firstName returns the first rule for a whole name.
func (r *Rules) firstName(host string, port int) (at place, ok bool) {
	for _, n := range r.names {
		if (n.port == 0 || n.port == port) && n.matches(host) {
			return n.place, true
		}
	}
	return at, false
}

// allowRequest returns an error if a request to a host that is read is refused. The request must be allowed in
// every way in which a server may read its path.
func (r *Rules) allowRequest(host string, port int, req *http.Request) error {
	if !r.reads(host, port) {
		return nil
	}
	refused := func(why, fix string) *deniedError {
		return &deniedError{fix: fix, why: fmt.Sprintf("this sandbox must not send %s %s to %s: %s", printable(req.Method),
			printable(req.URL.EscapedPath()), net.JoinHostPort(host, strconv.Itoa(port)), why)}
	}
	const change = "its owner can change the rules with cove network set NAME"
	if why := httptarget.Evades(req); why != "" {
		return refused("rules with a method or path apply to this host, and "+why, "")
	}
	paths, err := httptarget.Readings(req.URL.EscapedPath())
	if err != nil {
		return refused(err.Error(), "")
	}
	for _, path := range paths {
		i := r.firstRequest(host, port, func(q *requestRule) bool { return q.fits(req.Method, path) })
		at, ok := r.firstName(host, port)
		if i >= 0 && (!ok || i < at.index) {
			at, ok = place{i, strings.HasPrefix(r.texts[i], "!")}, true
		}
		switch {
		case !ok:
			fix := change
			if plain := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/"; path != "*" && len(path) <= maxShown &&
				strings.Trim(path, plain) == "" && strings.Trim(req.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
				fix = fmt.Sprintf("its owner can allow it with cove egress allow NAME '%s %s%s'", req.Method, host, path)
			}
			return refused(fmt.Sprintf("none of its %d rules allows this method and path", len(r.texts)), fix)
		case at.deny:
			e := refused(fmt.Sprintf("the rule %q of its egress policy denies it", r.texts[at.index]), change)
			e.rule = r.texts[at.index]
			return e
		}
	}
	return nil
}

// refuseRequest refuses and records a request in a connection to a host that is read.
func refuseRequest(p *Proxy, w http.ResponseWriter, r *http.Request, protocol, host string, port int, err error) {
	rec := &Record{Time: time.Now(), Protocol: protocol, Host: host, Port: port, Program: printable(r.UserAgent())}
	p.record(rec, err)
	w.Header().Set("Connection", "close") // the rest of its body may be long
	refuse(w, status(err), err.Error())
}

// ReadsRequests reports whether a policy has rules with a method or path.
func ReadsRequests(n sandbox.Network) bool {
	r, err := Parse(n)
	return err == nil && r.HasRequests()
}
