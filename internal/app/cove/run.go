package cove

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// interpreters run scripts by the end of their names. Others are run as programs.
var interpreters = map[string]string{".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node",
	".ts": "node --experimental-strip-types", ".sh": "bash", ".rb": "ruby", ".pl": "perl"}

// runOptions are the flags of run.
type runOptions struct {
	create                client.CreateOptions
	env                   []string
	dir                   string
	timeout               time.Duration
	remove, keep          bool
	interactive, terminal bool
}

func (v *verbs) run() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{Use: "run [flags] [--] COMMAND [ARG…] | SCRIPT [ARG…]",
		Short: "Create a sandbox, run a command or script in it, and clean up", Args: cli.Arguments(1, -1),
		Long: "Create a sandbox, run a command in it, stream its output, and exit with its code. The sandbox is " +
			"deleted afterwards, unless it has a --name or --keep is given; --rm deletes it always.\n" +
			"A file of this machine as the first argument, before any --, is copied into the sandbox and run there " +
			"by the interpreter for its name: " +
			"Python, JavaScript, TypeScript, shell, Ruby or Perl, or as a program.",
		Example: "  cove run -- uname -a\n  cove run --image debian:12 -it -- bash\n  cove run analyse.py " +
			"data.csv\n  cove run --name work -- git clone https://example.com/repo.git"}
	cmd.RunE = v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
		script := ""
		if cmd.ArgsLenAtDash() < 0 {
			if info, err := os.Stat(args[0]); err == nil && info.Mode().IsRegular() {
				script = args[0]
			}
		}
		return v.runOnce(cmd.Context(), c, o, script, args)
	})
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.create.Image, "image", "", "OCI image")
	f.StringVar(&o.create.Environment, "environment", "", "Environment")
	f.StringVar(&o.create.Name, "name", "", "Name of the sandbox, which is kept unless --rm is given")
	f.StringVar(&o.create.MemoryLimit, "memory-limit", "", "Memory limit, such as 2Gi")
	f.StringVar(&o.create.CPULimit, "cpu-limit", "", "CPU limit, such as 1500m")
	f.StringVar(&o.create.Snapshot, "from-snapshot", "", "Snapshot to start from")
	f.StringArrayVar(&o.create.Secrets, "secret", nil, "Secret to provide; repeatable")
	f.StringArrayVarP(&o.env, "env", "e", nil, "Environment variable, NAME=value; repeatable")
	f.StringVarP(&o.dir, "dir", "w", "", "Working directory")
	f.DurationVar(&o.timeout, "timeout", 0, "Timeout after which the command is killed; 0 means none")
	f.BoolVar(&o.remove, "rm", false, "Delete the sandbox afterwards, even if it has a name")
	f.BoolVar(&o.keep, "keep", false, "Keep the sandbox")
	f.BoolVarP(&o.interactive, "interactive", "i", false, "Forward standard input, even from a terminal")
	f.BoolVarP(&o.terminal, "tty", "t", false, "Run in a terminal")
	cmd.MarkFlagsMutuallyExclusive("rm", "keep")
	return cmd
}

// cleanupTimeout bounds how long an interrupted run deletes its sandbox.
const cleanupTimeout = time.Minute

func (v *verbs) runOnce(ctx context.Context, c *client.Client, o runOptions, script string, args []string) (err error) {
	env, err := parsePairs("env", o.env)
	if err != nil {
		return err
	}
	remove := o.remove || o.create.Name == "" && !o.keep
	o.create.Keep = !remove
	sb, err := c.Create(ctx, o.create)
	if err != nil {
		return err
	}
	if remove {
		defer func() {
			// Also when interrupted: the user does not know its name.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			if gone := c.Delete(ctx, sb.ID); gone != nil && !client.NotFound(gone) {
				fmt.Fprintf(v.text.Err, "cannot delete sandbox %q: %v; delete it with cove rm %[1]s\n", sb.Name, gone)
			}
		}()
	} else {
		fmt.Fprintf(v.text.Err, "sandbox %s\n", sb.Name)
	}
	g := c.Guest(sb.Name)
	line := commandLine(args)
	if script != "" {
		if line, err = v.sendScript(ctx, g, script, args); err != nil {
			return err
		}
	}
	if o.terminal {
		return v.runInTerminal(ctx, g, line, o.dir, env)
	}
	e := client.ExecOptions{Dir: o.dir, Env: env, Timeout: o.timeout}
	return v.execute(ctx, g, line, e, o.interactive)
}

// sendScript copies a script into the sandbox and returns the line that runs it.
func (v *verbs) sendScript(ctx context.Context, g *client.Guest, script string, args []string) (string, error) {
	f, err := os.Open(script)
	if err != nil {
		return "", err
	}
	defer f.Close()
	there, _, err := g.Upload(ctx, "./"+filepath.Base(script), filepath.Base(script), v.progress(f, "sent", sizeOf(f)))
	if err != nil {
		return "", fmt.Errorf("copy %q: %w", script, err)
	}
	words := quote(append([]string{there}, args[1:]...))
	if by := interpreters[strings.ToLower(filepath.Ext(script))]; by != "" {
		return by + " " + words, nil
	}
	return "chmod +x " + quote([]string{there}) + " && " + words, nil
}

// execute runs a line in a sandbox, streams, and turns the command's exit code into ours.
func (v *verbs) execute(ctx context.Context, g *client.Guest, line string, o client.ExecOptions, interactive bool) error {
	o.Stdout, o.Stderr = v.std.Out, v.std.Err
	if f, ok := v.std.In.(*os.File); interactive || !ok || !term.IsTerminal(int(f.Fd())) {
		o.Stdin = v.std.In
	}
	result, err := g.Exec(ctx, line, o)
	switch {
	case err != nil:
		return err
	case result.Status == "timed_out":
		return &cli.Error{Code: 124, Msg: "the command timed out and was killed"}
	case result.ExitCode != 0:
		return &cli.Error{Code: result.ExitCode}
	}
	return nil
}

// runInTerminal runs a line in a terminal, in place of its shell.
func (v *verbs) runInTerminal(ctx context.Context, g *client.Guest, line, dir string, env map[string]string) error {
	var first strings.Builder
	first.WriteString("clear; ")
	if dir != "" {
		first.WriteString("cd " + quote([]string{dir}) + " && ")
	}
	for name, value := range env {
		first.WriteString("export " + name + "=" + quote([]string{value}) + "; ")
	}
	first.WriteString("exec bash -c " + quote([]string{line}) + "\n")
	// The end of a pipe ends the program's input, not the terminal.
	const endOfTransmission = "\x04"
	in := io.MultiReader(strings.NewReader(first.String()), v.std.In, strings.NewReader(endOfTransmission), forever{ctx})
	return v.attach(ctx, g, client.ShellOptions{In: in, Out: v.std.Out})
}

// forever is input that never comes.
type forever struct{ ctx context.Context }

func (f forever) Read([]byte) (int, error) {
	<-f.ctx.Done()
	return 0, io.EOF
}

// attach connects this terminal with one of the sandbox.
func (v *verbs) attach(ctx context.Context, g *client.Guest, o client.ShellOptions) error {
	if f, ok := v.std.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		restore, resized, err := rawTerminal(ctx, f)
		if err != nil {
			return err
		}
		defer restore()
		o.Resized = resized
	}
	code, err := g.Shell(ctx, o)
	if err == nil && code != 0 {
		return &cli.Error{Code: code}
	}
	return err
}

// parsePairs takes NAME=value flags apart.
func parsePairs(flag string, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("--%s %q: use NAME=value", flag, pair)}
		}
		out[key] = value
	}
	return out, nil
}
