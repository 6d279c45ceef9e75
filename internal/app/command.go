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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// AioCommand returns the command line of aio: serve, config, and a verb for every operation. The
// verbs are built only if args need them, which shortens the start of a server.
func AioCommand(version string, args []string, std host.Streams) (*cobra.Command, error) {
	root := host.Root("aio", "A computer for an AI agent", version, args, std)
	root.Long = "aio serve runs a sandbox: browser, terminal, files and code behind one port.\nAll other commands " +
		"call a running sandbox.\n\n" + cli.ExitHelp
	root.AddCommand(serveCommand(version, args, std))
	if len(args) > 0 && args[0] == "serve" {
		root.CompletionOptions.DisableDefaultCmd = true
		return root, nil
	}
	root.AddCommand(host.Config("aio", &config.Aio{}, std), host.Version("aio", version, std))
	// The table is that of a sandbox that is never started.
	var client config.Client
	if _, err := config.Load(&client, config.Source{Environ: config.Environ()}); err != nil {
		return nil, err
	}
	blank, err := NewAio(config.Aio{Listen: "127.0.0.1:8080"}, nil, version, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	to := &cli.Client{URL: client.URL, Token: client.Token, Key: client.Key, Help: `start one with "aio serve", or set --api-url`,
		ServerUsers: config.OfSudoer(client.ServerUsers), ServerUsersVariable: "AIO_SERVER_USERS"}
	root.PersistentFlags().StringVar(&to.URL, "api-url", client.URL, "URL of the sandbox: http://host:port or unix:/path (AIO_API_URL)")
	verbs := cli.Config{Table: blank.Table, Client: to, Stdin: std.In, Stdout: std.Out, Stderr: std.Err,
		Person: func() bool { return host.IsTerminal(std.Out) }, Select: selectInHelper, Program: "aio"}
	cli.Add(root, verbs)
	cli.AddShort(root, verbs, shortVerbs...)
	addMCP(root, to, std)
	return root, nil
}

func serveCommand(version string, args []string, std host.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Run a sandbox", Args: cli.Arguments(0, 0),
		Long: "Run a sandbox. Settings come from defaults, a file, the environment and flags; later sources override " +
			"earlier ones. aio config prints each setting with its origin."}
	flags := func() map[string][]string { return nil }
	if len(args) != 1 { // a hub, which starts many servers, passes no flags
		flags = host.Flags(cmd, "aio", config.Fields(&config.Aio{}))
	}
	cmd.Flags().Bool("no-init", false, "Serve in this process, even as PID 1")
	cmd.Flags().Lookup("no-init").Hidden = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		src := config.System("aio", flags())
		var cfg config.Aio
		if _, err := config.Load(&cfg, src); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		if cfg.Alone {
			src.Environ = limitStart(src.Environ)
		}
		log := host.Log(cfg.LogLevel, cfg.LogFormat, std.Err)
		// Child processes could read the credentials of the server.
		if err := config.Hide(src, &cfg); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		// Programs of the same user, such as all programs in a sandbox, could read credentials from
		// its memory, or take over its listening socket.
		if err := proc.SealMemory(); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		noInit, err := cmd.Flags().GetBool("no-init")
		if err != nil {
			return err
		}
		if !noInit && needsInit(cfg) {
			return runInit(cfg, src.Environ, log)
		}
		return serve(cmd.Context(), cfg, src, version, std, log)
	}
	return cmd
}

// startLimit is longer than startup takes on a busy machine.
const startLimit = 2 * time.Second

// limitStart removes the limit of GOMAXPROCS after the server has started, and returns the
// environment without it. On one processor the runtime does not search other processors for work,
// which saves time if a hundred sandboxes start at once.
func limitStart(environ []string) []string {
	time.AfterFunc(startLimit, runtime.SetDefaultGOMAXPROCS)
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return name == "GOMAXPROCS" || name == "AIO_ALONE"
	})
}

func serve(ctx context.Context, cfg config.Aio, src config.Source, version string, std host.Streams, log *slog.Logger) error {
	host.WarnOfSecretFlags(log, config.Fields(&cfg), src.Flags)
	if cfg.LogDir != "" {
		if err := newLogDir(cfg.LogDir).create(); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
	}
	cfg.SessionLogs = openSessionLogs(cfg, log)
	// Signals must be handled before child processes start.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	users, all, err := localUsers(cfg)
	if err != nil {
		return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	loopback, err := relay.New(relay.Config{Target: cfg.Egress, Always: true, Listen: cfg.Outlet, Open: all, Users: users, Log: log})
	if err != nil {
		return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	// Open it before starting anything: the environment of children contains its port.
	if err := loopback.Open(); err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	defer loopback.Close()
	plan := blueprint{cfg: cfg, src: src, relay: loopback}
	sandbox, err := plan.build(version, log)
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
	if cfg.Door != "" {
		return host.ListenDoor(cfg.Door, cfg.Listen)
	}
	return host.Listen(cfg.Listen, "AIO_LISTEN")
}

// announce prints the URLs of the server.
func announce(w io.Writer, cfg config.Aio, addr net.Addr) {
	if addr.Network() == "unix" {
		fmt.Fprintf(w, "serving on %s\n", cfg.Listen)
		return
	}
	fmt.Fprintf(w, "serving on http://%s\n"+
		"  guide http://%[1]s/guide\n  docs  http://%[1]s/v1/docs\n  MCP   http://%[1]s/mcp\n", addr)
}

// needsInit reports whether a parent process is needed: as PID 1 to reap orphans, or to keep
// its privileges while the server runs as another user.
func needsInit(cfg config.Aio) bool {
	return os.Getpid() == 1 || switchesUser(cfg)
}

func switchesUser(cfg config.Aio) bool { return cfg.User != "" && os.Geteuid() == 0 }

// findUser finds the user to run as. A user given by numeric IDs need not exist.
func findUser(cfg config.Aio) (*proc.User, error) {
	user, err := proc.LookupUser(cfg.User)
	if id := strconv.Itoa(cfg.UserUID); cfg.UserUID == 0 || cfg.User != id {
		return user, err
	}
	if err != nil {
		user = &proc.User{Name: cfg.User, Home: cfg.Home, UID: uint32(cfg.UserUID), GID: uint32(cfg.UserUID)}
	}
	if cfg.UserGID != 0 {
		user.GID = uint32(cfg.UserGID)
	}
	return user, nil
}

// runInit starts the server as a child and reaps orphans until it ends.
func runInit(cfg config.Aio, environ []string, log *slog.Logger) error {
	c := proc.InitConfig{Argv: append([]string{"/proc/self/exe"}, append(os.Args[1:], "--no-init")...), Env: environ, Log: log}
	if switchesUser(cfg) {
		user, err := findUser(cfg)
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		c.User = user
		c.Argv = append(c.Argv, "--user", cfg.User) // a numeric ID in the environment is used only by root
	}
	if code := proc.Init(c); code != 0 {
		return &cli.Error{Code: code, Msg: fmt.Sprintf("the server exited with code %d", code)}
	}
	return nil
}
