package cove

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/app/host"
)

// Every verb is in a group of the help, frequent verbs have an example, and one concept has one flag name.
func TestHelpIsOrganized(t *testing.T) {
	t.Parallel()
	root, err := Command("0", nil, host.Streams{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.GroupID == "" {
			t.Errorf("verb %s has no group; add it to groups in verb/help.go", cmd.Name())
		}
	}
	for _, words := range strings.Split("create,list,rm,logs,fork,exec,run,cp,snapshot create,secret set", ",") {
		if cmd, rest, err := root.Find(strings.Fields(words)); err != nil || len(rest) > 0 || cmd.Example == "" {
			t.Errorf("%s: got error %v, want an example", words, err)
		}
	}
	other := map[string]string{"dir": "workdir", "labels": "label", "secrets": "secret", "volumes": "volume", "ports": "port",
		"networks": "join"}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name := other[f.Name]
			if of := cmd.CommandPath(); name != "" && !f.Hidden && of != "cove tls init" && of != "cove audit verify" { // folders of this machine
				t.Errorf("%s: got --%s, want --%s", of, f.Name, name)
			}
			if f.Name == "timeout" && f.Value.Type() != "duration" {
				t.Errorf("%s --timeout: got type %s, want duration", cmd.CommandPath(), f.Value.Type())
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}
