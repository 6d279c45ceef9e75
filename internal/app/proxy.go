package app

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/proxy"
	"github.com/cove-sandbox/cove/internal/network/relay"
)

// isRouted reports whether programs use the outbound proxy from the start.
func isRouted(c config.Aio) bool { return c.Egress != "" || c.ProxyServer != "" || c.ProxyMap != "" }

// useProxy configures programs of a sandbox to use its outbound proxy, if that is configured.
func useProxy(port *relay.Outlet, cfg config.Aio, environ []string) (config.Aio, []string) {
	if port == nil {
		return cfg, environ
	}
	cfg.Outlet = port.Address()
	if !isRouted(cfg) {
		return cfg, environ
	}
	environ = port.Environ(environ)
	if cfg.ProxyMap == "" {
		return cfg, environ
	}
	// Without trust, plain HTTP still works, and programs report errors for HTTPS.
	trusting, _ := proxy.Trust(cfg.State, environ)
	return cfg, trusting
}

// newProxy returns the outbound proxy. It serves the connections of the port after attach.
func (a *Aio) newProxy(deny func(int) bool) *proxy.Service {
	c := proxy.Config{
		State: a.cfg.State, Runner: a.runner, Deny: deny, Log: a.log,
		Upstream: a.cfg.ProxyServer, Exclude: a.cfg.ProxyExclude, Include: a.cfg.ProxyInclude, Map: a.cfg.ProxyMap,
	}
	if a.port != nil {
		c.Address, c.Environ = a.port.Address, a.port.Env
		if a.port.HasTarget() {
			c.Hub = a.port.Dial
		}
	}
	s := proxy.New(c)
	if isRouted(a.cfg) {
		s.Pointed(a.cfg.ProxyMap != "")
	}
	return s
}

// attach connects the outbound proxy to its port, and writes the files that programs of the sandbox
// need. Programs may start after it.
func (a *Aio) attach() {
	a.prepareFiles()
	if a.port != nil {
		a.port.Handle(a.proxy.ServeConn)
	}
}

// loopbackNames are the hosts that bypass the browser's proxy.
var loopbackNames = []string{"localhost", "*.localhost", "127.*", "::1"}

// browserProxy returns the outbound proxy for the browser. The browser always uses it, so that
// mappings can be added without a restart. If no proxy is configured, it uses SOCKS, so that an
// unknown host is an error of the browser instead of a page.
func (a *Aio) browserProxy() browser.Proxy {
	switch {
	case a.port == nil:
		return browser.Proxy{}
	case isRouted(a.cfg):
		return browser.Proxy{Server: a.port.URL(), Exclude: loopbackNames}
	case len(a.cfg.DNSOverHTTPS) > 0:
		return browser.Proxy{} // the browser must resolve names itself
	}
	return browser.Proxy{Server: "socks5://" + a.port.Address(), Exclude: loopbackNames}
}

// outboundProxy selects the proxy of the server's own requests: the outbound proxy if it is
// configured, except for this machine. It is nil without a proxy.
func outboundProxy(cfg config.Aio) func(*http.Request) (*url.URL, error) {
	if !isRouted(cfg) || cfg.Outlet == "" {
		return nil
	}
	via := &url.URL{Scheme: "http", Host: cfg.Outlet}
	return func(r *http.Request) (*url.URL, error) {
		host := strings.ToLower(r.URL.Hostname())
		if ip, err := netip.ParseAddr(host); host == "localhost" || strings.HasSuffix(host, ".localhost") ||
			err == nil && ip.Unmap().IsLoopback() {
			return nil, nil
		}
		return via, nil
	}
}
