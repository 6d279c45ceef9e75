// Package verb owns the verbs of cove that pass streams or use files of this machine, and what it adds to those of the table: more flags,
// groups, examples and completion.
package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Config describes the program and the hub that it calls.
type Config struct {
	Std  host.Streams // for what programs print, and files
	Text host.Streams // for everything else: what a terminal would obey is escaped
	Dial func() (*client.Client, error)

	SignsIn func() bool   // whether requests carry credentials
	Address func() string // of the hub, once Dial has been called
	Agent   string        // User-Agent
	Table   *op.Table     // of the hub's operations
	Inside  string        // commands of aio, as cli.ReadCommands reads them
	// Unsigned says what to do if the hub rejects a request without valid credentials.
	Unsigned string
	// Browse opens a page in the browser of this machine, if there is one.
	Browse func(ctx context.Context, page string) error
}

// Verbs are the verbs that the table of operations cannot describe: they pass streams or use files of this machine.
type Verbs struct{ Config }

// New returns the verbs.
func New(cfg Config) *Verbs { return &Verbs{cfg} }

// runner runs commands in sandboxes, copier copies files.
type (
	runner struct{ *Verbs }
	copier struct{ *Verbs }
)

// Add adds the verbs to root, and extends and organizes those of the table.
func (v *Verbs) Add(root *cobra.Command) {
	v.extend(root)
	r := runner{v}
	root.AddCommand(r.run(), r.exec(), r.shell(), copier{v}.copy(), builder{v}.build(), v.forward(), v.open(), v.up(), v.down())
	root.AddCommand(v.restart(), v.wait(), v.top(), v.describe())
	v.addSecret(root)
}

// With gives a verb its client and its errors exit codes.
func (v *Verbs) With(f func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := v.Dial()
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		defer c.Close()
		ctx, stop := interruptible(cmd.Context())
		defer stop()
		cmd.SetContext(ctx)
		err = WithExitCode(v.Explain(f(cmd, c, args)))
		if code := interrupted(ctx); code != 0 {
			return &cli.Error{Code: code}
		}
		return err
	}
}

// signaled is the cause of a context that a signal ended.
type signaled struct{ syscall.Signal }

func (s signaled) Error() string { return s.String() }

// interruptible returns a context that SIGINT or SIGTERM ends. A second signal ends the program immediately.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok {
				cancel(signaled{s})
			}
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() { cancel(nil) }
}

// interrupted returns the exit code of a program that a signal ended: 130 after Ctrl-C. It returns 0 if there was no signal.
func interrupted(ctx context.Context) int {
	if s, ok := errors.AsType[signaled](context.Cause(ctx)); ok {
		return 128 + int(s.Signal)
	}
	return 0
}

// execFlags are the flags for fields of commands in a sandbox.
var execFlags = strings.NewReplacer("exec_dir", "--workdir", "hard_timeout", "--timeout")

// Explain adds to the error of a request without valid credentials what to do. Other errors name commands instead of routes.
func (v *Verbs) Explain(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status == http.StatusUnauthorized {
		return &cli.Error{Code: cli.ExitAuth, Msg: err.Error() + "; " + v.Unsigned}
	} else if ok && v.Table != nil {
		text := cli.RouteCommands("cove exec NAME aio", cli.ReadCommands(v.Inside), cli.Commands("cove", v.Table, err.Error()))
		return &client.Error{Status: e.Status, Message: execFlags.Replace(text), RetryAfter: e.RetryAfter}
	}
	return err
}

// WithExitCode gives an error of the client the exit code of its kind.
func WithExitCode(err error) error {
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

func (v runner) shell() *cobra.Command {
	var session string
	cmd := &cobra.Command{Use: "shell NAME", Short: "Open a terminal in a sandbox", Aliases: []string{"ssh"},
		Args: cli.Arguments(1, 1), ValidArgsFunction: v.completeName,
		Long: "Open a terminal in a sandbox. The exit code is the shell's. --session joins an open session, including one that an agent uses.",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return v.attach(cmd.Context(), c.Guest(args[0]), client.ShellOptions{Session: session, In: v.lines(cmd.Context()), Out: v.Std.Out})
		})}
	cmd.Flags().StringVar(&session, "session", "", "Session to join; empty opens a new one")
	return cmd
}

func (v *Verbs) open() *cobra.Command {
	var port int
	var page string
	cmd := &cobra.Command{Use: "open NAME", Short: "Open a page of a sandbox in the browser",
		Args: cli.Arguments(1, 1), ValidArgsFunction: v.completeName,
		Long: "Print the URL of the page of a sandbox, with a one-time ticket, and open it in the browser of this machine " +
			"if there is one. The page shows its browser, terminal, files and log.",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
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
			if v.SignsIn() {
				ticket, err := c.Ticket(cmd.Context())
				if err != nil {
					return err
				}
				if to, err = withTicket(to, ticket); err != nil {
					return err
				}
			}
			fmt.Fprintln(v.Text.Out, to)
			if host.IsTerminal(v.Std.Out) {
				return v.Browse(cmd.Context(), to)
			}
			return nil
		})}
	cmd.Flags().IntVar(&port, "port", 0, "Port of a service in the sandbox")
	cmd.Flags().StringVar(&page, "page", "",
		"Page: terminal, vnc/index.html?autoconnect=true, v1/docs. Default: browser, terminal, files and log")
	return cmd
}

// site returns the address of a sandbox's pages, without a final slash. It is below the address that requests go to, regardless of
// the response; only for a hub that is called over a socket does the response contain the address for browsers.
func (v *Verbs) site(sb *client.Sandbox, name string) (string, error) {
	if hub := v.Address(); !strings.HasPrefix(hub, "unix:") {
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
