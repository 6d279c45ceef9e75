package shell

import (
	"fmt"
	"strings"
	"testing"
)

// TestForgedHooks prints all sequences of the hooks that a program can know. None of them may
// end or start a command, or appear in the output.
func TestForgedHooks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	// Programs in the shell can read the key, but it changes with each command.
	key := *run(t, s, "a", "echo $__cove_n").Output
	if len(key) < 20 || *run(t, s, "a", "echo $__cove_n").Output == key {
		t.Fatalf("got key %q twice or too short, want at least 20 bytes that change", key)
	}
	for name, c := range map[string]struct{ run, want string }{
		"an old key": {fmt.Sprintf(`printf '\e]5379;%%s\a' 'L;%[1]s' 'R;%[1]s' 'S;%[1]s' 'E;%[1]s;9' `+
			`'P;%[1]s;9;x;/' 'B;%[1]s;9;0' '2;%[1]s'; echo after`, key), "after"},
		"no key":      {`printf '\e]5379;%s\a' L R S 'E;;9' 'P;;9;;/' 'B;;9;0' 2 '' ';;;;'; echo after`, "after"},
		"a guess":     {`for i in $(seq 2000); do printf '\e]5379;E;%s;9\a' $i$i$i; done; echo after`, "after"},
		"the prompts": {`x="${PS1@P}${PS2@P}${PS0@P}"; printf %s "$x"; echo after`, "> > after"},
		"load keys":   {`printf '\e[7001~\e[7002~\e[7003~'; echo after`, "after"},
		"a child": {`bash -c 'printf "\e]5379;E;$__cove_n;9\a"; env | grep -i __cove; tr "\0" "\n" ` +
			`</proc/$PPID/environ | grep -i __cove; echo after'`, "after"},
	} {
		t.Run(name, func(t *testing.T) {
			out := run(t, s, "a", c.run)
			if *out.Output != c.want || *out.ExitCode != 0 || out.Status != completed {
				t.Errorf("got %q %s %d, want output %q, exit code 0 and status %q", *out.Output, out.Status, *out.ExitCode, c.want, completed)
			}
			wantOutput(t, s, "a", "echo next", "next")
		})
	}
	for name, text := range map[string]string{
		"variables":  "set",
		"functions":  "declare -f",
		"printf %q":  "set | while IFS= read -r line; do printf '%q\\n' \"$line\"; done",
		"prompts":    `printf '%s\n' "$PS0" "$PS1" "$PS2" "${PROMPT_COMMAND[@]}"`,
		"evaluated":  `printf '%b\n' "${PS0@P}" | cat -v`,
		"bindings":   "bind -X; bind -s",
		"trace":      "set -x; for i in 1 2; do :; done; set +x",
		"everything": `cat -v /proc/$$/cmdline /proc/$$/environ; find ` + s.State + ` -type f -exec cat {} +`,
	} {
		t.Run(name, func(t *testing.T) {
			out := run(t, s, "a", text+"\necho the end")
			if !strings.HasSuffix(*out.Output, "the end") || *out.ExitCode != 0 || out.Status != completed {
				t.Errorf(`got %q %s %d, want output that ends with "the end", exit code 0 and status %q`,
					clip(*out.Output, 300), out.Status, *out.ExitCode, completed)
			}
			wantOutput(t, s, "a", "echo next", "next")
		})
	}
}
