//go:build linux

package cove

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// TestFamiliarVerbs runs verbs and flags that users of docker, kubectl, gh and flyctl expect.
func TestFamiliarVerbs(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"create a", 0, "a\n"},
		{"fork a b", 0, "b\n"},
		{"rename b c", 0, "c\n"},
		{"rename c a", cli.ExitFailed, "a"},
		{"rename c api", cli.ExitUsage, "reserved"},
		{"rename c b", 0, "b\n"},
		{"restart b", 0, "b\n"},
		{"wait b --for=condition=Ready --timeout 30s", 0, "b\n"},
		{"wait nosuch --for deleted", 0, "nosuch\n"},
		{"wait b --for done", cli.ExitUsage, "--for"},
		{"wait b --for stopped --timeout 50ms", cli.ExitFailed, "not stopped within 50ms"},
		{"describe b", 0, "Status:       running"},
		{"top", 0, "1.0 MiB"},
		{"stats", 0, "MEMORY"},
		{"get nosuch", cli.ExitNotFound, "list sandboxes with cove list"},
		{"describe nosuch", cli.ExitNotFound, "list sandboxes with cove list"},
		{"extend b --timeout 90m --idle-timeout 1h", 0, "b\n"},
		{"get b --jq .idle_timeout", 0, "60\n"},
		{"extend b --timeout soon", cli.ExitUsage, "has a number and a unit"},
		{"create --label team=a --name labelled", 0, "labelled\n"},
		{"list -l team=a -o name", 0, "labelled\n"},
		{"rm labelled", 0, "labelled\n"},
	} {
		if out, code := r.runLine(host.Streams{}, strings.Fields(c.line)...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("cove %s: got %d %s, want exit code %d and %q", c.line, code, out, c.code, c.want)
		}
	}
}

// TestTimeoutSyntax: every verb reads timeouts in one syntax. A plain number would be minutes for one and seconds for another.
// (The settings of the hub have their own, which environment variables share.)
func TestTimeoutSyntax(t *testing.T) {
	r := newRig(t, nil)
	if out, code := r.runLine(host.Streams{}, "create", "a"); code != 0 {
		t.Fatalf("got %d %s, want a sandbox", code, out)
	}
	arguments := map[string]string{"create": "", "exec": "a true", "extend": "a", "run": "true", "wait": "a"}
	root, err := Command("0", nil, host.Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, verb := range root.Commands() {
		if verb.GroupID == "machine" {
			continue
		}
		walkTimeouts(verb, func(cmd *cobra.Command, f *pflag.Flag) {
			words := strings.TrimPrefix(cmd.CommandPath(), "cove ")
			rest, known := arguments[words]
			if !known {
				t.Errorf("cove %s --%s: got no arguments to test it with; add them here", words, f.Name)
			}
			tested[words] = true
			for _, text := range []string{"30", "1.5", "-30s", "soon", ""} {
				line := append(strings.Fields(words), append([]string{"--" + f.Name + "=" + text}, strings.Fields(rest)...)...)
				if out, code := r.runLine(host.Streams{}, line...); code != cli.ExitUsage || !strings.Contains(out, "has a number and a unit") {
					t.Errorf("cove %q: got %d %s, want exit code %d and the syntax", line, code, out, cli.ExitUsage)
				}
			}
			for _, text := range []string{"90s", "5m", "2h", "0.5h", "0", "-1"} {
				line := append(strings.Fields(words), append([]string{"--" + f.Name + "=" + text}, strings.Fields(rest)...)...)
				if out, code := r.runLine(host.Streams{}, line...); strings.Contains(out, "has a number and a unit") {
					t.Errorf("cove %q: got %d %s, want the duration accepted", line, code, out)
				}
			}
		})
	}
	if len(tested) != len(arguments) {
		t.Errorf("got verbs with timeouts %v, want all of %v", tested, arguments)
	}
	for text, want := range map[string]string{"90s": "1.5", "2h": "120", "1d": "1440", "-1": "-1"} {
		name := "d" + strings.ToLower(strings.TrimPrefix(text, "-"))
		r.runLine(host.Streams{}, "create", name, "--timeout", text)
		if out, code := r.runLine(host.Streams{}, "get", name, "--jq", ".timeout"); code != 0 || out != want+"\n" {
			t.Errorf("create --timeout %s: got %d %s, want %s minutes", text, code, out, want)
		}
	}
}

func walkTimeouts(cmd *cobra.Command, visit func(*cobra.Command, *pflag.Flag)) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if strings.HasSuffix(f.Name, "timeout") {
			visit(cmd, f)
		}
	})
	for _, sub := range cmd.Commands() {
		walkTimeouts(sub, visit)
	}
}
