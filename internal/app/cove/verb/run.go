package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// runOptions are the flags of run.
type runOptions struct {
	execOptions
	create       client.CreateOptions
	results      string
	ports        []string
	remove, keep bool
	detach       bool
}

func (v runner) run() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{Use: "run [flags] [--] COMMAND [ARG…] | SCRIPT [ARG…]",
		Short: "Create a sandbox, run a command or script in it, and clean up", Args: cli.Arguments(1, -1),
		Long: "Create a sandbox, run a command in it, stream its output, and exit with its code. The sandbox is " +
			"deleted afterwards, unless it has a --name or --keep is given; --rm deletes it always.\n" +
			"A file of this machine as the first argument, before any --, is copied into the sandbox and run there " +
			"by the interpreter for its name: Python, JavaScript, TypeScript, shell, Ruby or Perl, or as a program. " +
			"Arguments that are files are copied too. Files that the script creates or changes in its folder are copied " +
			"back into the folder SCRIPT-results.\n" +
			"-d starts the command, prints the name of the sandbox, and keeps it; cove logs shows the output of the command.",
		Example: "  cove run -- uname -a\n  cove run --image debian:12 -it -- bash\n  cove run analyse.py " +
			"data.csv\n  cove run --name work -- git clone https://example.com/repo.git\n  cove run -d --name web -p 3000 -- npm start"}
	cmd.RunE = v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
		var s *script
		if cmd.ArgsLenAtDash() < 0 {
			if info, err := os.Stat(args[0]); err == nil && info.Mode().IsRegular() {
				s = newScript(args, o.results)
			}
		}
		return v.runOnce(cmd.Context(), c, o, s, args)
	})
	f := cmd.Flags()
	f.SetInterspersed(false)
	o.addTo(f)
	f.StringVar(&o.create.Image, "image", "", "OCI image")
	f.StringVar(&o.create.Environment, "environment", "", "Environment")
	f.StringVar(&o.create.Name, "name", "", "Name of the sandbox, which is kept unless --rm is given")
	f.StringVarP(&o.create.MemoryLimit, "memory-limit", "m", "", "Memory limit, such as 2Gi")
	f.StringVar(&o.create.CPULimit, "cpu-limit", "", "CPU limit, such as 1500m")
	f.StringVar(&o.create.Snapshot, "from-snapshot", "", "Snapshot to start from")
	f.StringArrayVar(&o.create.Secrets, "secret", nil, "Secret to provide; repeatable")
	f.StringArrayVar(&o.create.Networks, "join", nil, "Private network to join; repeatable")
	f.StringArrayVarP(&o.ports, "publish", "p", nil,
		"Port of the sandbox to reach on this machine, [LOCAL:]PORT, while the command runs; repeatable. With -d: PORT, to print its URL")
	f.StringVar(&o.results, "results", "", "Folder for the results of a script; - copies nothing back. Default: SCRIPT-results")
	f.BoolVar(&o.remove, "rm", false, "Delete the sandbox afterwards, even if it has a name")
	f.BoolVar(&o.keep, "keep", false, "Keep the sandbox")
	f.BoolVarP(&o.detach, "detach", "d", false, "Start the command, keep the sandbox and return")
	cmd.MarkFlagsMutuallyExclusive("rm", "keep")
	cmd.MarkFlagsMutuallyExclusive("detach", "rm")
	cmd.MarkFlagsMutuallyExclusive("detach", "tty")
	cmd.MarkFlagsMutuallyExclusive("detach", "interactive")
	return cmd
}

// cleanupTimeout bounds how long an interrupted run deletes its sandbox.
const cleanupTimeout = time.Minute

func (v runner) runOnce(ctx context.Context, c *client.Client, o runOptions, s *script, args []string) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	for _, spec := range o.ports {
		_, port, err := parsePorts(spec)
		if err != nil {
			return err
		}
		if o.detach && strings.Contains(spec, ":") {
			return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("--publish %s: run -d returns, so it cannot listen on this machine; use "+
				"-p %d, and then: cove port-forward %s %[1]s", spec, port, cmp.Or(o.create.Name, "NAME"))}
		}
		o.create.Ports = append(o.create.Ports, port)
	}
	if o.detach {
		o.create.Labels = map[string]string{detachedLabel: detachedValue}
	}
	remove := o.remove || o.create.Name == "" && !o.keep && !o.detach
	o.create.Keep = !remove
	sb, err := c.Create(ctx, o.create)
	if err != nil {
		return err
	}
	if remove || o.detach {
		defer func() {
			if !remove && err == nil {
				return // the command runs
			}
			// Also when interrupted, and if run -d cannot start the command: the user does not know its name.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			if gone := c.Delete(ctx, sb.ID); gone != nil && !client.NotFound(gone) {
				fmt.Fprintf(v.Text.Err, "cannot delete sandbox %q: %v; delete it with cove rm %[1]s\n", sb.Name, gone)
			}
		}()
	} else {
		fmt.Fprintf(v.Text.Err, "sandbox %s\n", sb.Name)
	}
	g := c.Guest(sb.Name)
	line := commandLine(args)
	if s != nil {
		if line, err = v.sendScript(ctx, g, s); err != nil {
			return err
		}
	}
	if o.detach {
		return v.detach(ctx, g, sb, line, o)
	}
	stop, err := v.publish(ctx, g, o.ports)
	if err != nil {
		return err
	}
	defer stop()
	err = v.execute(ctx, c, sb.Name, line, o.execOptions)
	if s != nil && ctx.Err() == nil {
		err = errors.Join(err, v.fetchResults(ctx, g, s))
	}
	return err
}

// The label marks sandboxes of run -d. The command runs in a session of that name.
const (
	detachedLabel, detachedValue = "run", "detached"
	detachedSession              = "run"
)

// detach starts a line in the background.
func (v runner) detach(ctx context.Context, g *client.Guest, sb *client.Sandbox, line string, o runOptions) error {
	env, err := parseEnv(o.env)
	if err != nil {
		return err
	}
	in := map[string]any{"session_id": detachedSession, "command": asUser(o.user, line), "env": env, "async_mode": true}
	if o.dir != "" {
		in["exec_dir"] = o.dir
	}
	if o.timeout > 0 {
		in["hard_timeout"] = o.timeout.Seconds()
	}
	if err := g.Call(ctx, "POST", "/v1/bash/exec", in, nil); err != nil {
		return err
	}
	fmt.Fprintln(v.Text.Out, sb.Name)
	if len(o.create.Ports) == 0 {
		return nil
	}
	site, err := v.site(sb, sb.Name)
	if err != nil {
		return err
	}
	for _, p := range o.create.Ports {
		fmt.Fprintf(v.Text.Err, "port %d: %s/proxy/%[1]d/, or cove port-forward %[3]s %[1]d\n", p, site, cli.Line(sb.Name))
	}
	return nil
}
