package verb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// top shows what sandboxes use, or the processes of one.
func (v *Verbs) top() *cobra.Command {
	cmd := &cobra.Command{Use: "top [NAME] [PS OPTION…]", Short: "Show the resource usage of running sandboxes, or the processes of one",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: v.completeName, DisableFlagsInUseLine: true,
		Example: "  cove top\n  cove top a",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) > 0 {
				words := append([]string{"ps"}, args[1:]...)
				if len(words) == 1 {
					words = append(words, "-eo", "user,pid,pcpu,pmem,etime,args", "--sort=-pcpu")
				}
				return runner{v}.execute(cmd.Context(), c, args[0], Quote(words), execOptions{})
			}
			return v.topAll(cmd.Context(), c)
		})}
	cmd.Flags().SetInterspersed(false) // options of ps follow the name
	return cmd
}

// extendStats shows all sandboxes if none is named.
func (v *Verbs) extendStats(cmd *cobra.Command) {
	plain := cmd.RunE
	all := v.With(func(cmd *cobra.Command, c *client.Client, _ []string) error { return v.topAll(cmd.Context(), c) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && !cmd.Flags().Changed("name") {
			return all(cmd, args)
		}
		return plain(cmd, args)
	}
}

func (v *Verbs) topAll(ctx context.Context, c *client.Client) error {
	list, err := c.List(ctx, client.ListOptions{Status: []string{"running", "paused"}})
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(v.Text.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSTATUS\tCPU TIME\tMEMORY\tLIMIT\tDISK\tPROCESSES\tOUT OF MEMORY")
	for _, sb := range list {
		s, err := c.Stats(ctx, sb.ID)
		if client.NotFound(err) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		cpu := time.Duration(s.CPUSeconds * float64(time.Second)).Round(time.Second / 10)
		fmt.Fprintf(tw, "%s\t%s\t%v\t%s\t%s\t%s\t%s\t%s\n", cli.Line(sb.Name), cli.Line(sb.Status), cpu, cli.Size(s.MemoryBytes),
			cmp.Or(cli.Line(sb.MemoryLimit), "-"), cli.Size(s.DiskBytes), count(s.Pids), count(s.OOMKills))
	}
	return tw.Flush()
}

// count formats a number that is negative if it is unknown.
func count(n int64) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// describe shows all that is known of sandboxes.
func (v *Verbs) describe() *cobra.Command {
	return &cobra.Command{Use: "describe NAME…", Short: "Show a sandbox with its usage, ports and latest connections",
		Args: cli.Arguments(1, -1), ValidArgsFunction: v.completeName,
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			for i, name := range args {
				if i > 0 {
					fmt.Fprintln(v.Text.Out)
				}
				if err := v.describeOne(cmd.Context(), c, name); err != nil {
					return err
				}
			}
			return nil
		})}
}

func (v *Verbs) describeOne(ctx context.Context, c *client.Client, name string) error {
	sb, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(v.Text.Out, 0, 0, 2, ' ', 0)
	row := func(key, value string) {
		if key != "" {
			key += ":"
		}
		if value != "" {
			fmt.Fprintf(tw, "%s\t%s\n", key, cli.Line(value))
		}
	}
	row("Name", sb.Name)
	row("ID", sb.ID)
	row("Owner", sb.User)
	row("Status", strings.TrimSuffix(sb.Status+": "+sb.Message, ": "))
	row("Environment", sb.Environment)
	row("Image", sb.Image)
	row("Snapshot", sb.Snapshot)
	row("Isolation", sb.Isolation)
	row("Labels", pairs(sb.Labels))
	row("Created", since(sb.CreatedAt))
	row("Last use", since(sb.LastActiveAt))
	if sb.ExpiresAt != nil {
		row("Expires", since(*sb.ExpiresAt))
	}
	if sb.IdleTimeout > 0 {
		row("If idle", fmt.Sprintf("%s after %v", sb.IdlePolicy, time.Duration(sb.IdleTimeout*float64(time.Minute))))
	}
	row("Limits", "cpu "+cmp.Or(sb.CPULimit, "-")+", memory "+cmp.Or(sb.MemoryLimit, "-")+", disk "+cmp.Or(sb.DiskLimit, "-"))
	row("URL", sb.URL)
	for _, port := range sb.Ports {
		row(fmt.Sprintf("Port %d", port), sb.Endpoints[fmt.Sprint(port)])
	}
	for _, vol := range sb.Volumes {
		row("Volume", vol.Name+" at "+vol.Target)
	}
	row("Network", strings.TrimSpace(cmp.Or(sb.Network.Mode, "open")+" "+strings.Join(sb.Network.Allow, ", ")))
	if s, err := c.Stats(ctx, sb.ID); err == nil {
		row("Memory used", cli.Size(s.MemoryBytes))
		row("Disk used", cli.Size(s.DiskBytes))
		row("CPU time", time.Duration(s.CPUSeconds*float64(time.Second)).Round(time.Second/10).String())
		if s.OOMKills > 0 {
			row("Out of memory", fmt.Sprintf("%d processes were killed; create the sandbox with a larger --memory-limit", s.OOMKills))
		}
	}
	list, err := c.Connections(ctx, sb.ID)
	for i, conn := range list[max(0, len(list)-10):] {
		row(map[bool]string{true: "Connections", false: ""}[i == 0], fmt.Sprintf("%s %s %s:%d %s", cli.Age(time.Until(conn.Time)), conn.Verdict,
			conn.Host, conn.Port, conn.Reason))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return err
}

// since formats a time for people, with its distance from now.
func since(t time.Time) string {
	return fmt.Sprintf("%s (%s)", t.Local().Format("2006-01-02 15:04:05"), cli.Age(time.Until(t)))
}

func pairs(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
