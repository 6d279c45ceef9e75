package sudo

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func diffOptions(want, got options) string {
	noNil := cmp.Transformer("noNil", func(s []string) []string { return append([]string{}, s...) })
	return cmp.Diff(want, got, cmp.AllowUnexported(options{}), noNil)
}

var ls = []string{"ls"}

// accepted lists command lines with their options.
var accepted = []struct {
	args []string
	want options
}{
	{nil, options{user: "root"}},
	{[]string{"ls"}, options{user: "root", command: ls}},
	{[]string{"ls", "-l", "--", "-u"}, options{user: "root", command: []string{"ls", "-l", "--", "-u"}}},

	// A user and a group, in each form.
	{[]string{"-u", "gem", "ls"}, options{user: "gem", command: ls}},
	{[]string{"-ugem", "ls"}, options{user: "gem", command: ls}},
	{[]string{"--user", "gem", "ls"}, options{user: "gem", command: ls}},
	{[]string{"--user=gem", "ls"}, options{user: "gem", command: ls}},
	{[]string{"-u", "#1000", "ls"}, options{user: "#1000", command: ls}},
	{[]string{"-u", "gem", "-u", "root", "ls"}, options{user: "root", command: ls}},
	{[]string{"-g", "tty", "ls"}, options{user: "root", group: "tty", command: ls}},
	{[]string{"-g#5", "ls"}, options{user: "root", group: "#5", command: ls}},
	{[]string{"-u", "gem", "-g", "tty", "ls"}, options{user: "gem", group: "tty", command: ls}},

	// The environment.
	{[]string{"-H", "ls"}, options{user: "root", setHome: true, command: ls}},
	{[]string{"--set-home", "ls"}, options{user: "root", setHome: true, command: ls}},
	{[]string{"-E", "ls"}, options{user: "root", keepAll: true, command: ls}},
	{[]string{"--preserve-env", "ls"}, options{user: "root", keepAll: true, command: ls}},
	{[]string{"--preserve-env=A,B", "ls"}, options{user: "root", keep: []string{"A", "B"}, command: ls}},
	{[]string{"--preserve-env=A", "--preserve-env=B", "ls"}, options{user: "root", keep: []string{"A", "B"}, command: ls}},
	{[]string{"A=1", "B=", "C=x=y", "ls", "D=2"},
		options{user: "root", set: []string{"A=1", "B=", "C=x=y"}, command: []string{"ls", "D=2"}}},
	{[]string{"-E", "A=1", "ls"}, options{user: "root", keepAll: true, set: []string{"A=1"}, command: ls}},
	{[]string{"A=1"}, options{user: "root", set: []string{"A=1"}}},

	// Options without effect: there is no password and no timestamp.
	{[]string{"-n", "ls"}, options{user: "root", command: ls}},
	{[]string{"-A", "-B", "-S", "-N", "-P", "ls"}, options{user: "root", command: ls}},
	{[]string{"-p", "Password:", "-C", "3", "-T", "5", "-U", "gem", "-r", "role", "-t", "type", "ls"},
		options{user: "root", command: ls}},
	{[]string{"--non-interactive", "--prompt=", "ls"}, options{user: "root", command: ls}},
	{[]string{"-v"}, options{user: "root", nothing: true}},
	{[]string{"-k"}, options{user: "root", nothing: true}},
	{[]string{"-K"}, options{user: "root", nothing: true}},
	{[]string{"-k", "ls"}, options{user: "root", nothing: true, command: ls}},

	// Shells, folders and the rest.
	{[]string{"-i"}, options{user: "root", login: true}},
	{[]string{"-i", "ls", "-l"}, options{user: "root", login: true, command: []string{"ls", "-l"}}},
	{[]string{"-s"}, options{user: "root", shell: true}},
	{[]string{"--shell", "ls"}, options{user: "root", shell: true, command: ls}},
	{[]string{"-b", "ls"}, options{user: "root", background: true, command: ls}},
	{[]string{"-D", "/tmp", "ls"}, options{user: "root", dir: "/tmp", command: ls}},
	{[]string{"--chdir=/tmp", "--chroot=/mnt", "ls"}, options{user: "root", dir: "/tmp", chroot: "/mnt", command: ls}},
	{[]string{"-R/mnt", "ls"}, options{user: "root", chroot: "/mnt", command: ls}},
	{[]string{"-l"}, options{user: "root", list: true}},
	{[]string{"-l", "ls"}, options{user: "root", list: true, command: ls}},
	{[]string{"-h"}, options{user: "root", help: true}},
	{[]string{"--help"}, options{user: "root", help: true}},
	{[]string{"-V"}, options{user: "root", version: true}},

	// Combined short options.
	{[]string{"-nE", "ls"}, options{user: "root", keepAll: true, command: ls}},
	{[]string{"-HEn", "ls"}, options{user: "root", keepAll: true, setHome: true, command: ls}},
	{[]string{"-Hiu", "gem", "ls"}, options{user: "gem", setHome: true, login: true, command: ls}},
	{[]string{"-nugem", "ls"}, options{user: "gem", command: ls}},
	{[]string{"-uni", "ls"}, options{user: "ni", command: ls}}, // the rest is the value

	// The end of options.
	{[]string{"--", "ls"}, options{user: "root", command: ls}},
	{[]string{"-u", "gem", "--", "-x"}, options{user: "gem", command: []string{"-x"}}},
	{[]string{"--", "A=1", "ls"}, options{user: "root", set: []string{"A=1"}, command: ls}},
	{[]string{"A=1", "--", "ls"}, options{user: "root", set: []string{"A=1"}, command: []string{"--", "ls"}}},
	{[]string{"--"}, options{user: "root"}},
	{[]string{"-", "ls"}, options{user: "root", command: []string{"-", "ls"}}},
	{[]string{"-u", "--", "ls"}, options{user: "--", command: ls}}, // a value may begin with a dash
	{[]string{"--user=--", "ls"}, options{user: "--", command: ls}},

	// Empty and hostile arguments.
	{[]string{""}, options{user: "root", command: []string{""}}},
	{[]string{"", "ls"}, options{user: "root", command: []string{"", "ls"}}},
	{[]string{"-u", "", "ls"}, options{command: ls}},
	{[]string{"--user=", "ls"}, options{command: ls}},
	{[]string{"--preserve-env=", "ls"}, options{user: "root", keep: []string{""}, command: ls}},
	{[]string{"=x", "ls"}, options{user: "root", command: []string{"=x", "ls"}}},
	{[]string{"/bin/a=b"}, options{user: "root", command: []string{"/bin/a=b"}}},
	{[]string{"a b=c"}, options{user: "root", command: []string{"a b=c"}}},
	{[]string{"1=2"}, options{user: "root", command: []string{"1=2"}}},
	{[]string{"-u", "root\nroot:x:0:0", "ls"}, options{user: "root\nroot:x:0:0", command: ls}},
	{[]string{"LD_PRELOAD=/x.so", "ls"}, options{user: "root", set: []string{"LD_PRELOAD=/x.so"}, command: ls}},
	{[]string{"$(id)", ";", "id"}, options{user: "root", command: []string{"$(id)", ";", "id"}}},
}

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	for _, c := range accepted {
		got, err := parse(c.args)
		if err != nil {
			t.Errorf("%q: got error %v, want none", c.args, err)
		} else if d := diffOptions(c.want, got); d != "" {
			t.Errorf("%q: %s", c.args, d)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-x", "ls"}, "unknown option -x\n"},
		{[]string{"-nx", "ls"}, "unknown option -x\n"},
		{[]string{"-n-", "ls"}, "unknown option --\n"},
		{[]string{"-n\x00", "ls"}, "unknown option -\x00\n"},
		{[]string{"-é", "ls"}, "unknown option -"},
		{[]string{"--nothing", "ls"}, "unknown option --nothing\n"},
		{[]string{"--us", "gem"}, "unknown option --us\n"}, // no abbreviations
		{[]string{"---", "ls"}, "unknown option ---\n"},
		{[]string{"--=x", "ls"}, "unknown option --\n"},
		{[]string{"--User=gem", "ls"}, "unknown option --User\n"},
		{[]string{"-u"}, "option -u requires a value"},
		{[]string{"-nu"}, "option -u requires a value"},
		{[]string{"-g"}, "option -g requires a value"},
		{[]string{"--user"}, "option --user requires a value"},
		{[]string{"--login=yes", "ls"}, "option --login takes no value"},
		{[]string{"--non-interactive=", "ls"}, "option --non-interactive takes no value"},
	} {
		if _, err := parse(c.args); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.args, err, c.want)
		}
	}
}

// TestEveryOptionIsListed: every short and long option of the table is accepted.
func TestEveryOptionIsListed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for letter, f := range flags() {
		if (f.plain == nil) == (f.value == nil) || f.long == "" || seen[f.long] {
			t.Errorf("-%c: got %+v, want either a plain option or one with a value, and a unique long name", letter, f)
		}
		seen[f.long] = true
		short, long := []string{"-" + string(letter)}, []string{"--" + f.long}
		if f.value != nil {
			short, long = append(short, "v"), append(long, "v")
		}
		a, err1 := parse(short)
		b, err2 := parse(long)
		if err1 != nil || err2 != nil || diffOptions(a, b) != "" {
			t.Errorf("-%c and --%s differ: %v, %v, %s", letter, f.long, err1, err2, diffOptions(a, b))
		}
	}
}

func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"PATH": "/custom:relative:/bin", "HOME": "/home/gem", "SHELL": "/bin/zsh", "TERM": "", "LC_ALL": "C", "LANG": "de",
		"OWN": "1", "OTHER": "2", "LD_PRELOAD": "/x.so", "SUDO_USER": "forged", "https_proxy": "http://proxy",
	} {
		t.Setenv(name, value)
	}
	target := account{name: "root", home: "/root", shell: "/bin/sh"}
	for name, c := range map[string]struct {
		o    options
		want map[string]string
	}{
		"default": {options{}, map[string]string{
			"OWN": "", "LD_PRELOAD": "", "LC_ALL": "C", "https_proxy": "http://proxy", "TERM": "unknown",
			"HOME": "/root", "SHELL": "/bin/sh", "USER": "root", "LOGNAME": "root", "PATH": securePath + ":/custom"}},
		"preserve all": {options{keepAll: true}, map[string]string{
			"OWN": "1", "OTHER": "2", "LD_PRELOAD": "", "HOME": "/home/gem", "SHELL": "/bin/zsh"}},
		"preserve some": {options{keep: []string{"OWN", "LD_PRELOAD"}}, map[string]string{"OWN": "1", "OTHER": "", "LD_PRELOAD": ""}},
		"set home":      {options{keepAll: true, setHome: true}, map[string]string{"HOME": "/root", "SHELL": "/bin/zsh"}},
		"login":         {options{keepAll: true, login: true}, map[string]string{"HOME": "/root", "SHELL": "/bin/sh"}},
		"assignments": {options{set: []string{"OWN=3", "LANG=", "USER=x", "A=b=c"}}, map[string]string{
			"OWN": "3", "LANG": "", "USER": "x", "A": "b=c"}},
	} {
		got := environment(c.o, target)
		for variable, want := range c.want {
			if value := lookup(got, variable); value != want {
				t.Errorf("%s: got %s=%q, want %q", name, variable, value, want)
			}
		}
		if lookup(got, "SUDO_USER") == "forged" {
			t.Errorf("%s: SUDO_USER is the caller's", name)
		}
		names := map[string]bool{}
		for _, pair := range got {
			variable, _, _ := strings.Cut(pair, "=")
			if names[variable] {
				t.Errorf("%s: %s is set twice in %q", name, variable, got)
			}
			names[variable] = true
		}
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"":              nil,
		"ls -l":         {"ls", "-l"},
		`echo a\ b`:     {"echo", "a b"},
		`echo \;\ id`:   {"echo", "; id"},
		`echo $HOME`:    {"echo", "$HOME"},
		"echo \\`id\\`": {"echo", "`id`"},
		`echo \'\"\\é`:  {"echo", `'"\é`},
		"echo ":         {"echo", ""},
	} {
		if got := quote(args); got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}

// FuzzOptions checks that any command line is parsed or refused, always in the same way, and
// that the command is the unchanged end of the arguments.
func FuzzOptions(f *testing.F) {
	for _, args := range [][]string{
		{"ls"}, {"-u", "gem", "--", "-x"}, {"-nugem", "A=1", "ls"}, {"--user=gem", "--preserve-env=A,B"}, {"-Hiu"}, {"", "-"}, {"---"}, {"-\xff"},
	} {
		f.Add(strings.Join(args, "\x00"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		before := slices.Clone(args)
		o, err := parse(args)
		again, err2 := parse(args)
		if (err == nil) != (err2 == nil) || err == nil && !reflect.DeepEqual(o, again) {
			t.Fatalf("%q: got %+v, %v and then %+v, %v", args, o, err, again, err2)
		}
		if !slices.Equal(args, before) {
			t.Fatalf("%q was changed to %q", before, args)
		}
		if err != nil {
			return
		}
		if n := len(args) - len(o.command); n < 0 || !slices.Equal(args[n:], o.command) {
			t.Errorf("%q: the command %q is not the end of the arguments", args, o.command)
		} else if n == 0 && len(args[0]) > 1 && args[0][0] == '-' {
			t.Errorf("%q: the option %q is the command", args, args[0])
		}
		for _, pair := range o.set {
			if !isAssignment(pair) || !slices.Contains(args, pair) {
				t.Errorf("%q: %q is not an assignment of the command line", args, pair)
			}
		}
	})
}
