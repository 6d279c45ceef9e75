package browser

import (
	"net/url"
	"strings"
	"testing"
)

func TestRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		block, allow string // space separated
		open, closed string // allowed and blocked URLs
	}{
		{"example.com", "", "http://example.org/ http://notexample.com/ about:blank",
			"http://example.com/ https://example.com:8443/x?y http://a.b.example.com/ http://EXAMPLE.com/"},
		{".example.com", "", "http://www.example.com/", "http://example.com/"},
		{"https://example.com", "", "http://example.com/", "https://example.com/ https://www.example.com/"},
		{"example.com:8080", "", "http://example.com/", "http://example.com:8080/"},
		{"example.com:80", "", "https://example.com/", "http://example.com/"},
		{"example.com/private", "", "http://example.com/ http://example.com/public", "http://example.com/private http://example.com/private/x"},
		{"example.com/watch?v=1", "", "http://example.com/watch?v=2 http://example.com/watch",
			"http://example.com/watch?v=1 http://example.com/watch?x=y&v=1"},
		{"example.com/watch?v=a*", "", "http://example.com/watch?v=b", "http://example.com/watch?v=abc"},
		{"*", "", "about:blank data:text/html,x blob:http://x/1", "http://example.com/ chrome://settings/ file:///etc/passwd ftp://x/"},
		{"*", "example.com", "http://example.com/ https://www.example.com/x", "http://example.org/"},
		{"example.com", "example.com", "http://example.com/", ""},
		{"example.com", "www.example.com", "http://www.example.com/", "http://example.com/ http://m.example.com/"},
		{"example.com/a", "example.com", "http://example.com/", "http://example.com/a"},
		{"example.com", "example.com/a", "http://example.com/a/b", "http://example.com/"},
		{"chrome://* file://*", "", "http://example.com/", "chrome://settings/ file:///etc/passwd"},
		{"data:*", "", "about:blank", "data:text/html,x"},
		{"javascript://*", "", "http://example.com/", ""},
		{"10.0.0.1", "", "http://10.0.0.2/", "http://10.0.0.1/"},
		{"[::1]", "", "http://[::2]/", "http://[::1]/ http://[::1]:80/"},
		{"", "", "http://example.com/", ""},
	} {
		l, err := newRules(setup{settings: settings{Block: strings.Fields(c.block), Allow: strings.Fields(c.allow)}})
		if err != nil {
			t.Errorf("%q: %v", c.block, err)
			continue
		}
		for want, list := range map[bool]string{false: c.open, true: c.closed} {
			for _, address := range strings.Fields(list) {
				if l.blocks(address) != want {
					t.Errorf("block %q, allow %q: blocks(%s) is not %v", c.block, c.allow, address, want)
				}
			}
		}
	}
	for _, bad := range []string{"", "a b", "*.example.com", "http://exa*mple.com", "example.com:0",
		"example.com:http", "ex ample", strings.Repeat("x", 3000), "user@example.com", "ht tp://x"} {
		if r, err := parseRule(bad); err == nil {
			t.Errorf("%q was parsed as %+v, want an error", bad, r)
		}
	}
}

// FuzzRules checks that no list and no URL causes a panic, and that * blocks every web URL.
func FuzzRules(f *testing.F) {
	f.Add("example.com/a?b=c*", "http://x.example.com/a?b=cd")
	f.Add("*", "https://u:p@[::1]:99/%zz")
	f.Add("file://*", "file:///")
	f.Fuzz(func(t *testing.T, text, address string) {
		r, err := parseRule(text)
		if err != nil {
			return
		}
		l := rules{block: []rule{r}}
		blocked := l.blocks(address)
		_, err = url.Parse(address) // invalid URLs are blocked even if they are allowed
		if l.allow = l.block; err == nil && l.blocks(address) && blocked {
			t.Errorf("%q blocks %q although it allows it", text, address)
		}
		if all := (rules{block: []rule{{}}}); strings.HasPrefix(address, "http") && strings.Contains(address, "://") && !all.blocks(address) {
			t.Errorf("* does not block %q", address)
		}
	})
}
