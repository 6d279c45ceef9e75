package shell

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// situation is a command in a new session, and its result.
type situation struct {
	name   string
	before []string // run first; their output is ignored
	run    string
	want   string // the output; after a ~ a regular expression
	code   int
	status string // completed when empty
}

// Commands of several lines.
const (
	heredoc = "cat <<EOF\n$((1+1))\n  two\nEOF\necho after"
	script  = "f() {\n\techo \"in f: $1\"\n}\nfor i in a b; do\n\tf $i\ndone\n"
)

func situations() []situation {
	return slices.Concat(simpleSituations(), syntaxSituations(), characterSituations(), screenSituations(),
		stateSituations(), optionSituations(), exitSituations(), signalSituations(),
		trapSituations(), jobSituations(), promptSituations(), terminalSituations(), longSituations())
}

func simpleSituations() []situation {
	return []situation{
		{name: "a word", run: "echo hi", want: "hi"},
		{name: "no newline", run: "printf abc", want: "abc"},
		{name: "nothing", run: "true"},
		{name: "empty", run: ""},
		{name: "blank", run: " \n\t\n"},
		{name: "fails", run: "false", code: 1},
		{name: "code", run: "(exit 42)", code: 42},
		{name: "code of the last", before: []string{"(exit 5)"}, run: "echo $?", want: "5"},
		{name: "both streams", run: "echo out; echo err >&2", want: "out\nerr"},
		{name: "blank lines", run: `printf '\n\na\n\n\n'`, want: "\n\na"},
		{name: "killed by a signal", run: "sh -c 'kill -9 $$'", want: "Killed", code: 137},
		{name: "not found", run: "unset -f command_not_found_handle; nosuchcommand", want: "bash: nosuchcommand: command not found", code: 127},
		{name: "pipe", run: "yes | head -2", want: "y\ny"},
		{name: "process substitution", run: "cat <(echo hi)", want: "hi"},
	}
}

func syntaxSituations() []situation {
	return []situation{
		{name: "lines", run: script, want: "in f: a\nin f: b"},
		{name: "here-document", run: heredoc, want: "2\n  two\nafter"},
		{name: "here-document without its end", run: "cat <<EOF\nabc",
			want: "~bash: warning: here-document at line \\d+ delimited by end-of-file \\(wanted `EOF'\\)\nabc"},
		{name: "here-string", run: "cat <<<'a  b'", want: "a  b"},
		{name: "comment", run: "# nothing but this"},
		{name: "comment after", run: "echo a # echo b", want: "a"},
		{name: "comment between", run: "echo a\n# echo b\necho c", want: "a\nc"},
		{name: "open double quote", run: `echo "x`, want: "bash: unexpected EOF while looking for matching `\"'", code: 2},
		{name: "open single quote", run: `echo 'x`, want: "bash: unexpected EOF while looking for matching `''", code: 2},
		{name: "open backquote", run: "echo `x", want: "bash: unexpected EOF while looking for matching ``'", code: 2},
		{name: "open substitution", run: "echo $(ls", want: "bash: unexpected EOF while looking for matching `)'", code: 1},
		{name: "open brace", run: "{ echo a", want: "bash: syntax error: unexpected end of file", code: 2},
		{name: "open if", run: "if true; then echo a", want: "bash: syntax error: unexpected end of file", code: 2},
		{name: "stray parenthesis", run: "echo )", want: "bash: syntax error near unexpected token `)'", code: 2},
		{name: "after an open quote", before: []string{`echo "x`}, run: "if true; then { echo fine; }; fi", want: "fine"},
		{name: "trailing backslash", run: `echo a \`, want: `a \`},
		{name: "trailing pipe", run: "echo a |", want: "bash: syntax error: unexpected end of file", code: 2},
		{name: "first line good, second bad", run: "echo a\necho )", want: "a\nbash: syntax error near unexpected token `)'", code: 2},
	}
}

func characterSituations() []situation {
	return []situation{
		{name: "no history expansion", run: `echo "hi! !!"`, want: "hi! !!"},
		{name: "no completion", run: "echo a\tb\t\tc", want: "a b c"},
		{name: "UTF-8", run: "echo 'Grüße 世界 👩‍💻'", want: "Grüße 世界 👩‍💻"},
		{name: "control characters in the command", run: "printf %s '\x01\x02\x04\x1b\x7f\x80' | od -An -tx1", want: " 01 02 04 1b 7f 80"},
		{name: "carriage returns in the command", run: "echo a;\recho b", want: "a\nbash: $'\\recho': command not found", code: 127},
	}
}

func screenSituations() []situation {
	return []situation{
		{name: "progress", run: `printf '10%%\r50%%\r100%%\ndone\n'`, want: "100%\ndone"},
		{name: "backspace", run: `printf 'abc\b\bX\n'`, want: "aXc"},
		{name: "erase", run: `printf 'working...\r\e[Kok\n'`, want: "ok"},
		{name: "two-line progress", run: `printf 'a 1\nb 1\n\e[2Aa 2\nb 2\n'`, want: "a 2\nb 2"},
		{name: "colors", run: `printf '\e[1;31mred\e[0m\n'`, want: "red"},
		{name: "clear", run: "echo removed; clear; echo kept", want: "kept"},
		{name: "alternate screen", run: `printf 'a\n\e[?1049hhidden\e[?1049lb\n'`, want: "a\nb"},
		{name: "alternate screen left on", run: `printf 'a\n\e[?1049hhidden'`, want: "a"},
		{name: "after the alternate screen was left on", before: []string{`printf '\e[?1049hhidden'`}, run: "echo b", want: "b"},
		{name: "title", run: `printf 'a\e]0;title\ab\n'`, want: "ab"},
		{name: "title without its end", run: `printf 'a\e]0;title'`, want: "a"},
		{name: "after a title without its end", before: []string{`printf 'a\e]0;title'`}, run: "echo b", want: "b"},
		{name: "after a string without its end", before: []string{`printf 'a\eP1;2q'`}, run: "echo b", want: "b"},
		{name: "after a sequence without its end", before: []string{`printf 'a\e[12'`}, run: "echo b", want: "b"},
		{name: "after an escape", before: []string{`printf '\e'`}, run: "echo b", want: "b"},
		{name: "after line drawing was left on", before: []string{`printf '\e(0'`}, run: "echo q", want: "q"},
		{name: "half a character", run: `printf 'a\xe4\xb8'`, want: "a\ufffd"},
		{name: "NUL", run: `printf 'a\0b\0\0c\n'`, want: "abc"},
		{name: "not UTF-8", run: `printf 'a\xff\xfeb\n'`, want: "a\ufffd\ufffdb"},
		{name: "binary", run: "head -c 100000 /dev/urandom | tr -d '\\033\\232-\\237'; printf '\\033c'; echo end", want: "end"},
		{name: "longer than the screen is wide", run: "printf '%0500d\\n' 7", want: strings.Repeat("0", 499) + "7"},
		{name: "more lines than the screen has", run: "seq 200", want: numbers(200)},
	}
}

func stateSituations() []situation {
	return []situation{
		{name: "variables stay", before: []string{"x=1; export y=2"}, run: "echo $x $y; sh -c 'echo $x-$y'", want: "1 2\n-2"},
		{name: "directory stays", before: []string{"cd /usr/bin"}, run: "pwd; cd -", want: "~/usr/bin\n/.*/work"},
		{name: "functions stay", before: []string{"f() { echo f$1; }"}, run: "f 1", want: "f1"},
		{name: "aliases stay", before: []string{"alias say='echo said'"}, run: "say it", want: "said it"},
		{name: "alias on the next line", run: "alias say='echo said'\nsay it", want: "said it"},
		{name: "declare is global", before: []string{"declare -A m=([k]=v); declare -i n=3"}, run: "echo ${m[k]} $n", want: "v 3"},
		{name: "local and return have no function", run: "local x; return 3",
			want: "bash: local: can only be used in a function\nbash: return: can only `return' from a function or sourced script", code: 2},
		{name: "options stay", before: []string{"shopt -s extglob nullglob; set -o pipefail"},
			run: "false | true; echo $?; echo @(x|y)*", want: "1"},
		{name: "removed directory", before: []string{"mkdir d; cd d; rmdir ../d"}, run: "echo still here", want: "still here"},
		{name: "directory with odd characters", before: []string{"mkdir $'a;b\\n\\ac'; cd $'a;b\\n\\ac'"},
			run: `echo "${PWD##*/}" | od -An -c`, want: `   a   ;   b  \n  \a   c  \n`},
	}
}

func optionSituations() []situation {
	return []situation{
		{name: "set -e without a failure", before: []string{"set -e"}, run: "true; echo ok; if false; then :; fi", want: "ok"},
		{name: "set -e ends the shell", before: []string{"set -e"}, run: "false; echo not reached", code: 1, status: terminated},
		{name: "set -e in the command ends the shell", run: "set -euo pipefail\necho a\nfalse | true\necho b",
			want: "a", code: 1, status: terminated},
		{name: "after set -e ended the shell", before: []string{"x=1; set -e; false"}, run: "echo \"x is '$x'\"", want: "x is ''"},
		{name: "set -u", run: "set -u; echo $nope; echo not reached", want: "bash: nope: unbound variable", code: 1},
		{name: "after set -u", before: []string{"set -u"}, run: "echo fine", want: "fine"},
		{name: "set -x", before: []string{"set -x"}, run: "echo a", want: "++ echo a\na"},
		{name: "after set -x", before: []string{"set -x", "set +x"}, run: "echo a", want: "a"},
		{name: "set -v", before: []string{"set -v"}, run: "echo a", want: "echo a\na"},
		{name: "set -f, IFS, posix, noclobber", before: []string{"set -f; IFS=e; set -o posix; set -C"},
			run: "echo *; x=aeb; echo $x", want: "*\na b"},
		{name: "set -a exports no internal variable", before: []string{"set -a", "true"}, run: "env | grep -ci __cove", want: "0", code: 1},
		{name: "children do not see the key", run: "env | grep -ci __cove; bash -c 'set' | grep -c '^__cove'", want: "0\n0", code: 1},
	}
}

func exitSituations() []situation {
	return []situation{
		{name: "exec", run: "exec sh -c 'echo last; exit 7'", want: "last", code: 7, status: terminated},
		{name: "exec of nothing", run: "exec nosuchcommand", want: "bash: exec: nosuchcommand: not found", code: 127},
		{name: "exec of output", run: "exec >/dev/null; echo lost"},
		{name: "after exec of errors", before: []string{"exec 2>/dev/null"}, run: "echo seen; ls /nosuch", want: "seen", code: 2},
		{name: "exec of input", run: "exec </dev/null"},
		{name: "exit", run: "exit 3", want: "exit", code: 3, status: terminated},
		{name: "exit in the middle", run: "echo a; exit; echo b", want: "a\nexit", status: terminated},
		{name: "exit with a trap", before: []string{"trap 'echo bye $?' EXIT"}, run: "exit 4", want: "exit\nbye 4", code: 4, status: terminated},
		{name: "exit with a job", before: []string{"sleep 300 &"}, run: "exit 5", want: "exit", code: 5, status: terminated},
		{name: "exit with a stopped job", before: []string{"sleep 300 & kill -STOP %1; wait %1"}, run: "exit",
			want: "exit\nThere are stopped jobs.", code: 1},
		{name: "subshell exits", run: "(exit 3); echo $?; bash -c 'exit 4'; echo $?", want: "3\n4"},
		{name: "logout", run: "logout", want: "bash: logout: not login shell: use `exit'", code: 1},
	}
}

func signalSituations() []situation {
	return []situation{
		{name: "shell killed", run: "kill -9 $$", code: 137, status: terminated},
		{name: "shell hung up", run: "kill -HUP $$; sleep 300", code: 129, status: terminated},
		{name: "shell ignores TERM", run: "kill -TERM $$; echo ignored", want: "ignored"},
		{name: "shell interrupted", run: "kill -INT $$; echo not reached", code: 130},
		{name: "shell's parent", run: "kill -0 $PPID && echo alive", want: "alive"},
	}
}

func trapSituations() []situation {
	return []situation{
		{name: "trap of a signal", run: "trap 'echo got it' USR1; kill -USR1 $$; echo after", want: "got it\nafter"},
		{name: "trap of errors", before: []string{"trap 'echo failed' ERR"}, run: "true; false; true", want: "failed"},
		{name: "trap of errors, last", before: []string{"trap 'echo failed' ERR"}, run: "false", want: "failed", code: 1},
		{name: "silent trap of commands", before: []string{"trap : DEBUG"}, run: "echo a", want: "a"},
		{name: "trap of commands sees the hooks too", before: []string{"trap 'echo D:$BASH_COMMAND' DEBUG"},
			run: "echo a", want: "~(?s).*D:echo a\na\n.*"},
		{name: "trap of interrupts", before: []string{"trap '' INT"}, run: "echo a", want: "a"},
	}
}

func jobSituations() []situation {
	return []situation{
		{name: "job", run: "sleep 300 &", want: `~\[1\] \d+`},
		{name: "job that ends", run: "true & wait $!; echo $?", want: `~\[1\] \d+\n(\[1\]\+  Done +true\n)?0`},
		{name: "job in a subshell", run: "(sleep 300 >/dev/null 2>&1 &)"},
		{name: "job list", before: []string{"sleep 300 &"}, run: "jobs", want: "[1]+  Running                 sleep 300 &"},
		{name: "job stopped and ended", before: []string{"sleep 300 &"}, run: "kill %1; wait %1; echo $?", want: "~(?s).*Terminated.*\n?143"},
		{name: "daemon", run: "setsid sh -c 'sleep 0.01' >/dev/null 2>&1 </dev/null & disown; echo ok", want: `~\[1\] \d+\nok`},
		{name: "coprocess", run: "coproc cat; echo hi >&${COPROC[1]}; read -r x <&${COPROC[0]}; echo $x; kill " +
			"$COPROC_PID; wait $COPROC_PID 2>/dev/null", want: "~(?s)\\[1\\] \\d+\nhi.*", code: 143},
	}
}

func promptSituations() []situation {
	return []situation{
		{name: "prompt changed", before: []string{"PS1='new$ '"}, run: "echo a", want: "a"},
		{name: "prompt of several lines", before: []string{`PS1='\n[\u]\n$(echo sub)\$ '`}, run: "echo a", want: "a"},
		{name: "prompt empty", before: []string{"PS1= PS2= PS0="}, run: "echo a", want: "a"},
		{name: "prompts unset", before: []string{"unset PS1 PS2 PS0 PS4"}, run: "echo a", want: "a"},
		{name: "PS0 prints", before: []string{`PS0='run\n'`}, run: "echo a", want: "a"},
		{name: "PROMPT_COMMAND prints", before: []string{"PROMPT_COMMAND='echo before each'"}, run: "echo a", want: "a"},
		{name: "PROMPT_COMMAND unset", before: []string{"unset PROMPT_COMMAND"}, run: "echo a", want: "a"},
		{name: "PROMPT_COMMAND a new list", before: []string{"PROMPT_COMMAND=(true 'echo x')"}, run: "echo a", want: "a"},
		{name: "PROMPT_COMMAND read-only", before: []string{"PROMPT_COMMAND=(true); readonly PROMPT_COMMAND PS1"}, run: "echo a", want: "a"},
		{name: "PROMPT_COMMAND exported", before: []string{"export PROMPT_COMMAND PS1 PS0"},
			run: "echo a; bash --norc -ic 'echo b'", want: "a\nb"},
		{name: "all hooks removed", before: []string{"unset PROMPT_COMMAND; PS1='$ '; PS2=; PS0="}, run: "echo a", want: "a"},
		{name: "startup file read again", before: []string{". ~/.bashrc"}, run: "echo a", want: "a"},
		{name: "no variables in prompts", before: []string{"shopt -u promptvars"}, run: "echo a", want: "a"},
		{name: "vi keys", before: []string{"set -o vi"}, run: "echo a", want: "a"},
		{name: "no line editor", before: []string{"set +o emacs"}, run: "echo a; echo $-|grep -c i", want: "a\n1"},
		{name: "no history", before: []string{"set +o history", "history -c"}, run: "echo a", want: "a"},
		{name: "history has the commands", before: []string{"history -c", "echo one", "echo two\necho three"},
			run: "history | sed 's/^ *[0-9]* *//'", want: "echo one\necho two\necho three\nhistory | sed 's/^ *[0-9]* *//'"},
		{name: "history keeps no secret", before: []string{"history -c; HISTCONTROL=ignorespace", " echo secret"},
			run: "history | sed 's/^ *[0-9]* *//'", want: "history | sed 's/^ *[0-9]* *//'"},
		{name: "aliases of what hooks use",
			before: []string{"alias eval=false printf=false builtin=false local=false set=false read=false"}, run: "echo a", want: "a"},
		{name: "functions of what hooks use",
			before: []string{"printf() { echo no; }; read() { echo no; }; history() { echo no; }; cd() { echo no; }"}, run: "echo a", want: "a"},
		{name: "no PATH", before: []string{"PATH="}, run: "echo a; unset HOME; cd", want: "a\nbash: cd: HOME not set", code: 1},
		{name: "hook cannot be removed", run: "unset -f __cove", want: "bash: unset: __cove: cannot unset: readonly function", code: 1},
	}
}

func terminalSituations() []situation {
	return []situation{
		{name: "own line in a loop", run: `echo once; for i in 1 2; do \__cove s; \eval "$__cove_c"; done`, want: "once"},
		{name: "no echo", before: []string{"stty -echo"}, run: "echo a", want: "a"},
		{name: "raw terminal", before: []string{"stty raw -echo"}, run: "echo a; echo b", want: "a\nb"},
		{name: "no output processing", before: []string{"stty -opost"}, run: "echo a; echo b", want: "a\nb"},
		{name: "capitals only", before: []string{"stty olcuc iuclc"}, run: "echo a", want: "A"},
		{name: "terminal reset", before: []string{"tput reset"}, run: "echo a", want: "a"},
		{name: "size", run: "stty size; echo $COLUMNS", want: "50 200\n200"},
	}
}

func longSituations() []situation {
	return []situation{
		{name: "long command", run: "x=" + strings.Repeat("abcdefghi ", 100_000)[:1_000_000-1] + "; echo ok ${#x}", want: "~(?s).*", code: -1},
		{name: "long quoted command", run: "x='" + strings.Repeat("Grüße\n", 150_000) + "'; echo ${#x}", want: "900000"},
		{name: "command of many lines", run: strings.Repeat(": line\n", 3000) + "echo $?", want: "0"},
		{name: "nested shell", run: "bash -c 'echo a; exit 3'", want: "a", code: 3},
		{name: "nested interactive shell", run: "bash --norc -ic 'echo a; exit 3'", want: "a\nexit", code: 3},
		{name: "time", run: "TIMEFORMAT=%0lR; time true", want: "0m0s"},
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if i > 1 {
			b.WriteByte('\n')
		}
		b.WriteString(strconv.Itoa(i))
	}
	return b.String()
}

// TestSituations: the output and exit code of any command are exact, and the session is usable
// afterwards.
func TestSituations(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "od", "tput", "stty", "setsid")
	s := newService(t, func(c *Config) { c.MaxSessions = 500 })
	t.Run("all", func(t *testing.T) {
		for _, c := range situations() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.check(t, s)
			})
		}
	})
}

func (c situation) check(t *testing.T, s *Service) {
	for _, text := range c.before {
		run(t, s, c.name, text)
	}
	status := c.status
	if status == "" {
		status = completed
	}
	out := run(t, s, c.name, c.run)
	if pattern, ok := strings.CutPrefix(c.want, "~"); ok {
		if !regexp.MustCompile("^" + pattern + "$").MatchString(*out.Output) {
			t.Errorf("got output %q, want %q", clip(*out.Output, 2000), pattern)
		}
	} else if *out.Output != c.want {
		t.Errorf("got output %q, want %q", clip(*out.Output, 2000), clip(c.want, 2000))
	}
	if out.Status != status || out.ExitCode == nil || *out.ExitCode != c.code && c.code >= 0 {
		t.Errorf("got status %s with %v, want %s with %d", out.Status, out.ExitCode, status, c.code)
	}
	// The output has capitals after "stty olcuc", and more lines from traces and traps.
	again := run(t, s, c.name, "echo $((6*7))-$0")
	if got := strings.ToLower(*again.Output); !strings.Contains(got, "42-bash") && c.name != "exec of output" || again.Status != completed {
		t.Errorf("got %q (%s) afterwards, want 42-bash in it (%s)", *again.Output, again.Status, completed)
	}
	if len(out.Console) != 1 || out.Console[0].Command != c.run || out.Console[0].Output != *out.Output {
		t.Errorf("got records %+v, want 1 record, first command %q and first output %q", out.Console, c.run, *out.Output)
	}
}
