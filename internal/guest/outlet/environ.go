package outlet

import (
	"slices"
	"strings"
)

// own is what is never asked for through the outlet: the sandbox itself. Programs
// differ in what they understand, so each is said in all forms.
const own = "localhost,.localhost,127.0.0.1,127.0.0.0/8,::1,[::1]"

// Env is the environment that tells programs of the outlet; nothing without a
// target. It suffices, without a file anywhere, for
//
//   - curl and git (libcurl): http_proxy, https_proxy, all_proxy, no_proxy; of
//     HTTP_PROXY curl takes no notice, since a web server may have set it from a header
//   - pip, Python's requests, httpx and urllib: the same in either case
//   - npm, and yarn 1: https_proxy, http_proxy, no_proxy in either case
//   - Node's own fetch and http, from Node 22.21 and 24.5: the same, once
//     NODE_USE_ENV_PROXY is set
//   - apt: http_proxy, https_proxy and no_proxy in lower case; under sudo only if its
//     rules keep them
//   - wget, Go, cargo: the lower case, or either
//
// Chromium reads the environment only on some desktops; it gets the URL as a switch.
// all_proxy says HTTP, although the way out speaks SOCKS5 too: Python's httpx refuses
// to start with a SOCKS proxy unless an extra package is installed.
func (o *Outlet) Env() []string {
	url := o.URL()
	if url == "" {
		return nil
	}
	var env []string
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"="+url, strings.ToUpper(name)+"="+url)
	}
	return append(env, "no_proxy="+own, "NO_PROXY="+own, "NODE_USE_ENV_PROXY=1")
}

// Environ adds Env to an environment. Who has set a proxy keeps it: it runs
// inside, or nothing could reach it. Hosts that are excepted stay so.
func (o *Outlet) Environ(base []string) []string {
	env := o.Env()
	if env == nil {
		return base
	}
	var excepted []string
	for _, pair := range base {
		name, value, _ := strings.Cut(pair, "=")
		if value == "" {
			continue
		}
		switch strings.ToLower(name) {
		case "http_proxy", "https_proxy", "all_proxy":
			return base
		case "no_proxy":
			excepted = append(excepted, value)
		}
	}
	out := slices.DeleteFunc(slices.Clone(base), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.ContainsFunc(env, func(own string) bool { return strings.HasPrefix(own, name+"=") })
	})
	excepted = slices.Compact(excepted)
	for _, pair := range env {
		if name, _, _ := strings.Cut(pair, "="); strings.EqualFold(name, "no_proxy") {
			pair = strings.Join(append([]string{pair}, excepted...), ",")
		}
		out = append(out, pair)
	}
	return out
}
