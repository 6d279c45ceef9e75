//go:build linux

package cove

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
)

// TestMachineVerbsAcceptOnlyTheirSettings checks the help of verbs that read the hub's settings.
func TestMachineVerbsAcceptOnlyTheirSettings(t *testing.T) {
	t.Parallel()
	help := func(verb string) string {
		var out bytes.Buffer
		cmd, err := Command("0.0.0", []string{verb, "--help"}, host.Streams{Out: &out, Err: &out})
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%s --help: %v", verb, err)
		}
		return out.String()
	}
	fields := config.Fields(&config.Cove{})
	for verb, keys := range map[string][]string{
		"backup": backupSettings, "restore": restoreSettings, "doctor": doctorSettings, "bug-report": reportSettings,
	} {
		text := help(verb)
		for _, key := range keys {
			if !slices.ContainsFunc(fields, func(f config.Field) bool { ok, _ := path.Match(key, f.Key); return ok }) {
				t.Errorf("%s: setting %q does not exist", verb, key)
			}
		}
		for _, f := range fields {
			uses := slices.ContainsFunc(keys, func(key string) bool { ok, _ := path.Match(key, f.Key); return ok })
			if got := strings.Contains(text, " --"+f.Flag+" "); got != uses {
				t.Errorf("%s --help: got flag --%s %v, want %v", verb, f.Flag, got, uses)
			}
		}
	}
}
