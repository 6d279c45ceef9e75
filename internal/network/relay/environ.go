package relay

import (
	"slices"
	"strings"
)

// noProxy is what never goes through the outlet: the sandbox itself. Programs
// understand different forms, so it lists all of them.
const noProxy = "localhost,.localhost,127.0.0.1,127.0.0.0/8,::1,[::1]"

// Env is the environment that points programs to the outlet; empty without a
// target. Without any configuration file it works for
//
//   - curl and git (libcurl): http_proxy, https_proxy, all_proxy, no_proxy; curl
//     ignores HTTP_PROXY, since a web server may have set it from a header
//   - pip, Python's requests, httpx and urllib: the same in either case
//   - npm, and yarn 1: https_proxy, http_proxy, no_proxy in either case
//   - Node's own fetch and http, from Node 22.21 and 24.5: the same, once
//     NODE_USE_ENV_PROXY is set
//   - apt: http_proxy, https_proxy and no_proxy in lower case; under sudo only if its
//     rules keep them
//   - wget, Go, cargo: lower case, or either
//
// Chromium reads the environment only on some desktops; it gets the URL as a switch.
// all_proxy is an HTTP URL, although the proxy speaks SOCKS5 too: Python's httpx
// does not start with a SOCKS proxy unless an extra package is installed.
func (o *Outlet) Env() []string {
	url := o.URL()
	if url == "" {
		return nil
	}
	var env []string
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"="+url, strings.ToUpper(name)+"="+url)
	}
	return append(env, "no_proxy="+noProxy, "NO_PROXY="+noProxy, "NODE_USE_ENV_PROXY=1")
}

// Environ adds Env to an environment. It keeps an existing proxy, which must run
// inside the sandbox to be reachable, and the hosts of an existing no_proxy.
func (o *Outlet) Environ(base []string) []string {
	env := o.Env()
	if env == nil {
		return base
	}
	var exceptions []string
	for _, pair := range base {
		name, value, _ := strings.Cut(pair, "=")
		if value == "" {
			continue
		}
		switch strings.ToLower(name) {
		case "http_proxy", "https_proxy", "all_proxy":
			return base
		case "no_proxy":
			exceptions = append(exceptions, value)
		}
	}
	out := slices.DeleteFunc(slices.Clone(base), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.ContainsFunc(env, func(own string) bool { return strings.HasPrefix(own, name+"=") })
	})
	exceptions = slices.Compact(exceptions)
	for _, pair := range env {
		if name, _, _ := strings.Cut(pair, "="); strings.EqualFold(name, "no_proxy") {
			pair = strings.Join(append([]string{pair}, exceptions...), ",")
		}
		out = append(out, pair)
	}
	return out
}
