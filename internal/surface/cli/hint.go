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

// fieldInText matches the name of a field. Names of one word are also words of sentences.
var fieldInText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[a-z]+(_[a-z]+)+`) })

// Commands rewrites a message of a server for users of its command line: routes become the commands that call them, and fields
// become flags.
func Commands(program string, table *op.Table, message string) string {
	return flags(table, RouteCommands(program, outline(table), message))
}

// Command is a verb and the route that it calls.
type Command struct{ Route, Words string }

func outline(table *op.Table) (list []Command) {
	for _, o := range table.All() {
		if method, path := o.MethodPath(); !o.NoVerb {
			list = append(list, Command{method + " " + path, strings.Join(o.Words(), " ")})
		}
	}
	return list
}

// WriteCommands lists the commands of a table, one per line, for ReadCommands.
func WriteCommands(table *op.Table) string {
	var b strings.Builder
	for _, c := range outline(table) {
		b.WriteString(c.Route + "\t" + c.Words + "\n")
	}
	return b.String()
}

// ReadCommands reads a list of commands.
func ReadCommands(text string) (list []Command) {
	for line := range strings.Lines(text) {
		if route, words, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			list = append(list, Command{route, words})
		}
	}
	return list
}

// RouteCommands replaces routes in a message with commands. The parameters of a route are the arguments of its command. A message
// can also have the command, and the route behind it in parentheses.
func RouteCommands(program string, list []Command, message string) string {
	var twice []string
	message = routeInText().ReplaceAllStringFunc(message, func(route string) string {
		for _, c := range list {
			if arguments, ok := matchRoute(c.Route, route); ok {
				command := strings.Join(append([]string{program, c.Words}, arguments...), " ")
				twice = append(twice, command+" ("+command+")", command)
				return command
			}
		}
		return route
	})
	return strings.NewReplacer(twice...).Replace(message)
}

// flags replaces the names of fields in a message with flags, unless they are quoted or parts of other words.
func flags(table *op.Table, message string) string {
	at := fieldInText().FindAllStringIndex(message, -1)
	if at == nil {
		return message
	}
	known := map[string]bool{}
	for _, o := range table.All() {
		if o.In() == nil { // a page or a stream
			continue
		}
		for _, f := range o.In().AllFields() {
			known[f.Name] = f.Source != op.Path
		}
	}
	var b strings.Builder
	done := 0
	for _, m := range at {
		word := message[m[0]:m[1]]
		before, after := message[:m[0]], message[m[1]:]
		if !known[word] || strings.ContainsAny(last(before), "\"'`/.-{$_=") || after != "" && strings.ContainsAny(after[:1], "\"'`/{_=") {
			continue
		}
		b.WriteString(message[done:m[0]] + "--" + strings.ReplaceAll(word, "_", "-"))
		done = m[1]
	}
	return b.String() + message[done:]
}

func last(text string) string { return text[max(0, len(text)-1):] }

// matchRoute compares a route with a pattern, whose parameters match any segment. It returns their values, except placeholders.
func matchRoute(pattern, route string) (values []string, ok bool) {
	a, b := strings.Split(pattern, "/"), strings.Split(route, "/")
	if len(a) != len(b) {
		return nil, false
	}
	for i := range a {
		switch {
		case a[i] == b[i] || strings.HasPrefix(b[i], "{") && strings.HasPrefix(a[i], "{"):
		case strings.HasPrefix(a[i], "{"):
			values = append(values, b[i])
		default:
			return nil, false
		}
	}
	return values, true
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
