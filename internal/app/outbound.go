package app

import (
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"

	"github.com/cove-sandbox/cove/internal/config"
)

// outbound says which proxy a request of ours goes through: the configured one,
// unless the host is excluded, or others are included and it is not.
func outbound(cfg config.Aio) func(*http.Request) (*url.URL, error) {
	if cfg.ProxyServer == "" {
		return nil
	}
	server := cfg.ProxyServer
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	upstream, err := url.Parse(server)
	return func(r *http.Request) (*url.URL, error) {
		if err != nil {
			return nil, err
		}
		host := r.URL.Hostname()
		if matches(cfg.ProxyExclude, host) || len(cfg.ProxyInclude) > 0 && !matches(cfg.ProxyInclude, host) {
			return nil, nil
		}
		return upstream, nil
	}
}

// matches holds a host against names such as example.com (with all below it),
// *.example.com and .example.com.
func matches(patterns []string, host string) bool {
	for _, p := range patterns {
		bare := strings.TrimPrefix(p, ".")
		if ok, err := path.Match(p, host); err == nil && ok || host == bare || strings.HasSuffix(host, "."+bare) {
			return true
		}
	}
	return false
}

// ownAddress tells the sandbox's own server, which a page that is fetched for a
// caller must not reach.
func ownAddress(cfg config.Aio) func(netip.AddrPort) bool {
	own, err := netip.ParseAddrPort(strings.Replace(cfg.Listen, "localhost", "127.0.0.1", 1))
	return func(to netip.AddrPort) bool {
		return err == nil && own.Port() != 0 && to.Port() == own.Port() && (to.Addr().IsLoopback() || to.Addr().IsUnspecified() || to.Addr() == own.Addr())
	}
}
