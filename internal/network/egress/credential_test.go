package egress

import (
	"strings"
	"testing"
)

func TestInvalidCredentials(t *testing.T) {
	t.Parallel()
	good := Credential{Host: "named.test", Header: "X-Key", Value: hidden("v")}
	for what, change := range map[string]func(*Credential){
		"every host":    func(c *Credential) { c.Host = "*" },
		"no host":       func(c *Credential) { c.Host = "" },
		"top level":     func(c *Credential) { c.Host = "*.test" },
		"star within":   func(c *Credential) { c.Host = "a.*.test" },
		"address":       func(c *Credential) { c.Host = "192.0.2.1" },
		"address v6":    func(c *Credential) { c.Host = "[2001:db8::1]:443" },
		"range":         func(c *Credential) { c.Host = "192.0.2.0/24" },
		"number":        func(c *Credential) { c.Host = "127.1" },
		"port 0":        func(c *Credential) { c.Host = "named.test:0" },
		"url":           func(c *Credential) { c.Host = "https://named.test" },
		"no header":     func(c *Credential) { c.Header = "" },
		"odd header":    func(c *Credential) { c.Header = "X Key" },
		"host header":   func(c *Credential) { c.Header = "hOST" },
		"length":        func(c *Credential) { c.Header = "content-length" },
		"encoding":      func(c *Credential) { c.Header = "Transfer-Encoding" },
		"proxy header":  func(c *Credential) { c.Header = "Proxy-Authorization" },
		"no value":      func(c *Credential) { c.Value = nil },
		"empty value":   func(c *Credential) { c.Value = hidden("") },
		"line break":    func(c *Credential) { c.Value = hidden("5f1c9e77a0\r\nX: y") },
		"last newline":  func(c *Credential) { c.Value = hidden("5f1c9e77a0\n") },
		"zero":          func(c *Credential) { c.Value = hidden("5f1c9e77a0\x00") },
		"too long":      func(c *Credential) { c.Value = hidden(strings.Repeat("5f1c9e77a0", 10000)) },
		"space at ends": func(c *Credential) { c.Value = hidden(" 5f1c9e77a0") },
	} {
		c := good
		change(&c)
		err := CheckCredentials([]Credential{c})
		if err == nil || strings.Contains(err.Error(), "5f1c9e77a0") {
			t.Errorf("%s: %v, want an error, Error without \"5f1c9e77a0\"", what, err)
		}
	}
	if err := CheckCredentials([]Credential{good, {Host: "NAMED.test.", Header: "x-key", Value: hidden("w")}}); err == nil {
		t.Error("two values for one header were accepted")
	}
	if err := CheckCredentials(make([]Credential, maxCredentials+1)); err == nil {
		t.Error("too many credentials were accepted")
	}
	if _, err := New(Config{Credentials: []Credential{good}}); err == nil {
		t.Error("credentials without an authority were accepted")
	}
}

func TestMostSpecificCredentialWins(t *testing.T) {
	t.Parallel()
	ks, err := parseCredentials([]Credential{
		{Host: "*.named.test", Header: "A", Value: hidden("far")},
		{Host: "*.b.named.test", Header: "A", Value: hidden("near")},
		{Host: "x.b.named.test", Header: "A", Value: hidden("exact")},
		{Host: "x.b.named.test:443", Header: "A", Value: hidden("port")},
		{Host: "*.named.test", Header: "B", Value: hidden("other")},
		{Host: "x.b.named.test:80", Header: "A", Value: hidden("open"), Insecure: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host   string
		port   int
		secure bool
		want   string
	}{
		{"named.test", 443, true, ""},
		{"a.named.test", 443, true, "A=far B=other"},
		{"evilnamed.test", 443, true, ""},
		{"a.named.test.evil.test", 443, true, ""},
		{"a.named.test", 80, true, ""},
		{"a.named.test", 443, false, ""},
		{"y.b.named.test", 443, true, "A=near B=other"},
		{"x.b.named.test", 443, true, "A=port B=other"},
		{"x.b.named.test", 80, false, "A=open"},
	} {
		var got []string
		for _, k := range ks.match(c.host, c.port, c.secure) {
			got = append(got, k.header+"="+k.value.Reveal())
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v: %s, want %v", c, s, c.want)
		}
	}
}

func FuzzCredentialHost(f *testing.F) {
	for _, s := range []string{"a.b", "*.a.b:8443", "*", "[::1]:2", "*.1.2", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseHost(s)
		if err != nil {
			return
		}
		if clean, err := CleanName(r.name); err != nil || clean != r.name || r.port < 0 || r.port > 65535 {
			t.Errorf("%q became %+v, want clean %v, port at least 0, port at most 65535", s, r, r.name)
		}
	})
}
