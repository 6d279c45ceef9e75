package policy

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/cove-sandbox/cove/internal/network/egress"
)

const (
	// siblings is the number of names under one domain from which on a rule for all its subdomains
	// replaces theirs.
	siblings = 3
	// fewRules is the number of rules above which two names suffice.
	fewRules = 10
)

// propose returns rules that allow the destinations that were reached. Names on the usual ports of HTTP get
// a rule for the name, all others one with the port.
func propose(uses []egress.Use) []string {
	names := map[string]bool{} // with :port if it is not usual
	var fixed []string         // addresses
	for _, u := range uses {
		port := ":" + strconv.Itoa(u.Port)
		switch _, err := netip.ParseAddr(u.Host); {
		case u.Allowed == 0:
		case err == nil:
			fixed = append(fixed, net.JoinHostPort(u.Host, strconv.Itoa(u.Port)))
		case u.Port == 80 || u.Port == 443:
			names[u.Host] = true
		default:
			names[u.Host+port] = true
		}
	}
	rules := slices.Sorted(maps.Keys(generalize(names, siblings)))
	if len(rules)+len(fixed) > fewRules {
		rules = slices.Sorted(maps.Keys(generalize(names, 2)))
	}
	return append(rules, fixed...)
}

// generalize replaces names under one domain by a rule for all its subdomains, if there are enough. It never
// proposes a rule for a public suffix such as co.uk or github.io, where others can register names.
func generalize(names map[string]bool, enough int) map[string]bool {
	out := maps.Clone(names)
	below := map[string][]string{} // domain with port: names
	for name := range names {
		host, port := name, ""
		if i := strings.IndexByte(name, ':'); i >= 0 {
			host, port = name[:i], name[i:]
		}
		registered, err := publicsuffix.EffectiveTLDPlusOne(host)
		for err == nil && len(host) > len(registered) {
			_, host, _ = strings.Cut(host, ".")
			below[host+port] = append(below[host+port], name)
		}
	}
	// The domains with most labels first, so that rules stay narrow.
	domains := slices.SortedFunc(maps.Keys(below), func(a, b string) int {
		if d := strings.Count(b, ".") - strings.Count(a, "."); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, d := range domains {
		left := slices.DeleteFunc(below[d], func(name string) bool { return !out[name] })
		if len(left) < enough {
			continue
		}
		for _, name := range left {
			delete(out, name)
		}
		out["*."+d] = true
	}
	return out
}
