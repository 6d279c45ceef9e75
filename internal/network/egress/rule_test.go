package egress

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestRules(t *testing.T) {
	list := sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{
		"example.com", "*.pypi.org:443", "Registry.NPMJS.org.:443", "192.0.2.7", "198.51.100.0/24:8080", "[2001:db8::1]:80", "2001:db8:1::/48",
	}}
	everyName := sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"*:443"}}
	for _, c := range []struct {
		n    sandbox.Network
		host string
		port int
		ok   bool
	}{
		{sandbox.Network{}, "example.com", 80, false},
		{sandbox.Network{Mode: sandbox.NetworkNone, Allow: []string{"example.com"}}, "example.com", 80, false},
		{sandbox.Network{Mode: sandbox.NetworkOpen}, "example.com", 25, true},
		{list, "example.com", 80, true},
		{list, "example.com", 9999, true},
		{list, "www.example.com", 80, false},
		{list, "badexample.com", 80, false},
		{list, "example.com.evil.org", 80, false},
		{list, "pypi.org", 443, false},
		{list, "files.pypi.org", 443, true},
		{list, "a.b.pypi.org", 443, true},
		{list, "files.pypi.org", 80, false},
		{list, "evilpypi.org", 443, false},
		{list, "registry.npmjs.org", 443, true},
		{list, "192.0.2.7", 1, true},
		{list, "192.0.2.8", 1, false},
		{list, "198.51.100.9", 8080, true},
		{list, "198.51.100.9", 80, false},
		{list, "2001:db8::1", 80, true},
		{list, "2001:db8::1", 81, false},
		{list, "2001:db8:1::5", 81, true},
		{everyName, "anything.test", 443, true},
		{everyName, "anything.test", 80, false},
		{everyName, "192.0.2.7", 443, false},
	} {
		r, err := Parse(c.n)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Allow(c.host, c.port); (err == nil) != c.ok || err != nil && !Denied(err) {
			t.Errorf("%v %s:%d: %v, want it allowed: %v", c.n, c.host, c.port, err, c.ok)
		}
	}
}

// TestDenialsNameTheCommand: the error in the sandbox names the rule, and the command that allows the connection.
func TestDenialsNameTheCommand(t *testing.T) {
	for want, n := range map[string]sandbox.Network{
		"to pypi.org:443: its egress policy is none; its owner can allow it with cove egress allow NAME pypi.org:443": {
			Mode: sandbox.NetworkNone},
		"to pypi.org:443: its egress policy is allow, and none of its 2 rules matches; its owner can allow it with " +
			"cove egress allow NAME pypi.org:443": {Mode: sandbox.NetworkAllow, Allow: []string{"pypi.org:80", "*.pypi.org"}},
		`to pypi.org:443: the rule "!*.org" of its egress policy denies it; its owner can change the rules with cove network set NAME`: {
			Mode: sandbox.NetworkAllow, Allow: []string{"!*.org", "pypi.org"}},
	} {
		r, err := Parse(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Allow("pypi.org", 443); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want it to end with %q", err, want)
		}
	}
}

// TestRulesThatDeny: the first rule that matches decides, also about the addresses of a name.
func TestRulesThatDeny(t *testing.T) {
	r, err := Parse(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{
		"192.0.2.9", "ok.example", "!192.0.2.0/24", "!bad.example", "*", "0.0.0.0/0", "::/0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, at string
		ok       bool
	}{
		{"192.0.2.7", "192.0.2.7", false},
		{"::ffff:192.0.2.7", "192.0.2.7", false},
		{"192.0.2.9", "192.0.2.9", true},
		{"198.51.100.1", "198.51.100.1", true},
		{"2001:db8::1", "2001:db8::1", true},
		{"any.example", "198.51.100.1", true},
		{"any.example", "192.0.2.7", false}, // a name must not lead to a denied address
		{"any.example", "192.0.2.9", true},
		{"ok.example", "192.0.2.7", true}, // it is allowed before the address is denied
		{"bad.example", "198.51.100.1", false},
	} {
		err := r.Allow(c.host, 443)
		if err == nil {
			err = r.AllowAt(c.host, netip.MustParseAddr(c.at), 443)
		}
		if (err == nil) != c.ok || err != nil && !Denied(err) {
			t.Errorf("%s at %s: %v, want it allowed: %v", c.host, c.at, err, c.ok)
		}
	}
}

func TestInvalidRulesAreRefused(t *testing.T) {
	for _, rule := range []string{"", ":80", "example.com:0", "example.com:http", "example.com:70000", "ex ample",
		"*.*", "a..b", "300.1.2.3", "127.1", "0x7f000001", "2130706433", "10.0.0.0/40", "fe80::1%eth0", "http://example.com", "*."} {
		if _, err := Parse(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{rule}}); err == nil {
			t.Errorf("%q was accepted, want an error", rule)
		}
	}
	if _, err := Parse(sandbox.Network{Mode: "sometimes"}); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "2606:2800:220:1:248:1893:25c8:1946": true, "::ffff:1.1.1.1": true, "2001:4860:4860::8888": true,
		"127.0.0.1": false, "127.9.9.9": false, "0.0.0.0": false, "10.1.2.3": false, "172.31.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false,
		"224.0.0.1": false, "255.255.255.255": false,
		"::1": false, "::": false, "fe80::1": false, "fd00:ec2::254": false, "fc00::1": false, "ff02::1": false,
		"::ffff:127.0.0.1": false, "::127.0.0.1": false,
		"64:ff9b::7f00:1": false, "2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false,
	} {
		if got := Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"example.com", "*.a:1", "[::1]:80", "10.0.0.0/8:1", "::/0", "*", ":", "a:b:c", "[", "]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, rule string) {
		r, err := Parse(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{rule}})
		if err != nil {
			return
		}
		if len(r.names)+len(r.nets) != 1 {
			t.Errorf("%q became %+v, want 1 name or network", rule, r)
		}
	})
}
