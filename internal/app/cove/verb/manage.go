package verb

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Presets are defaults of verbs of the table, and the names that users who
// know other tools try first.
var Presets = map[string]cli.Preset{
	"sandbox_create":   {Set: map[string]string{"full": "true", "keep": "true"}, Output: "name", Aliases: []string{"new"}},
	"sandbox_fork":     {Output: "name", Aliases: []string{"clone"}},
	"sandbox_list":     {Aliases: []string{"ps"}},
	"sandbox_delete":   {Output: "name", Aliases: []string{"delete", "remove", "destroy"}},
	"sandbox_get":      {Aliases: []string{"inspect", "show", "status"}},
	"sandbox_rename":   {Output: "name"},
	"sandbox_undelete": {Output: "name"},
	"sandbox_pause":    {Output: "name", Aliases: []string{"suspend"}},
	"sandbox_resume":   {Output: "name", Aliases: []string{"unpause"}},
	"sandbox_stop":     {Output: "name"},
	"sandbox_start":    {Output: "name"},
	"sandbox_extend":   {Output: "name"},
	"sandbox_rollback": {Output: "name"},
	"snapshot_create":  {Output: "name"},
	"snapshot_delete":  {Output: "name"},
	"volume_create":    {Output: "name"},
	"volume_delete":    {Output: "name"},
	"network_create":   {Output: "name"},
	"network_delete":   {Output: "name"},
	"network_join":     {Output: "name", Aliases: []string{"connect"}},
	"network_leave":    {Output: "name", Aliases: []string{"disconnect"}},
	"image_import":     {Output: "name"},
	"image_delete":     {Output: "name"},
	"secret_delete":    {Output: "name"},
	"key_revoke":       {Output: "name"},
	"share_revoke":     {Output: "name"},
	"record_delete":    {Output: "name"},
	"sandbox_logs":     {Aliases: []string{"log"}, Raw: true}, // as kubectl logs: programs may use colors
	"hub_environments": {Aliases: []string{"envs"}},
}

// find returns a verb of the table, which must exist.
func find(root *cobra.Command, words ...string) *cobra.Command {
	cmd, _, err := root.Find(words)
	if err != nil || cmd == root {
		panic(fmt.Sprintf("no verb %v: %v", words, err))
	}
	return cmd
}

// extend gives verbs of the table what their operations cannot describe.
func (v *Verbs) extend(root *cobra.Command) {
	v.extendList(find(root, "list"))
	v.extendRemove(find(root, "rm"))
	v.extendLogs(find(root, "logs"))
	v.extendStats(find(root, "stats"))
}

// extendList adds --watch.
func (v *Verbs) extendList(cmd *cobra.Command) {
	var watch bool
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Print a line for every change until interrupted")
	plain := cmd.RunE
	follow := v.With(func(cmd *cobra.Command, c *client.Client, _ []string) error { return v.watch(cmd, c) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if watch {
			return follow(cmd, args)
		}
		return plain(cmd, args)
	}
}

// watch prints a line for every sandbox, and for every change of one.
func (v *Verbs) watch(cmd *cobra.Command, c *client.Client) error {
	for _, name := range []string{"environment", "label", "user", "limit", "after"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("--watch shows all your sandboxes; omit --%s", name)}
		}
	}
	const layout = "%-24s  %-9s  %-12s  %-9s  %s\n"
	fmt.Fprintf(v.Text.Out, layout, "NAME", "STATUS", "ENVIRONMENT", "CREATED", "ENDS")
	for e, err := range c.Events(cmd.Context(), "", "") {
		if err != nil {
			if cmd.Context().Err() != nil {
				return nil // interrupted
			}
			return err
		}
		if e.Sandbox == nil {
			continue
		}
		sb, expires := e.Sandbox, "-"
		if sb.EndsAt != nil {
			expires = cli.Age(time.Until(*sb.EndsAt)) + " " + cli.Line(sb.EndAction)
		}
		status := sb.Status
		if e.Type == "deleted" {
			status = "deleted"
		}
		fmt.Fprintf(v.Text.Out, layout, cli.Line(sb.Name), cli.Line(status), cli.Line(sb.Environment), cli.Age(time.Until(sb.CreatedAt)), expires)
	}
	return nil
}

// completeTimeout bounds how long the Tab key waits for the hub.
const completeTimeout = 2 * time.Second

// Complete returns the names that a field can have, for the shell's completion.
func (v *Verbs) Complete(ctx context.Context, o op.Op, field string) []string {
	path := map[string]string{"snapshot": "/api/v1/snapshot", "volume": "/api/v1/volume", "image": "/api/v1/image"}[field]
	_, route := o.MethodPath()
	switch {
	case strings.HasPrefix(route, "/api/v1/sandbox/{name}") && field == "name":
		path = "/api/v1/sandbox"
	case strings.HasPrefix(route, "/api/v1/secret/") && field == "name":
		path = "/api/v1/secret"
	}
	if path == "" || o.Name == "snapshot_create" && field == "snapshot" {
		return nil
	}
	return v.names(ctx, path)
}

// plainName matches what a shell takes as it is: completion puts names into the line that is being typed.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// names lists the names of what a route lists.
func (v *Verbs) names(ctx context.Context, path string) (names []string) {
	c, err := v.Dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	var list []struct {
		Name string `json:"name"`
	}
	if c.Call(ctx, http.MethodGet, path, nil, &list) != nil {
		return nil
	}
	for _, item := range list {
		if plainName.MatchString(item.Name) {
			names = append(names, item.Name)
		}
	}
	return names
}

// completeName completes the name of a sandbox as the first argument.
func (v *Verbs) completeName(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return v.names(cmd.Context(), "/api/v1/sandbox"), cobra.ShellCompDirectiveNoFileComp
}
