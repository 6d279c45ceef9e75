package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Streams of a program.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// AioCommand is the command line of aio: serve, config, and a verb for every
// operation. A server does not pay for the verbs: args tell whether one is asked
// for.
func AioCommand(version string, args []string, std Streams) (*cobra.Command, error) {
	root := &cobra.Command{
		Use: "aio", Short: "A computer for an AI agent", Version: version,
		Long:          "aio serve runs a sandbox: browser, terminal, files and code behind one port.\nEvery other verb calls a running sandbox.\n\n" + cli.ExitHelp,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("%v; see %s --help", err, cmd.CommandPath())}
	})
	root.SetArgs(args)
	root.AddCommand(serveCommand(version, std), configCommand(std))
	if len(args) > 0 && args[0] == "serve" {
		return root, nil
	}
	// The table is read from a sandbox that is never started.
	var client config.Client
	if _, err := config.Load(&client, config.Source{Environ: os.Environ()}); err != nil {
		return nil, err
	}
	blank, err := NewAio(config.Aio{Listen: "127.0.0.1:8080"}, nil, version, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	to := &cli.Client{URL: client.URL, Token: client.Token, Key: client.Key}
	root.PersistentFlags().StringVar(&to.URL, "api-url", client.URL, "Address of the sandbox: http://host:port or unix:/path (AIO_API_URL)")
	cli.Add(root, cli.Config{Table: blank.Table, Client: to, Stdin: std.In, Stdout: std.Out, Stderr: std.Err, Person: func() bool { return isTerminal(std.Out) }})
	return root, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// configFlags gives a command one flag for every setting.
func configFlags(cmd *cobra.Command) func() map[string][]string {
	for _, f := range config.Fields(&config.Aio{}) {
		cmd.Flags().String(f.Flag, "", f.Doc)
		if f.Type == config.Bool {
			cmd.Flags().Lookup(f.Flag).NoOptDefVal = "true"
		}
	}
	cmd.Flags().String("config", "", "File with settings (AIO_CONFIG; otherwise /etc/aio/config.yaml if it is there)")
	return func() map[string][]string {
		given := map[string][]string{}
		for _, f := range config.Fields(&config.Aio{}) {
			if flag := cmd.Flags().Lookup(f.Flag); flag.Changed {
				given[f.Flag] = []string{flag.Value.String()}
			}
		}
		if flag := cmd.Flags().Lookup("config"); flag.Changed {
			given["config"] = []string{flag.Value.String()}
		}
		return given
	}
}

func serveCommand(version string, std Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Run a sandbox", Args: cobra.NoArgs,
		Long: "Run a sandbox. Settings come from defaults, then a file, then the environment, then flags; aio config shows each with its origin."}
	flags := configFlags(cmd)
	cmd.Flags().Bool("no-init", false, "Serve in this very process, even as PID 1")
	cmd.Flags().Lookup("no-init").Hidden = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var cfg config.Aio
		src := config.System("aio", flags())
		if _, err := config.Load(&cfg, src); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		log := newLog(cfg, std.Err)
		inner, err := cmd.Flags().GetBool("no-init")
		if err != nil {
			return err
		}
		if !inner && needsInit(cfg) {
			return underInit(cfg, src.Environ, log)
		}
		return serve(cmd.Context(), cfg, src.Environ, version, std, log)
	}
	return cmd
}

func serve(ctx context.Context, cfg config.Aio, environ []string, version string, std Streams, log *slog.Logger) error {
	// Signals are heard before anything is started that they should end.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	sandbox, err := NewAio(cfg, environ, version, log)
	if err != nil {
		return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	l, err := Listen(cfg.Listen)
	if err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	announce(std.Out, l.Addr())
	return Serve(ctx, l, sandbox, log)
}

// announce tells a person where to go.
func announce(w io.Writer, addr net.Addr) {
	if addr.Network() == "unix" {
		fmt.Fprintf(w, "serving on unix:%s\n", addr)
		return
	}
	fmt.Fprintf(w, "serving on http://%s\n  docs  http://%s/v1/docs\n  MCP   http://%s/mcp\n", addr, addr, addr)
}

// needsInit: as PID 1 somebody must reap, and to serve as another user somebody
// must stay behind who may still act for it.
func needsInit(cfg config.Aio) bool {
	return os.Getpid() == 1 || switches(cfg)
}

func switches(cfg config.Aio) bool { return cfg.User != "" && os.Geteuid() == 0 }

func underInit(cfg config.Aio, environ []string, log *slog.Logger) error {
	c := proc.InitConfig{Argv: append([]string{"/proc/self/exe"}, append(os.Args[1:], "--no-init")...), Env: environ, Log: log}
	if switches(cfg) {
		user, err := proc.LookupUser(cfg.User)
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		c.User = user
	}
	if code := proc.Init(c); code != 0 {
		return &cli.Error{Code: code, Msg: fmt.Sprintf("the server ended with code %d", code)}
	}
	return nil
}

func newLog(cfg config.Aio, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func configCommand(std Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Print each setting with its value and where it came from", Args: cobra.NoArgs}
	flags := configFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		var cfg config.Aio
		report, err := config.Load(&cfg, config.System("aio", flags()))
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		tw := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "KEY\tVALUE\tORIGIN")
		for _, row := range report.Rows {
			fmt.Fprintf(tw, "%s\t%s\t%s\n", row.Key, strings.ReplaceAll(row.Value, "\n", " "), row.Origin)
		}
		return tw.Flush()
	}
	return cmd
}
