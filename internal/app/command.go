package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/outlet"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// AioCommand is the command line of aio: serve, config, and a verb for every
// operation. A server does not pay for the verbs: args tell whether one is asked
// for.
func AioCommand(version string, args []string, std host.Streams) (*cobra.Command, error) {
	root := host.Root("aio", "A computer for an AI agent", version, args, std)
	root.Long = "aio serve runs a sandbox: browser, terminal, files and code behind one port.\nEvery other verb calls a running sandbox.\n\n" + cli.ExitHelp
	root.AddCommand(serveCommand(version, std), host.Config("aio", &config.Aio{}, std))
	if len(args) > 0 && args[0] == "serve" {
		root.CompletionOptions.DisableDefaultCmd = true
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
	to := &cli.Client{URL: client.URL, Token: client.Token, Key: client.Key, Help: `start one with "aio serve", or set --api-url`}
	root.PersistentFlags().StringVar(&to.URL, "api-url", client.URL, "Address of the sandbox: http://host:port or unix:/path (AIO_API_URL)")
	cli.Add(root, cli.Config{Table: blank.Table, Client: to, Stdin: std.In, Stdout: std.Out, Stderr: std.Err, Person: func() bool { return host.IsTerminal(std.Out) }})
	return root, nil
}

func serveCommand(version string, std host.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Run a sandbox", Args: cobra.NoArgs,
		Long: "Run a sandbox. Settings come from defaults, then a file, then the environment, then flags; aio config shows each with its origin."}
	flags := host.Flags(cmd, "aio", config.Fields(&config.Aio{}))
	cmd.Flags().Bool("no-init", false, "Serve in this very process, even as PID 1")
	cmd.Flags().Lookup("no-init").Hidden = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		src := config.System("aio", flags())
		var cfg config.Aio
		if _, err := config.Load(&cfg, src); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		if cfg.Alone {
			src.Environ = startAlone(src.Environ)
		}
		log := host.Log(cfg.LogLevel, cfg.LogFormat, std.Err)
		inner, err := cmd.Flags().GetBool("no-init")
		if err != nil {
			return err
		}
		if !inner && needsInit(cfg) {
			return underInit(cfg, src.Environ, log)
		}
		return serve(cmd.Context(), cfg, src, version, std, log)
	}
	return cmd
}

// aloneFor is longer than a start takes on a busy machine.
const aloneFor = 2 * time.Second

// startAlone ends what the environment asks for, and returns it without. A server
// that starts on one processor does not look on others for work that there is none
// of, and of sandboxes hundred may start at once.
func startAlone(environ []string) []string {
	time.AfterFunc(aloneFor, runtime.SetDefaultGOMAXPROCS)
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return name == "GOMAXPROCS" || name == "AIO_ALONE"
	})
}

func serve(ctx context.Context, cfg config.Aio, src config.Source, version string, std host.Streams, log *slog.Logger) error {
	// Signals are heard before anything is started that they should end.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	way, err := outlet.New(outlet.Config{Target: cfg.Egress, Listen: cfg.Outlet, Log: log})
	if err != nil {
		return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	// Before anything is started, whose environment names the port that was free.
	if err := way.Open(); err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	defer way.Close()
	first := setting{cfg: cfg, src: src, outward: func(c config.Aio, environ []string) (config.Aio, []string) { return outward(way, c, environ) }}
	sandbox, err := first.program(version, log)
	if err != nil {
		return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	l, err := listen(cfg)
	if err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	announce(std.Out, cfg, l.Addr())
	return host.Serve(ctx, l, sandbox, log)
}

func listen(cfg config.Aio) (net.Listener, error) {
	if cfg.ListenFD > 0 {
		return host.Inherit(cfg.ListenFD)
	}
	return host.Listen(cfg.Listen)
}

// outward leads what a sandbox starts to the way out, if it needs one.
func outward(way *outlet.Outlet, cfg config.Aio, environ []string) (config.Aio, []string) {
	url := way.URL()
	if url == "" {
		return cfg, environ
	}
	cfg.Outlet, environ = way.Address(), way.Environ(environ)
	if cfg.ProxyServer == "" {
		cfg.ProxyServer = url
		cfg.ProxyExclude = append(cfg.ProxyExclude, "localhost", "*.localhost", "127.*", "::1")
	}
	return cfg, environ
}

// announce tells a person where to go.
func announce(w io.Writer, cfg config.Aio, addr net.Addr) {
	if addr.Network() == "unix" {
		fmt.Fprintf(w, "serving on %s\n", cfg.Listen)
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
