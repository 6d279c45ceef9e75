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

// isRouted reports whether programs use the proxy from the start.
func isRouted(c config.Aio) bool { return c.Egress != "" || c.ProxyServer != "" || c.ProxyMap != "" }

// useProxy points the programs of a sandbox to its proxy, if the proxy is configured.
func useProxy(r *relay.Relay, cfg config.Aio, environ []string) (config.Aio, []string) {
	if r == nil {
		return cfg, environ
	}
	cfg.Outlet = r.Address()
	if !isRouted(cfg) {
		return cfg, environ
	}
	environ = r.Environ(environ)
	if cfg.ProxyMap == "" {
		return cfg, environ
	}
	// If this fails, plain HTTP still works and programs report certificate errors for the rest.
	trusting, _ := proxy.Trust(cfg.State, environ)
	return cfg, trusting
}

// newProxy creates the proxy. After attach, it serves the connections of the relay.
func (a *Aio) newProxy(deny func(int) bool) *proxy.Service {
	c := proxy.Config{
		State: a.cfg.State, Runner: a.runner, Deny: deny, Log: a.log,
		Upstream: a.cfg.ProxyServer, Exclude: a.cfg.ProxyExclude, Include: a.cfg.ProxyInclude, Map: a.cfg.ProxyMap,
	}
	if a.relay != nil {
		c.Address, c.Environ = a.relay.Address, a.relay.Env
		if a.relay.HasTarget() {
			c.Egress = a.relay.Dial
		}
	}
	s := proxy.New(c)
	if isRouted(a.cfg) {
		s.SetPointed(a.cfg.ProxyMap != "")
	}
	return s
}

// attach makes the proxy serve the connections of the relay, and writes the files that programs of the sandbox need. After
// it, programs may start.
func (a *Aio) attach() {
	a.prepareFiles()
	if a.relay != nil {
		a.relay.Handle(a.proxy.ServeConn)
	}
}

// loopbackNames are the hosts that bypass the browser's proxy.
var loopbackNames = []string{"localhost", "*.localhost", "127.*", "::1"}

// browserProxy always points the browser to the proxy, so that mappings that are added later work without a restart. If the
// proxy is not configured, the browser uses SOCKS, so that an unknown host is an error of the browser and not a page.
func (a *Aio) browserProxy() browser.Proxy {
	switch {
	case a.relay == nil:
		return browser.Proxy{}
	case isRouted(a.cfg):
		return browser.Proxy{Server: a.relay.URL(), Exclude: loopbackNames}
	case len(a.cfg.DNSOverHTTPS) > 0:
		return browser.Proxy{} // the browser must resolve names itself
	}
	return browser.Proxy{Server: "socks5://" + a.relay.Address(), Exclude: loopbackNames}
}

// selectProxy returns the proxy for requests of the server itself, but not for requests to this machine. It is nil if the
// proxy is not configured.
func selectProxy(cfg config.Aio) func(*http.Request) (*url.URL, error) {
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
