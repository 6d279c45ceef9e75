package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Proxy is the browser's proxy for outgoing traffic.
type Proxy struct {
	Server  string   // host:port, optionally with http://, https:// or socks5://; empty: no proxy
	Exclude []string // hosts that bypass the proxy: names, *.names, addresses
	Include []string // if not empty, only these hosts use the proxy
}

// direct is the script of a browser without a proxy.
const direct = `function FindProxyForURL(url, host) {
  return "DIRECT";
}
`

// script is the PAC script, or empty without a proxy.
func (p Proxy) script() string {
	directive := p.directive()
	if directive == "" {
		return ""
	}
	list := func(names []string) string {
		b, err := json.Marshal(append([]string{}, names...))
		if err != nil {
			panic(err) // strings can always be encoded
		}
		return string(b)
	}
	return fmt.Sprintf(`function FindProxyForURL(url, host) {
  var exclude = %s, include = %s;
  function listed(names) {
    for (var i = 0; i < names.length; i++) {
      var name = names[i].toLowerCase();
      if (name.substring(0, 2) === "*.") name = name.substring(1);
      if (name === "*" || host === name || shExpMatch(host, name)) return true;
      if (name.charAt(0) === "." && (host === name.substring(1) || dnsDomainIs(host, name))) return true;
    }
    return false;
  }
  host = host.toLowerCase();
  if (host === "localhost" || dnsDomainIs(host, ".localhost")) return "DIRECT";
  if (shExpMatch(host, "127.*") || host === "::1" || host === "[::1]") return "DIRECT";
  if (listed(exclude)) return "DIRECT";
  if (include.length > 0 && !listed(include)) return "DIRECT";
  return %s;
}
`, list(p.Exclude), list(p.Include), quoted(directive))
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string can always be encoded
	}
	return string(b)
}

// directive is the proxy in PAC syntax, which has no credentials.
func (p Proxy) directive() string {
	if p.Server == "" {
		return ""
	}
	text := p.Server
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	host := u.Host
	kind := "PROXY"
	switch u.Scheme {
	case "https":
		kind = "HTTPS"
	case "socks5", "socks5h", "socks":
		kind = "SOCKS5"
	case "socks4":
		kind = "SOCKS"
	}
	if u.Port() == "" {
		host += ":" + map[string]string{"PROXY": "80", "HTTPS": "443"}[kind]
		host = strings.TrimSuffix(host, ":")
	}
	return kind + " " + host
}

// PAC returns the script.
func (s *Service) PAC(context.Context, op.None) (*op.Blob, error) {
	text := s.cfg.Proxy.script()
	if text == "" {
		text = direct
	}
	return &op.Blob{Type: "application/x-ns-proxy-autoconfig", Size: int64(len(text)), Body: io.NopCloser(bytes.NewReader([]byte(text)))}, nil
}
