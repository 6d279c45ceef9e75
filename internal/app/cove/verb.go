package cove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/archive"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// verbs are those of cove that pass streams, which no table can describe.
type verbs struct {
	std    host.Streams
	dial   func() (*client.Client, error)
	signed func() bool // whether callers sign in
}

// with gives a verb its client and turns its errors into exit codes.
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
		return coded(f(cmd, c, args))
	}
}

// coded gives an error of the client the exit code that tells what kind it is.
func coded(err error) error {
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
	cmd := &cobra.Command{Use: "exec NAME [flags] -- COMMAND [ARG…]", Short: "Run a command in a sandbox", Args: cobra.MinimumNArgs(2),
		Long: "Run a command in a sandbox. Its output comes as it is written, standard input is passed on unless it is a terminal, and its exit code becomes this program's.\nOne argument is a line for bash; several are a program and its arguments.",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			o.Env = map[string]string{}
			for _, pair := range env {
				key, value, ok := strings.Cut(pair, "=")
				if !ok {
					return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("--env %q: write NAME=value", pair)}
				}
				o.Env[key] = value
			}
			o.Stdout, o.Stderr = v.std.Out, v.std.Err
			if f, ok := v.std.In.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
				o.Stdin = v.std.In
			}
			result, err := c.Guest(args[0]).Exec(cmd.Context(), commandLine(args[1:]), o)
			switch {
			case err != nil:
				return err
			case result.Status == "timed_out":
				return &cli.Error{Code: 124, Msg: "the command took too long and was ended"}
			case result.ExitCode != 0:
				return &cli.Error{Code: result.ExitCode}
			}
			return nil
		})}
	cmd.Flags().SetInterspersed(true)
	cmd.Flags().StringVar(&o.Dir, "dir", "", "Folder to run it in")
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "NAME=value for its environment; may be given again")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 0, "End it after this long; 0 means never")
	cmd.Flags().StringVar(&o.Session, "session", "", "Session whose folder it gets and changes")
	return cmd
}

// commandLine is what bash runs. One word may hold a whole line.
func commandLine(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

func (v *verbs) shell() *cobra.Command {
	var session string
	cmd := &cobra.Command{Use: "shell NAME", Short: "Open a terminal in a sandbox", Args: cobra.ExactArgs(1),
		Long: "Open a terminal in a sandbox. Its exit code becomes this program's. --session joins one that is open, also one that an agent uses.",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			o := client.ShellOptions{Session: session, In: v.std.In, Out: v.std.Out}
			if f, ok := v.std.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				restore, resized, err := rawTerminal(cmd.Context(), f)
				if err != nil {
					return err
				}
				defer restore()
				o.Resized = resized
			}
			code, err := c.Guest(args[0]).Shell(cmd.Context(), o)
			if err == nil && code != 0 {
				return &cli.Error{Code: code}
			}
			return err
		})}
	cmd.Flags().StringVar(&session, "session", "", "Session to join; empty opens a new one")
	return cmd
}

// rawTerminal hands the keyboard over and tells the terminal's size, now and
// whenever it changes.
func rawTerminal(ctx context.Context, f *os.File) (restore func(), resized <-chan client.Size, err error) {
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	changed := make(chan os.Signal, 1)
	changed <- syscall.SIGWINCH
	signal.Notify(changed, syscall.SIGWINCH)
	sizes := make(chan client.Size)
	go func() {
		defer close(sizes)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			cols, rows, err := term.GetSize(int(f.Fd()))
			if err != nil {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case sizes <- client.Size{Cols: cols, Rows: rows}:
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		term.Restore(int(f.Fd()), old)
	}, sizes, nil
}

func (v *verbs) copy() *cobra.Command {
	return &cobra.Command{Use: "cp SOURCE TARGET", Short: "Copy files and folders into a sandbox or out of it", Args: cobra.ExactArgs(2),
		Long:    "Copy a file or a folder into a sandbox or out of it. NAME:PATH is a path in a sandbox; - is standard input or output.\nA folder's content goes into the target folder, which is made if needed.",
		Example: "  cove cp notes.txt a:notes.txt\n  cove cp a:/home/gem/out ./out\n  cove cp a:result.json -",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			from, fromPath, inFrom := strings.Cut(args[0], ":")
			to, toPath, inTo := strings.Cut(args[1], ":")
			switch {
			case inFrom && inTo:
				return &cli.Error{Code: cli.ExitUsage, Msg: "one side must be on this machine; copy through it, or use a volume"}
			case inTo:
				return v.send(cmd.Context(), c.Guest(to), args[0], toPath)
			case inFrom:
				return v.fetch(cmd.Context(), c.Guest(from), fromPath, args[1])
			}
			return &cli.Error{Code: cli.ExitUsage, Msg: "one side must be in a sandbox, written NAME:PATH"}
		})}
}

// send copies from this machine.
func (v *verbs) send(ctx context.Context, g *client.Guest, from, to string) error {
	if from == "-" {
		_, _, err := g.Upload(ctx, to, "stdin", v.progress(v.std.In, "sent"))
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		_, _, err := g.Upload(ctx, cmp.Or(to, "./"), filepath.Base(from), v.progress(f, "sent"))
		return err
	}
	if _, err := archive.Survey(ctx, from); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive.Pack(ctx, w, from, archive.TarGz)) }()
	defer r.Close()
	_, err = g.Unpack(ctx, cmp.Or(to, "."), v.progress(r, "sent"), 1)
	return err
}

// fetch copies to this machine.
func (v *verbs) fetch(ctx context.Context, g *client.Guest, from, to string) error {
	var stat struct {
		Path string `json:"path"`
		Dir  bool   `json:"is_directory"`
	}
	if err := g.Call(ctx, "POST", "/v1/file/stat", map[string]string{"path": cmp.Or(from, ".")}, &stat); err != nil {
		return err
	}
	if !stat.Dir {
		return v.fetchFile(ctx, g, stat.Path, to)
	}
	if to == "-" {
		return &cli.Error{Code: cli.ExitUsage, Msg: "a folder needs a folder to go to"}
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	f, err := g.Archive(ctx, stat.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	report, err := archive.Unpack(ctx, v.progress(f, "received"), archive.Options{Dest: to, Overwrite: true, Strip: 1, Limits: archive.Limits{Entries: math.MaxInt, Bytes: math.MaxInt64, Packed: math.MaxInt64}})
	for _, s := range report.Skipped {
		fmt.Fprintf(v.std.Err, "left out: %s: %s\n", s.Name, s.Reason)
	}
	return err
}

func (v *verbs) fetchFile(ctx context.Context, g *client.Guest, from, to string) error {
	f, err := g.Download(ctx, from)
	if err != nil {
		return err
	}
	defer f.Close()
	if to == "-" {
		_, err := io.Copy(v.std.Out, f)
		return err
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
		to = filepath.Join(to, path.Base(from))
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; make the folder first", err)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, v.progress(f, "received"))
	return errors.Join(err, out.Close())
}

// progress shows a person how far a long copy has come.
func (v *verbs) progress(r io.Reader, did string) io.Reader {
	if !host.IsTerminal(v.std.Err) {
		return r
	}
	return &progress{Reader: r, w: v.std.Err, did: did, began: time.Now()}
}

type progress struct {
	io.Reader
	w     io.Writer
	did   string
	n     int64
	began time.Time
	shown time.Time
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.n += int64(n)
	if took := time.Since(p.began); took > time.Second && (err != nil || time.Since(p.shown) > 200*time.Millisecond) {
		p.shown = time.Now()
		fmt.Fprintf(p.w, "\r%s %.1f MB, %.1f MB/s ", p.did, float64(p.n)/1e6, float64(p.n)/1e6/took.Seconds())
		if err != nil {
			fmt.Fprintln(p.w)
		}
	}
	return n, err
}

func (v *verbs) open() *cobra.Command {
	var port int
	var page string
	cmd := &cobra.Command{Use: "open NAME", Short: "Open a page of a sandbox in the browser", Args: cobra.ExactArgs(1),
		Long: "Print the address of a page of a sandbox, signed in for a moment, and open it in this machine's browser if there is one.",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			sb, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			to := strings.TrimSuffix(sb.URL, "/") + "/" + strings.TrimPrefix(page, "/")
			if port != 0 {
				to = fmt.Sprintf("%s/proxy/%d/", strings.TrimSuffix(sb.URL, "/"), port)
			}
			if v.signed() {
				ticket, err := c.Ticket(cmd.Context())
				if err != nil {
					return err
				}
				if to, err = withTicket(to, ticket); err != nil {
					return err
				}
			}
			fmt.Fprintln(v.std.Out, to)
			runner := proc.New(proc.Config{Env: os.Environ()})
			if program, ok := runner.Look("xdg-open"); ok && host.IsTerminal(v.std.Out) {
				_, err := runner.Run(cmd.Context(), proc.Command{Path: program, Args: []string{to}})
				return err
			}
			return nil
		})}
	cmd.Flags().IntVar(&port, "port", 0, "Port of a service in the sandbox")
	cmd.Flags().StringVar(&page, "page", "terminal", "Page: terminal, vnc/index.html?autoconnect=true, v1/docs")
	return cmd
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
