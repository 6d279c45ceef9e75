package relay

import (
	"slices"
	"strings"
)

// noProxy lists the hosts that programs reach without a proxy: the sandbox itself. Programs understand different forms, so
// it contains all of them.
const noProxy = "localhost,.localhost,127.0.0.1,127.0.0.0/8,::1,[::1]"

// Env returns the environment variables that point programs to the relay. It is empty if the relay does not listen. Without
// any configuration file they work for
//
//   - curl and git (libcurl): http_proxy, https_proxy, all_proxy, no_proxy; curl
//     ignores HTTP_PROXY, because a web server may have set it from a header
//   - pip, Python's requests, httpx and urllib: the same in either case
//   - npm, and yarn 1: https_proxy, http_proxy, no_proxy in either case
//   - fetch and http of Node 22.21, 24.5 and later: the same, if NODE_USE_ENV_PROXY is set
//   - apt: http_proxy, https_proxy and no_proxy in lower case; under sudo only if sudo
//     keeps these variables
//   - wget, Go, cargo: lower case, or either
//
// Chromium reads the environment only on some desktops; it gets the URL as a switch. all_proxy is an HTTP URL, although the
// proxy supports SOCKS5 too: Python's httpx fails with a SOCKS proxy unless an extra package is installed.
func (r *Relay) Env() []string {
	url := r.URL()
	if url == "" {
		return nil
	}
	var env []string
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"="+url, strings.ToUpper(name)+"="+url)
	}
	return append(env, "no_proxy="+noProxy, "NO_PROXY="+noProxy, "NODE_USE_ENV_PROXY=1")
}

// Environ adds Env to an environment. It keeps an existing proxy, which must run inside the sandbox to be reachable, and the
// hosts of an existing no_proxy.
func (r *Relay) Environ(base []string) []string {
	env := r.Env()
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
