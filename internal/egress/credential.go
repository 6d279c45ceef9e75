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
// It opens nothing: whether the host may be reached is for the rules to say.
type Credential struct {
	// Host is "name" or "*.name" (all names below it), with ":port" behind it for
	// another port than 443, or 80 where Insecure is set.
	Host   string
	Header string
	Value  Value
	// Insecure adds the header to requests over plain HTTP too, which anybody on
	// the way can read.
	Insecure bool
}

// Value is what a header is set to. Implementations print as something else.
type Value interface{ Reveal() string }

const (
	maxCredentials = 256
	maxValue       = 64 << 10
)

// framing are headers that say how a message is to be read, or to whom it goes.
// A value there would break the request, or lead it elsewhere.
var framing = map[string]bool{
	"Connection": true, "Content-Encoding": true, "Content-Length": true, "Content-Type": true, "Expect": true, "Forwarded": true,
	"Host": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// key is a credential, ready to be used.
type key struct {
	nameRule
	header   string
	value    Value
	insecure bool
}

// keys are the credentials of a sandbox.
type keys []*key

// CheckCredentials says what is wrong with a list of credentials, if anything.
func CheckCredentials(list []Credential) error {
	_, err := parseCredentials(list)
	return err
}

func parseCredentials(list []Credential) (keys, error) {
	if len(list) > maxCredentials {
		return nil, fmt.Errorf("%d credentials are too many; a sandbox can have %d", len(list), maxCredentials)
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
			return nil, fmt.Errorf("two credentials set the header %s for %s; leave one out", k.header, c.Host)
		}
		seen[at] = true
		out = append(out, k)
	}
	return out, nil
}

// parse never puts the value into an error.
func (c Credential) parse() (*key, error) {
	rule, err := parseHost(c.Host)
	if err != nil {
		return nil, fmt.Errorf("host %.80q: %w", c.Host, err)
	}
	if !httpguts.ValidHeaderFieldName(c.Header) || len(c.Header) > 128 {
		return nil, fmt.Errorf("header %.80q is no name of a header", c.Header)
	}
	header := http.CanonicalHeaderKey(c.Header)
	if framing[header] || strings.HasPrefix(header, "Proxy-") || strings.HasPrefix(header, "Sec-") {
		return nil, fmt.Errorf("header %s cannot be set; it decides how a request is read", header)
	}
	if c.Value == nil {
		return nil, fmt.Errorf("header %s for %s has no value", header, c.Host)
	}
	switch v := c.Value.Reveal(); {
	case v == "" || len(v) > maxValue:
		return nil, fmt.Errorf("the value of header %s for %s has %d bytes; use 1 to %d", header, c.Host, len(v), maxValue)
	case !httpguts.ValidHeaderFieldValue(v) || strings.TrimSpace(v) != v:
		return nil, fmt.Errorf("the value of header %s for %s holds control characters or begins or ends with white space; leave off the last line break", header, c.Host)
	}
	return &key{rule, header, c.Value, c.Insecure}, nil
}

// parseHost reads which hosts a credential is for.
func parseHost(text string) (nameRule, error) {
	host, port, err := splitRule(text)
	if err != nil {
		return nameRule{}, err
	}
	if _, ok := parsePrefix(host); ok {
		return nameRule{}, errors.New("it is an address; a credential is for a name, which the host's certificate proves")
	}
	name, below := strings.CutPrefix(host, "*.")
	if strings.Contains(name, "*") {
		return nameRule{}, errors.New("use a name, or *.name for all names below it")
	}
	if name, err = CleanName(name); err != nil {
		return nameRule{}, err
	}
	if below && !strings.Contains(name, ".") {
		return nameRule{}, errors.New("it covers a whole top-level domain; name at least two labels behind the star")
	}
	return nameRule{name, below, port}, nil
}

// covers tells whether a credential is for a host and port, over TLS or not.
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

// match returns what is to be set on a request: of each header the credential
// whose host is the most exact.
func (ks keys) match(host string, port int, secure bool) (out keys) {
next:
	for _, k := range ks {
		if !k.covers(host, port, secure) {
			continue
		}
		for i, other := range out {
			if other.header == k.header {
				if k.closer(other) {
					out[i] = k
				}
				continue next
			}
		}
		out = append(out, k)
	}
	return out
}

// closer orders two credentials that cover the same host: by how exactly they
// name it, then by whether they name its port.
func (k *key) closer(than *key) bool {
	switch {
	case k.below != than.below:
		return than.below
	case len(k.name) != len(than.name):
		return len(k.name) > len(than.name)
	}
	return k.port > than.port
}

// any tells whether a tunnel to a host has to be looked into.
func (ks keys) any(host string, port int) bool {
	for _, k := range ks {
		if k.covers(host, port, true) || k.covers(host, port, false) {
			return true
		}
	}
	return false
}

// include tells whether all of some credentials are still the same.
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

// apply sets the headers. What the sandbox sent under these names is dropped,
// also where a server would take it for the same: some read _ as -.
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

// scrub takes the values out of headers that a server sends back. Servers that
// repeat them in a body are beyond us: the host was named as one to be trusted.
func (ks keys) scrub(h map[string][]string) {
	for _, k := range ks {
		value := k.value.Reveal()
		// Servers repeat a token without the word in front of it, too.
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
