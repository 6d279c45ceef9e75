package verb

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// removeOptions are the flags of rm.
type removeOptions struct {
	all, yes, force bool
	labels          []string
}

// extendRemove adds --all, --label, --yes and --force.
func (v *Verbs) extendRemove(cmd *cobra.Command) {
	var o removeOptions
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "Delete all your sandboxes, after confirmation")
	f.StringArrayVarP(&o.labels, "label", "l", nil, "Delete your sandboxes with this label, key=value, after confirmation; repeatable")
	f.BoolVarP(&o.yes, "yes", "y", false, "Delete without confirmation")
	f.BoolVarP(&o.force, "force", "f", false, "Delete without confirmation, and ignore sandboxes that do not exist")
	plain := cmd.RunE
	selected := v.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		return v.removeSelected(cmd.Context(), c, o)
	})
	named := v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
		return v.remove(cmd.Context(), c, args, args, o.force)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case (o.all || len(o.labels) > 0) && len(args) > 0:
			return &cli.Error{Code: cli.ExitUsage, Msg: "give either names, or --all or --label"}
		case o.all || len(o.labels) > 0:
			return selected(cmd, args)
		case len(args) > 0:
			return named(cmd, args)
		}
		return plain(cmd, args)
	}
}

// removeSelected deletes all sandboxes, or those with the labels, if a person confirms it.
func (v *Verbs) removeSelected(ctx context.Context, c *client.Client, o removeOptions) error {
	list, err := c.List(ctx, client.ListOptions{Labels: o.labels})
	if err != nil || len(list) == 0 {
		return err
	}
	ids, names := make([]string, len(list)), make([]string, len(list))
	for i, sb := range list {
		ids[i], names[i] = sb.ID, cli.Line(sb.Name)
	}
	if !o.yes && !o.force {
		if err := v.confirm(fmt.Sprintf("delete %d sandboxes (%s)?", len(list), strings.Join(names, ", "))); err != nil {
			return err
		}
	}
	return v.remove(ctx, c, ids, names, true)
}

// confirm asks the person at the terminal. Standard output does not matter: it may be redirected. Without a person, nothing is
// confirmed.
func (v *Verbs) confirm(question string) error {
	in, ok := v.Std.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) || !host.IsTerminal(v.Std.Err) {
		return &cli.Error{Code: cli.ExitUsage, Msg: "nothing was deleted: no terminal to confirm on; use --yes to delete without confirmation"}
	}
	fmt.Fprint(v.Text.Err, question, " [y/N] ")
	var answer string
	fmt.Fscanln(in, &answer) //nolint:errcheck // no answer is no
	if !strings.HasPrefix(strings.ToLower(answer), "y") {
		return &cli.Error{Code: cli.ExitFailed, Msg: "nothing was deleted"}
	}
	return nil
}

// remove deletes sandboxes and prints the name of each. It continues after a failure, and returns the first error. missing makes
// it ignore sandboxes that do not exist.
func (v *Verbs) remove(ctx context.Context, c *client.Client, ids, names []string, missing bool) error {
	var first error
	for i, id := range ids {
		err := c.Delete(ctx, id)
		switch {
		case err == nil:
			fmt.Fprintln(v.Text.Out, names[i])
		case missing && client.NotFound(err):
		case first == nil:
			first = err
		default:
			fmt.Fprintln(v.Text.Err, err)
		}
	}
	return first
}
