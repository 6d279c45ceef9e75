package egress

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Credential is a header that the proxy adds to a sandbox's requests to a host,
// so that the sandbox can use a value that it never sees.
//
// It grants no access: the rules decide whether the host may be reached.
type Credential struct {
	// Host is "name" or "*.name" (all its subdomains), followed by ":port" for a
	// port other than 443, or 80 if Insecure is set.
	Host   string
	Header string
	Value  Value
	// Insecure adds the header to plain HTTP requests, too, which are readable
	// on the network.
	Insecure bool
}

// Value is the value of a header. Implementations must not print it.
type Value interface{ Reveal() string }

const (
	maxCredentials = 256
	maxValue       = 64 << 10
)

// framing lists headers that determine how a message is parsed or routed. Setting
// them would break the request or send it elsewhere.
var framing = map[string]bool{
	"Connection": true, "Content-Encoding": true, "Content-Length": true, "Content-Type": true, "Expect": true, "Forwarded": true,
	"Host": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// key is a parsed credential.
type key struct {
	nameRule
	header   string
	value    Value
	insecure bool
}

// keys is the list of credentials of a sandbox.
type keys []*key

// CheckCredentials validates a list of credentials.
func CheckCredentials(list []Credential) error {
	_, err := parseCredentials(list)
	return err
}

func parseCredentials(list []Credential) (keys, error) {
	if len(list) > maxCredentials {
		return nil, fmt.Errorf("too many credentials: %d (limit %d)", len(list), maxCredentials)
	}
	type place struct {
		nameRule
		header string
	}
	seen := map[place]bool{}
	var out keys
	for _, c := range list {
		k, err := c.parse()
		if err != nil {
			return nil, err
		}
		at := place{k.nameRule, k.header}
		if seen[at] {
			return nil, fmt.Errorf("two credentials set the header %q for %q; remove one", k.header, c.Host)
		}
		seen[at] = true
		out = append(out, k)
	}
	return out, nil
}

// parse validates a credential. Its errors never contain the value.
func (c Credential) parse() (*key, error) {
	rule, err := parseHost(c.Host)
	if err != nil {
		return nil, fmt.Errorf("host %.80q: %w", c.Host, err)
	}
	if !httpguts.ValidHeaderFieldName(c.Header) || len(c.Header) > 128 {
		return nil, fmt.Errorf("invalid header name %.80q", c.Header)
	}
	header := http.CanonicalHeaderKey(c.Header)
	if framing[header] || strings.HasPrefix(header, "Proxy-") || strings.HasPrefix(header, "Sec-") {
		return nil, fmt.Errorf("header %q cannot be set because it determines how a request is parsed", header)
	}
	if c.Value == nil {
		return nil, fmt.Errorf("header %q for %q has no value", header, c.Host)
	}
	switch v := c.Value.Reveal(); {
	case v == "" || len(v) > maxValue:
		return nil, fmt.Errorf("the value of header %q for %q has %d bytes; use 1 to %d", header, c.Host, len(v), maxValue)
	case !httpguts.ValidHeaderFieldValue(v) || strings.TrimSpace(v) != v:
		return nil, fmt.Errorf("the value of header %q for %q contains control characters, or leading or trailing "+
			"white space; remove a trailing line break", header, c.Host)
	}
	return &key{rule, header, c.Value, c.Insecure}, nil
}

// parseHost parses the hosts of a credential.
func parseHost(text string) (nameRule, error) {
	host, port, err := splitRule(text)
	if err != nil {
		return nameRule{}, err
	}
	if _, ok := parsePrefix(host); ok {
		return nameRule{}, errors.New("it is an address; use a name, which the host's certificate can prove")
	}
	name, below := strings.CutPrefix(host, "*.")
	if strings.Contains(name, "*") {
		return nameRule{}, errors.New("use a name, or *.name for all its subdomains")
	}
	if name, err = CleanName(name); err != nil {
		return nameRule{}, err
	}
	if below && !strings.Contains(name, ".") {
		return nameRule{}, errors.New("it covers a whole top-level domain; use at least two labels after the star")
	}
	return nameRule{name: name, below: below, port: port}, nil
}

// covers reports whether a credential applies to a host and port, over TLS or not.
func (k *key) covers(host string, port int, secure bool) bool {
	switch {
	case !secure && !k.insecure, k.port != 0 && k.port != port, k.port == 0 && port != standard(secure):
		return false
	case k.below:
		return strings.HasSuffix(host, "."+k.name)
	}
	return host == k.name
}

func standard(secure bool) int {
	if secure {
		return 443
	}
	return 80
}

// match returns the credentials of a request: for each header the one with the
// most specific host.
func (ks keys) match(host string, port int, secure bool) (out keys) {
next:
	for _, k := range ks {
		if !k.covers(host, port, secure) {
			continue
		}
		for i, other := range out {
			if other.header == k.header {
				if k.moreSpecific(other) {
					out[i] = k
				}
				continue next
			}
		}
		out = append(out, k)
	}
	return out
}

// moreSpecific reports whether k is more specific than another credential for the same host: a
// longer name wins, then a port.
func (k *key) moreSpecific(than *key) bool {
	switch {
	case k.below != than.below:
		return than.below
	case len(k.name) != len(than.name):
		return len(k.name) > len(than.name)
	}
	return k.port > than.port
}

// any reports whether there are credentials for a host, with or without TLS.
func (ks keys) any(host string, port int) bool {
	for _, k := range ks {
		if k.covers(host, port, true) || k.covers(host, port, false) {
			return true
		}
	}
	return false
}

// include reports whether ks contains all others unchanged.
func (ks keys) include(others keys) bool {
next:
	for _, o := range others {
		for _, k := range ks {
			if k == o || k.header == o.header && k.value.Reveal() == o.value.Reveal() {
				continue next
			}
		}
		return false
	}
	return true
}

// apply sets the headers. It drops headers of the same name that the sandbox sent,
// also in spellings that servers treat as equal: some read _ as -.
func (ks keys) apply(r *http.Request) {
	for _, k := range ks {
		for _, h := range []http.Header{r.Header, r.Trailer} {
			for name := range h {
				if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), strings.ReplaceAll(k.header, "_", "-")) {
					delete(h, name)
				}
			}
		}
		r.Header.Set(k.header, k.value.Reveal())
	}
}

const redacted = "[redacted]"

// scrub removes the values from headers of a response. Bodies are not searched: the
// host is trusted.
func (ks keys) scrub(h map[string][]string) {
	for _, k := range ks {
		value := k.value.Reveal()
		// Servers may return a token without its scheme.
		word := value[strings.LastIndexByte(value, ' ')+1:]
		for name, list := range h {
			for i, v := range list {
				v = strings.ReplaceAll(v, value, redacted)
				if len(word) >= 8 {
					v = strings.ReplaceAll(v, word, redacted)
				}
				h[name][i] = v
			}
		}
	}
}
