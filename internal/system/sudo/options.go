package sudo

import (
	"fmt"
	"slices"
	"strings"
)

const usage = `usage: sudo [-bEHinSs] [-u user] [-g group] [-D directory] [-R directory] [VAR=value] [--] command [argument ...]
       sudo -i|-s [command]
       sudo -l|-v|-k|-K|-V|-h`

// options is the parsed command line.
type options struct {
	user, group, dir, chroot string
	login, shell, background bool
	keepAll, setHome, list   bool
	help, version            bool
	nothing                  bool     // -v, -k, -K: there are no credentials to handle
	keep                     []string // names of --preserve-env
	set                      []string // VAR=value
	command                  []string
}

// flag is the effect of an option. Either plain or value is set.
type flag struct {
	long  string
	plain func(*options)
	value func(*options, string)
}

func ignore(*options) {}

func ignoreValue(*options, string) {}

// flags returns all options by letter.
func flags() map[byte]flag {
	return map[byte]flag{
		'A': {"askpass", ignore, nil}, 'B': {"bell", ignore, nil}, 'n': {"non-interactive", ignore, nil}, 'S': {"stdin", ignore, nil},
		'N': {"no-update", ignore, nil}, 'P': {"preserve-groups", ignore, nil},
		'b': {"background", func(o *options) { o.background = true }, nil},
		'E': {"preserve-env", func(o *options) { o.keepAll = true }, nil},
		'H': {"set-home", func(o *options) { o.setHome = true }, nil},
		'i': {"login", func(o *options) { o.login = true }, nil},
		's': {"shell", func(o *options) { o.shell = true }, nil},
		'l': {"list", func(o *options) { o.list = true }, nil},
		'K': {"remove-timestamp", func(o *options) { o.nothing = true }, nil},
		'k': {"reset-timestamp", func(o *options) { o.nothing = true }, nil},
		'v': {"validate", func(o *options) { o.nothing = true }, nil},
		'h': {"help", func(o *options) { o.help = true }, nil},
		'V': {"version", func(o *options) { o.version = true }, nil},
		'C': {"close-from", nil, ignoreValue}, 'p': {"prompt", nil, ignoreValue}, 'r': {"role", nil, ignoreValue},
		't': {"type", nil, ignoreValue},
		'T': {"command-timeout", nil, ignoreValue}, 'U': {"other-user", nil, ignoreValue},
		'u': {"user", nil, func(o *options, v string) { o.user = v }},
		'g': {"group", nil, func(o *options, v string) { o.group = v }},
		'D': {"chdir", nil, func(o *options, v string) { o.dir = v }},
		'R': {"chroot", nil, func(o *options, v string) { o.chroot = v }},
	}
}

// parse reads the command line. Options end at -- or at the first argument that is not an option;
// assignments of variables and the command follow.
func parse(args []string) (options, error) {
	o := options{user: "root"}
	all := flags()
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		rest, err := o.parseOne(all, arg, args)
		if err != nil {
			return o, err
		}
		args = rest
	}
	for len(args) > 0 && isAssignment(args[0]) {
		o.set = append(o.set, args[0])
		args = args[1:]
	}
	o.command = args
	return o, nil
}

// parseOne handles one argument of options, and returns the arguments after it and its value.
func (o *options) parseOne(all map[byte]flag, arg string, rest []string) ([]string, error) {
	if long, ok := strings.CutPrefix(arg, "--"); ok {
		return o.parseLong(all, long, rest)
	}
	for i := 1; i < len(arg); i++ {
		f, ok := all[arg[i]]
		switch {
		case !ok:
			return nil, fmt.Errorf("unknown option -%c\n%s", arg[i], usage)
		case f.plain != nil:
			f.plain(o)
			continue
		case i+1 < len(arg):
			f.value(o, arg[i+1:])
			return rest, nil
		case len(rest) == 0:
			return nil, fmt.Errorf("option -%c requires a value", arg[i])
		}
		f.value(o, rest[0])
		return rest[1:], nil
	}
	return rest, nil
}

func (o *options) parseLong(all map[byte]flag, long string, rest []string) ([]string, error) {
	name, value, given := strings.Cut(long, "=")
	for _, f := range all {
		switch {
		case f.long != name:
			continue
		case name == "preserve-env" && given:
			o.keep = append(o.keep, strings.Split(value, ",")...)
		case f.plain != nil && given:
			return nil, fmt.Errorf("option --%s takes no value", name)
		case f.plain != nil:
			f.plain(o)
		case given:
			f.value(o, value)
		case len(rest) == 0:
			return nil, fmt.Errorf("option --%s requires a value", name)
		default:
			f.value(o, rest[0])
			return rest[1:], nil
		}
		return rest, nil
	}
	return nil, fmt.Errorf("unknown option --%s\n%s", name, usage)
}

// isAssignment reports whether an argument sets a variable.
func isAssignment(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	return ok && name != "" && !strings.ContainsAny(name, "/ ") && !slices.Contains([]byte("0123456789"), name[0])
}
