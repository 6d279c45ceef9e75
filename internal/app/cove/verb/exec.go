package verb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// execOptions are flags of a command in a sandbox.
type execOptions struct {
	env                   []string
	dir, user, session    string
	timeout               time.Duration
	interactive, terminal bool
}

// addTo adds the flags that exec and run share.
func (o *execOptions) addTo(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.env, "env", "e", nil, "Environment variable, NAME=value; NAME takes the value of this shell; repeatable")
	f.StringVarP(&o.dir, "workdir", "w", "", "Working directory")
	f.StringVar(&o.dir, "dir", "", "Working directory")
	f.Lookup("dir").Hidden = true // the earlier name
	f.StringVarP(&o.user, "user", "u", "", "User that runs the command, such as root; requires sudo in the sandbox")
	cli.DurationVar(f, &o.timeout, "timeout", "Duration such as 30s after which the command is killed; 0: none")
	f.BoolVarP(&o.interactive, "interactive", "i", false, "Forward standard input")
	f.BoolVarP(&o.terminal, "tty", "t", false, "Run in a terminal")
}

func (v runner) exec() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{Use: "exec [flags] NAME [--] COMMAND [ARG…]", Short: "Run a command in a sandbox",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: v.completeName,
		Long: "Run a command in a sandbox. Output is streamed, and the exit code is the command's. Standard input is " +
			"forwarded with -i only.\nA single argument is a line for bash; several are a program and its arguments. " +
			"Flags can precede or follow the name; those after the command belong to the command.",
		Example: "  cove exec a ls -la /\n  cove exec -it a bash\n  cove exec a 'cd /tmp && ls | wc -l'\n  cove exec -u root a apt-get update\n" +
			"  cat data.csv | cove exec -i a -- sort -u"}
	run := v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
		return v.execute(cmd.Context(), c, args[0], commandLine(args[1:]), o)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// Flags can follow the name. The command's own flags, which follow the command, are not ours.
		if len(args) > 1 {
			if err := cmd.Flags().Parse(args[1:]); errors.Is(err, pflag.ErrHelp) {
				return cmd.Help()
			} else if err != nil {
				return cmd.FlagErrorFunc()(cmd, err)
			}
			args = append(args[:1:1], cmd.Flags().Args()...)
		}
		if err := cli.Arguments(2, -1)(cmd, args); err != nil {
			return err
		}
		return run(cmd, args)
	}
	cmd.Flags().SetInterspersed(false)
	o.addTo(cmd.Flags())
	cmd.Flags().StringVar(&o.session, "session", "", "Session that keeps the working directory")
	return cmd
}

// commandLine is what bash runs. A single word may be a whole line.
func commandLine(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return Quote(words)
}

// Quote writes words so that bash reads them as they are.
func Quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// asUser returns the line that runs a line as another user, with the same environment and folder.
func asUser(user, line string) string {
	if user == "" {
		return line
	}
	return "exec sudo -n -E -u " + Quote([]string{user}) + " -- bash -c " + Quote([]string{line})
}

// check rejects flags that do not apply together.
func (o *execOptions) check() error {
	if _, err := parseEnv(o.env); err != nil {
		return err
	}
	switch {
	case o.terminal && o.timeout > 0:
		return &cli.Error{Code: cli.ExitUsage, Msg: "--timeout does not apply to a terminal; omit -t, or run: timeout SECONDS COMMAND"}
	case o.terminal && o.session != "":
		return &cli.Error{Code: cli.ExitUsage, Msg: "--session does not apply to a terminal; omit -t, or join the session of a " +
			"terminal with cove shell --session"}
	}
	return nil
}

// killed is the exit code of a command that SIGKILL ended.
const killed = 128 + 9

// execute runs a line in a sandbox, streams, and turns the command's exit code into ours.
func (v runner) execute(ctx context.Context, c *client.Client, name, line string, o execOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	env, err := parseEnv(o.env)
	if err != nil {
		return err
	}
	err = v.stream(ctx, c.Guest(name), asUser(o.user, line), env, o)
	if e, ok := errors.AsType[*cli.Error](err); ok && e.Code == killed && e.Msg == "" {
		e.Msg = outOfMemory(ctx, c, name)
	}
	return err
}

// outOfMemory says that a sandbox reached its memory limit; "" if it did not.
func outOfMemory(ctx context.Context, c *client.Client, name string) string {
	s, err := c.Stats(ctx, name)
	if err != nil || s.OOMKills <= 0 {
		return ""
	}
	limit := "its memory limit"
	if sb, err := c.Get(ctx, name); err == nil && sb.MemoryLimit != "" {
		limit += " of " + cli.Line(sb.MemoryLimit)
	}
	return fmt.Sprintf("killed: sandbox %q reached %s (processes killed so far: %d); create one with a larger --memory-limit",
		cli.Line(name), limit, s.OOMKills)
}

// stream runs a line and forwards its input and output.
func (v runner) stream(ctx context.Context, g *client.Guest, line string, env map[string]string, o execOptions) error {
	if o.terminal {
		return v.runInTerminal(ctx, g, line, o.dir, env)
	}
	e := client.ExecOptions{Dir: o.dir, Env: env, Session: o.session, Timeout: o.timeout, Stdout: v.Std.Out, Stderr: v.Std.Err}
	if o.interactive {
		e.Stdin = v.Std.In
	}
	result, err := g.Exec(ctx, line, e)
	switch {
	case err != nil:
		return err
	case result.Status == "timed_out":
		return &cli.Error{Code: 124, Msg: fmt.Sprintf("the command was killed: its timeout of %v expired", o.timeout)}
	case result.ExitCode != 0:
		return &cli.Error{Code: result.ExitCode}
	}
	return nil
}

// runInTerminal runs a line in a terminal, in place of its shell. If the folder does not exist or a variable cannot be set, the
// shell reports it and ends.
func (v runner) runInTerminal(ctx context.Context, g *client.Guest, line, dir string, env map[string]string) error {
	steps := []string{"clear"}
	if dir != "" {
		steps = append(steps, "cd "+Quote([]string{dir})+orExit)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		steps = append(steps, "export "+Quote([]string{name + "=" + env[name]})+orExit)
	}
	steps = append(steps, "exec bash -c "+Quote([]string{line})+"\n")
	in := io.MultiReader(strings.NewReader(strings.Join(steps, "; ")), v.Std.In, &endOfInput{ctx: ctx})
	return v.attach(ctx, g, client.ShellOptions{In: in, Out: v.Std.Out})
}

// orExit ends the shell if the step before it fails, with the code of a command that cannot be run.
const orExit = " || exit 126"

// endOfInput is what a terminal receives after the end of a pipe: Ctrl-D ends the input of the program, not the terminal. A
// program that is starting discards it, so it is repeated.
type endOfInput struct {
	ctx   context.Context
	again bool
}

// repeatEnd is the time between two Ctrl-D.
const repeatEnd = time.Second

func (e *endOfInput) Read(b []byte) (int, error) {
	if e.again {
		next := time.NewTimer(repeatEnd)
		defer next.Stop()
		select {
		case <-next.C:
		case <-e.ctx.Done():
			return 0, io.EOF
		}
	}
	e.again = true
	return copy(b, "\x04"), nil
}

// wholeLines ends the last line of its input.
type wholeLines struct {
	io.Reader
	last byte
}

func (w *wholeLines) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if n > 0 {
		w.last = b[n-1]
	} else if err == io.EOF && w.last != '\n' && w.last != 0 {
		w.last = '\n'
		return copy(b, "\n"), nil
	}
	return n, err
}

// lines returns the input of a shell: keys, or the lines of a pipe and then its end.
func (v runner) lines(ctx context.Context) io.Reader {
	if f, ok := v.Std.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return v.Std.In
	}
	return io.MultiReader(&wholeLines{Reader: v.Std.In}, &endOfInput{ctx: ctx})
}

// attach connects this terminal with one of the sandbox.
func (v runner) attach(ctx context.Context, g *client.Guest, o client.ShellOptions) error {
	if f, ok := v.Std.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
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

// parseEnv takes --env flags apart. A name without a value has the value that it has here.
func parseEnv(pairs []string) (map[string]string, error) {
	out, here := map[string]string{}, config.Environ()
	for _, pair := range pairs {
		if i := slices.IndexFunc(here, func(set string) bool { return strings.HasPrefix(set, pair+"=") }); i >= 0 {
			pair = here[i]
		}
		key, value, given := strings.Cut(pair, "=")
		if !given || key == "" {
			return nil, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("--env %q: use NAME=value, or the NAME of a variable that is set", pair)}
		}
		out[key] = value
	}
	return out, nil
}
