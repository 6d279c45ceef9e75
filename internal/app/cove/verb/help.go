package verb

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// groups are the verbs by purpose, in the order of the help.
var groups = []struct{ id, title, verbs string }{
	{"sandbox", "Sandboxes:", "create run list get describe wait start stop restart pause resume extend rename rm undelete deletions"},
	{"inside", "In a sandbox:", "exec shell cp logs open port-forward ports top stats metrics processes signal events history search " +
		"activity glance network egress share"},
	{"disk", "Disks:", "build template snapshot rollback fork diff export volume image"},
	{"project", "Projects:", "up down"},
	{"account", "Hubs and credentials:", "login logout context auth secret key usage info environments watch attention record " +
		"audit health docs mcp"},
	{"machine", "This machine:", "hub doctor examine config tls backup restore bug-report version completion help"},
}

// examples of verbs of the table.
var examples = map[string]string{
	"create":          "cove create\ncove create a --image debian:12 --memory-limit 2Gi --timeout 2h -l team=data",
	"list":            "cove list\ncove list -l team=data -o wide\ncove list --jq '.[].name'\ncove list -o jsonpath='{.items[*].name}'",
	"get":             "cove get a -o yaml\ncove get a -o jsonpath='{.status}'",
	"rm":              "cove rm a b\ncove rm -f a\ncove rm --all",
	"logs":            "cove logs a\ncove logs -f --tail 20 a",
	"fork":            "cove fork a b              # b is a copy of a\ncove fork a --count 3",
	"rename":          "cove rename a b",
	"extend":          "cove extend a --timeout 2h",
	"stop":            "cove stop a b",
	"start":           "cove start a",
	"pause":           "cove pause a",
	"resume":          "cove resume a",
	"rollback":        "cove rollback a ready",
	"diff":            "cove diff a",
	"export":          "cove export a -o a.tar",
	"stats":           "cove stats\ncove stats a -o json",
	"watch":           "cove watch",
	"usage":           "cove usage",
	"events":          "cove events a",
	"network set":     "cove network set a --mode allow --allow pypi.org",
	"network create":  "cove network create team",
	"network join":    "cove network join team db   # others reach it as db:5432",
	"egress allow":    "cove egress allow a pypi.org '*.pythonhosted.org'\ncove egress allow a example.com --once",
	"egress ask":      "cove egress ask a",
	"egress pending":  "cove egress pending a",
	"egress deny":     "cove egress deny a example.com",
	"egress learn":    "cove egress learn a --minutes 30m --allow-all",
	"egress finish":   "cove egress finish a --apply",
	"snapshot create": "cove snapshot create a ready",
	"share create":    "cove share create a --minutes 30m --read-only",
	"volume create":   "cove volume create data",
	"image import":    "cove image import tools tools.tar",
	"secret set":      "echo sk-example | cove secret set model --mode broker --host api.example.com",
	"key add":         "cove key add ann --role user --days 90",
	"up":              "cove up -f cove.yaml",
	"down":            "cove down",
	"shell":           "cove shell a",
	"open":            "cove open a\ncove open a --port 3000",
	"restart":         "cove restart a",
	"describe":        "cove describe a",
	"doctor":          "cove doctor\nsudo cove doctor --fix",
	"hub":             "sudo cove hub\ncove hub --listen 127.0.0.1:10001",
	"login":           "cove login https://hub.example.com",
}

// Units are the fields that are durations.
var Units = map[string]cli.Unit{"timeout": {Size: time.Minute}, "idle_timeout": {Size: time.Minute},
	"minutes": {Size: time.Minute, Named: true}, "days": {Size: 24 * time.Hour, Named: true}}

// flagNames are the names of flags that have another name in the API, which stays valid.
var flagNames = map[string]string{"labels": "label", "secrets": "secret", "volumes": "volume", "ports": "port", "networks": "join"}

// Organize gives verbs groups and examples, and flags one name for each concept.
func Organize(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for name := range strings.FieldsSeq(g.verbs) {
			if cmd, _, err := root.Find([]string{name}); err == nil && cmd != root {
				cmd.GroupID = g.id
			}
		}
	}
	for words, example := range examples {
		if cmd, _, err := root.Find(strings.Fields(words)); err == nil && cmd.Example == "" && example != "" {
			cmd.Example = "  " + strings.ReplaceAll(example, "\n", "\n  ")
		}
	}
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if better := flagNames[name]; better != "" {
			name = better
		}
		return pflag.NormalizedName(name)
	})
}
