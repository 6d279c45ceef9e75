package verb

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

func (v *Verbs) restart() *cobra.Command {
	return &cobra.Command{Use: "restart NAME…", Short: "Stop sandboxes and start them again, with their disks",
		Args: cli.Arguments(1, -1), ValidArgsFunction: v.completeName,
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			for _, name := range args {
				sb, err := c.Get(cmd.Context(), name)
				if err != nil {
					return err
				}
				if sb.Status == "running" || sb.Status == "paused" {
					if _, err := c.Stop(cmd.Context(), name); err != nil {
						return err
					}
				}
				if _, err := c.Start(cmd.Context(), name); err != nil {
					return err
				}
				fmt.Fprintln(v.Text.Out, cli.Line(name))
			}
			return nil
		})}
}

// goals are what wait accepts, and the status that each means. Other words are errors.
var goals = map[string]string{"running": "running", "condition=ready": "running", "ready": "running", "started": "running",
	"paused": "paused", "stopped": "stopped", "failed": "failed", "deleted": "deleted", "delete": "deleted"}

func (v *Verbs) wait() *cobra.Command {
	var goal string
	var timeout time.Duration
	cmd := &cobra.Command{Use: "wait NAME…", Short: "Wait until sandboxes are running, stopped or deleted",
		Args: cli.Arguments(1, -1), ValidArgsFunction: v.completeName,
		Long:    "Wait until sandboxes have a status. Waiting does not keep a sandbox awake. The exit code is 1 if the timeout expires first.",
		Example: "  cove wait a\n  cove wait a --for deleted --timeout 1h",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			want := goals[strings.ToLower(goal)]
			if want == "" {
				return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("--for %q: use running, paused, stopped, failed or deleted", goal)}
			}
			ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
			if timeout > 0 {
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("sandboxes were not %s within %v", want, timeout))
			}
			defer cancel()
			for _, name := range args {
				if err := waitFor(ctx, c, name, want); err != nil {
					return err
				}
				fmt.Fprintln(v.Text.Out, cli.Line(name))
			}
			return nil
		})}
	cmd.Flags().StringVar(&goal, "for", "running", "Status to wait for: running, paused, stopped, failed or deleted")
	cli.DurationVar(cmd.Flags(), &timeout, "timeout", "Duration such as 30s after which wait fails; 0: none")
	return cmd
}

// waitFor returns when a sandbox has a status.
func waitFor(ctx context.Context, c *client.Client, name, want string) error {
	if _, err := c.Get(ctx, name); client.NotFound(err) && want == "deleted" {
		return nil
	} else if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	for e, err := range c.Events(ctx, name, "") {
		switch {
		case err != nil:
			return cmp.Or(context.Cause(ctx), err)
		case e.Type == "deleted":
			if want == "deleted" {
				return nil
			}
			return fmt.Errorf("sandbox %q was deleted while waiting for it to be %s", name, want)
		case e.Sandbox != nil && e.Sandbox.Status == want:
			return nil
		case e.Sandbox != nil && e.Sandbox.Status == "failed" && want == "running":
			return fmt.Errorf("sandbox %q failed: %s", name, cli.Line(e.Sandbox.Message))
		}
	}
	return cmp.Or(context.Cause(ctx), io.ErrUnexpectedEOF)
}
