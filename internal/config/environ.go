package config

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// environ is an environment by name. If a name occurs twice, the first value is used, as in
// getenv.
type environ map[string]string

func newEnviron(pairs []string) environ {
	e := make(environ, len(pairs))
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if _, dup := e[name]; ok && !dup {
			e[name] = value
		}
	}
	return e
}

// lookup returns a variable; a blank value counts as unset.
func (e environ) lookup(name string) (string, bool) {
	v, ok := e[name]
	return v, ok && strings.TrimSpace(v) != ""
}

// find returns the first of the names that is set. A name that ends in * collects
// every variable with that prefix, by full name.
func (e environ) find(names []string) (string, raw, bool) {
	for _, name := range names {
		prefix, collect := strings.CutSuffix(name, "*")
		if !collect {
			if v, ok := e.lookup(name); ok {
				return name, raw{text: []string{v}}, true
			}
			continue
		}
		pairs := make(map[string]string)
		for k := range e {
			if v, ok := e.lookup(k); ok && strings.HasPrefix(k, prefix) {
				pairs[k] = v
			}
		}
		if len(pairs) > 0 {
			return name, raw{pairs: pairs}, true
		}
	}
	return "", raw{}, false
}

// rejectUnknownVariables reports variables with the program's prefix that are not settings.
// Most of them are typos, which would go unnoticed in a security setting.
func (l *loader) rejectUnknownVariables(env environ, prefix string, ignore []string) {
	if prefix == "" {
		return
	}
	// The path of the file, and settings of the command line.
	known := append([]string{prefix + "CONFIG", prefix + "API_URL", prefix + "SERVER_USERS"}, ignore...)
	for _, f := range l.fields {
		known = append(known, f.Env...)
	}
	injected := sync.OnceValue(func() func(name, value string) bool { return clusterVariable(prefix) })
	for _, name := range sortedKeys(env) {
		if !strings.HasPrefix(name, prefix) || matches(known, name) || injected()(name, env[name]) {
			continue
		}
		l.fault(name, "environment "+name, "unknown variable"+suggest(name, known, ""))
	}
}

// clusterVariable returns a function that recognizes the variables which Kubernetes sets
// in every container for a service whose name starts like the prefix (service "aio":
// AIO_SERVICE_HOST, AIO_PORT=tcp://…). They are not a fault, because no user has set them.
func clusterVariable(prefix string) func(name, value string) bool {
	start := `^` + regexp.QuoteMeta(prefix) + `([A-Z0-9_]+_)?`
	theirs := regexp.MustCompile(start + `(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	maybe := regexp.MustCompile(start + `PORT$`)
	address := regexp.MustCompile(`^(tcp|udp|sctp)://`)
	return func(name, value string) bool {
		return theirs.MatchString(name) || maybe.MatchString(name) && address.MatchString(value)
	}
}

// Scrub returns the environment for a child process, without the variables of dst's secret
// settings.
func Scrub(environ []string, dst any) []string {
	var secret []string
	for _, f := range Fields(dst) {
		if f.Scrub {
			secret = append(secret, f.Env...)
		}
	}
	out := make([]string, 0, len(environ))
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if !matches(secret, name) {
			out = append(out, pair)
		}
	}
	return out
}

// matches reports whether a name is in the list or has a listed prefix (NAME_*).
func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return p == name
	})
}
