//go:build linux

package cove

import (
	"strings"
	"testing"

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
		{"extend b --timeout soon", cli.ExitUsage, "use a number and a unit"},
		{"create --label team=a --name labelled", 0, "labelled\n"},
		{"list -l team=a -o name", 0, "labelled\n"},
		{"rm labelled", 0, "labelled\n"},
	} {
		if out, code := r.runLine(host.Streams{}, strings.Fields(c.line)...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("cove %s: got %d %s, want exit code %d and %q", c.line, code, out, c.code, c.want)
		}
	}
}
