package cove

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// verbs are the verbs of cove that the table of operations cannot describe: they pass streams or use files of this machine.
type verbs struct {
	std     host.Streams // for what programs print, and files
	text    host.Streams // for everything else: what a terminal would obey is escaped
	dial    func() (*client.Client, error)
	signsIn func() bool   // whether requests carry credentials
	address func() string // of the hub, once dial has been called
	agent   string        // User-Agent
	// unsigned says what to do if the hub rejects a request without valid credentials.
	unsigned string
}

// with gives a verb its client and its errors exit codes.
func (v *verbs) with(f func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := v.dial()
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		defer c.Close()
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		cmd.SetContext(ctx)
		return withExitCode(v.explain(f(cmd, c, args)))
	}
}

// explain adds to the error of a request without valid credentials what to do.
func (v *verbs) explain(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status == http.StatusUnauthorized {
		return &cli.Error{Code: cli.ExitAuth, Msg: err.Error() + "; " + v.unsigned}
	}
	return err
}

// withExitCode gives an error of the client the exit code of its kind.
func withExitCode(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*cli.Error](err); ok {
		return err
	}
	code := cli.ExitFailed
	if e, ok := errors.AsType[*client.Error](err); ok {
		code = cmp.Or(cli.ExitOf(e.Status), cli.ExitFailed)
	} else if _, ok := errors.AsType[*net.OpError](err); ok {
		code = cli.ExitConnect
	}
	return &cli.Error{Code: code, Msg: err.Error()}
}

func (v *verbs) exec() *cobra.Command {
	var o client.ExecOptions
	var env []string
	cmd := &cobra.Command{Use: "exec NAME [flags] -- COMMAND [ARG…]", Short: "Run a command in a sandbox",
		Args: cli.Arguments(2, -1), ValidArgsFunction: v.completeName,
		Long: "Run a command in a sandbox. Output is streamed, standard input is forwarded unless it is a " +
			"terminal, and the exit code is the command's.\nA single argument is a line for bash; several are a program and its arguments.",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			var err error
			if o.Env, err = parsePairs("env", env); err != nil {
				return err
			}
			return v.execute(cmd.Context(), c.Guest(args[0]), commandLine(args[1:]), o, false)
		})}
	cmd.Flags().SetInterspersed(true)
	cmd.Flags().StringVar(&o.Dir, "dir", "", "Working directory")
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "Environment variable, NAME=value; repeatable")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 0, "Timeout after which the command is killed; 0 means none")
	cmd.Flags().StringVar(&o.Session, "session", "", "Session that keeps the working directory")
	return cmd
}

// commandLine is what bash runs. A single word may be a whole line.
func commandLine(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return quote(words)
}

// quote writes words so that bash reads them as they are.
func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

func (v *verbs) shell() *cobra.Command {
	var session string
	cmd := &cobra.Command{Use: "shell NAME", Short: "Open a terminal in a sandbox", Aliases: []string{"ssh"},
		Args: cli.Arguments(1, 1), ValidArgsFunction: v.completeName,
		Long: "Open a terminal in a sandbox. The exit code is the shell's. --session joins an open session, including one that an agent uses.",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return v.attach(cmd.Context(), c.Guest(args[0]), client.ShellOptions{Session: session, In: v.std.In, Out: v.std.Out})
		})}
	cmd.Flags().StringVar(&session, "session", "", "Session to join; empty opens a new one")
	return cmd
}

func (v *verbs) open() *cobra.Command {
	var port int
	var page string
	cmd := &cobra.Command{Use: "open NAME", Short: "Open a page of a sandbox in the browser",
		Args: cli.Arguments(1, 1), ValidArgsFunction: v.completeName,
		Long: "Print the URL of a page of a sandbox, with a one-time ticket, and open it in the browser of this machine if there is one.",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			sb, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			site, err := v.site(sb, args[0])
			if err != nil {
				return err
			}
			to := site + "/" + strings.TrimPrefix(page, "/")
			if port != 0 {
				to = fmt.Sprintf("%s/proxy/%d/", site, port)
			}
			if v.signsIn() {
				ticket, err := c.Ticket(cmd.Context())
				if err != nil {
					return err
				}
				if to, err = withTicket(to, ticket); err != nil {
					return err
				}
			}
			fmt.Fprintln(v.text.Out, to)
			if host.IsTerminal(v.std.Out) {
				return browse(cmd.Context(), to)
			}
			return nil
		})}
	cmd.Flags().IntVar(&port, "port", 0, "Port of a service in the sandbox")
	cmd.Flags().StringVar(&page, "page", "terminal", "Page: terminal, vnc/index.html?autoconnect=true, v1/docs")
	return cmd
}

// site returns the address of a sandbox's pages, without a final slash. It is below the address that requests go to, whatever the
// response says; only a hub that is called over a socket has to say where browsers reach it.
func (v *verbs) site(sb *client.Sandbox, name string) (string, error) {
	if hub := v.address(); !strings.HasPrefix(hub, "unix:") {
		return login.TrimURL(hub) + "/sandbox/" + url.PathEscape(name), nil
	}
	u, err := url.Parse(sb.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return "", fmt.Errorf("the hub's address %q cannot be opened in a browser; call the hub by its URL with --hub-url", sb.URL)
	}
	return login.TrimURL(u.String()), nil
}

func withTicket(address, ticket string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Set("ticket", ticket)
	u.RawQuery = q.Encode()
	return u.String(), nil
}
