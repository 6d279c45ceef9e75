package shell

import (
	"os"
	"testing"
)

// TestLatePrompt: viewers see the prompt and the command even if the shell computes its prompt
// slowly or has no line editor.
func TestLatePrompt(t *testing.T) {
	t.Parallel()
	for name, startup := range map[string]string{
		"slow":            "PS1='$(sleep 0.2)> '",
		"no line editor":  "PS1='> '; set +o emacs",
		"slow, no editor": "PS1='$(sleep 0.2)> '; set +o emacs",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, func(c *Config) {
				if err := os.WriteFile(c.Home+"/.bashrc", []byte(startup), 0o644); err != nil {
					t.Fatal(err)
				}
			})
			wantOutput(t, s, "a", "echo one", "one")
			wantOutput(t, s, "a", "echo two", "two")
			p := connect(t, s, "a")
			p.waitFor("> echo one\r\n")
			p.waitFor("> echo two\r\n")
			p.waitFor("two\r\n")
			if want, got := (Record{">", "echo two", "two"}), view(t, s, "a").Console[1]; got != want {
				t.Errorf("got record %q, want %q", got, want)
			}
		})
	}
}
