package cli

import (
	"cmp"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/spell"
)

// routeInText matches a route that an error names. Servers do not use it, so it is compiled when it is needed.
var routeInText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\b(GET|POST|PUT|PATCH|DELETE) (/[A-Za-z0-9/{}_.\-]*[A-Za-z0-9}])`)
})

// Commands replaces routes in a message with the commands that call them: errors of the server name its routes.
func Commands(program string, table *op.Table, message string) string {
	return routeInText().ReplaceAllStringFunc(message, func(route string) string {
		for _, o := range table.All() {
			if method, path := o.MethodPath(); !o.NoVerb && sameRoute(method+" "+path, route) {
				return program + " " + strings.Join(o.Words(), " ")
			}
		}
		return route
	})
}

// sameRoute compares routes. A parameter matches any segment.
func sameRoute(pattern, route string) bool {
	a, b := strings.Split(pattern, "/"), strings.Split(route, "/")
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && !strings.HasPrefix(a[i], "{") {
			return false
		}
	}
	return true
}

// unknownFlag matches the parser's errors about flags that do not exist.
var unknownFlag = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^unknown flag: --(\S+)|^unknown shorthand flag: '(.)' in -(\S+)`)
})

// FlagError adds the most similar flag, or else the help command, to an error about flags.
func FlagError(cmd *cobra.Command, err error) error {
	msg := err.Error()
	hint := "see " + cmd.CommandPath() + " --help"
	if m := unknownFlag().FindStringSubmatch(msg); m != nil {
		typed := cmp.Or(m[1], m[3]) // -workdir is probably --workdir
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if near := spell.Nearest(typed, names); near != "" && len(typed) > 1 {
			hint = "did you mean --" + near + "?"
		}
	}
	return &Error{ExitUsage, msg + "; " + hint}
}
