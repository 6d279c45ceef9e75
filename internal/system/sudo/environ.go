package sudo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// securePath begins the PATH of a command; the caller's other folders follow.
const securePath = "/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// kept lists the variables that a command keeps without -E: terminal, language and
// network. Names that end in * are prefixes.
var kept = []string{
	"TERM", "COLORTERM", "COLORS", "LS_COLORS", "LANG", "LANGUAGE", "LC_*", "TZ", "DISPLAY", "XAUTHORITY", "DEBIAN_FRONTEND",
	"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
	"NODE_USE_ENV_PROXY", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
	"PIP_BREAK_SYSTEM_PACKAGES", "AIO_API_URL",
}

// environment returns the environment of the command.
func environment(o options, target account) []string {
	var env []string
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		loader := strings.HasPrefix(name, "LD_")
		if (o.keepAll && !loader && !strings.HasPrefix(name, "SUDO_")) || matches(kept, name) || slices.Contains(o.keep, name) && !loader {
			env = append(env, pair)
		}
	}
	set := func(name, value string) { env = put(env, name, value) }
	path := filepath.SplitList(securePath)
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) && !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	set("PATH", strings.Join(path, ":"))
	if lookup(env, "HOME") == "" || o.setHome || o.login {
		set("HOME", target.home)
	}
	set("USER", target.name)
	set("LOGNAME", target.name)
	if lookup(env, "SHELL") == "" || o.login {
		set("SHELL", target.shell)
	}
	if lookup(env, "TERM") == "" {
		set("TERM", "unknown")
	}
	caller, err := findUser(fmt.Sprintf("#%d", os.Getuid()))
	if err != nil {
		caller.name = "unknown"
	}
	set("SUDO_USER", caller.name)
	set("SUDO_UID", fmt.Sprint(os.Getuid()))
	set("SUDO_GID", fmt.Sprint(os.Getgid()))
	for _, pair := range o.set {
		name, value, _ := strings.Cut(pair, "=")
		set(name, value)
	}
	return env
}

func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(k string) bool {
		prefix, any := strings.CutSuffix(k, "*")
		return k == name || any && strings.HasPrefix(name, prefix)
	})
}

// lookup returns the value of a variable, or "".
func lookup(env []string, name string) string {
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// put sets a variable.
func put(env []string, name, value string) []string {
	for i, pair := range env {
		if strings.HasPrefix(pair, name+"=") {
			env[i] = name + "=" + value
			return env
		}
	}
	return append(env, name+"="+value)
}
