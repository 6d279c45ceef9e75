package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/network/egress"
)

// TestPropose: rules are few and narrow.
func TestPropose(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ uses, want string }{
		"names":             {"pypi.org:443 files.pythonhosted.org:443 pypi.org:80", "files.pythonhosted.org pypi.org"},
		"another port":      {"github.com:22 github.com:443 db.example.com:5432", "db.example.com:5432 github.com github.com:22"},
		"addresses":         {"192.0.2.7:443 2001:db8::1:80", "192.0.2.7:443 [2001:db8::1]:80"},
		"two siblings":      {"a.example.com:443 b.example.com:443", "a.example.com b.example.com"},
		"three siblings":    {"a.example.com:443 b.example.com:443 c.example.com:80", "*.example.com"},
		"the domain itself": {"a.example.com:443 b.example.com:443 c.example.com:443 example.com:443", "*.example.com example.com"},
		"narrow": {"a.b.example.com:443 c.b.example.com:443 d.b.example.com:443 e.example.com:443",
			"*.b.example.com e.example.com"},
		"siblings on one port": {"a.example.com:5432 b.example.com:5432 c.example.com:5432 d.example.com:443",
			"*.example.com:5432 d.example.com"},
		"not a public suffix":     {"a.co.uk:443 b.co.uk:443 c.co.uk:443", "a.co.uk b.co.uk c.co.uk"},
		"not a shared domain":     {"a.github.io:443 b.github.io:443 c.github.io:443", "a.github.io b.github.io c.github.io"},
		"names without domain":    {"db:443 cache:443 web:443", "cache db web"},
		"a spoofed name":          {"xn--pypi-7qa.org:443", "xn--pypi-7qa.org"},
		"two siblings among many": {many(9) + " a.example.com:443 b.example.com:443", "*.example.com " + names(9)},
	} {
		var uses []egress.Use
		for s := range strings.FieldsSeq(c.uses) {
			i := strings.LastIndexByte(s, ':')
			var port int
			fmt.Sscan(s[i+1:], &port)
			uses = append(uses, egress.Use{Host: s[:i], Port: port, Allowed: 1})
		}
		if got := strings.Join(propose(uses), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
	if got := propose([]egress.Use{{Host: "evil.example", Port: 443, Denied: 9}, {Host: "gone.example", Port: 443, Failed: 1}}); len(got) > 0 {
		t.Errorf("got %q, want no rule for what was never reached", got)
	}
}

func many(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("www.site%d.test:443", i))
	}
	return strings.Join(out, " ")
}

func names(n int) string {
	list := strings.Fields(strings.ReplaceAll(many(n), ":443", ""))
	slices.Sort(list)
	return strings.Join(list, " ")
}
