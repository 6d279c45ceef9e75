// Package cove wires the hub's program together: configuration becomes a
// provider, a hub and their operations, and the operations a server and a command
// line.
package cove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Command is the command line of cove: hub, doctor, config, a verb for every
// operation of a hub, and those that pass streams.
func Command(version string, args []string, std host.Streams) (*cobra.Command, error) {
	root := host.Root("cove", "Computers for AI agents, by the hundred", version, args, std)
	root.Long = "cove hub serves sandboxes. Every other verb calls a running hub.\n\n" + cli.ExitHelp
	root.AddCommand(hubCommand(version, std), host.Config("cove", &config.Cove{}, std))
	var where config.CoveClient
	if _, err := config.Load(&where, config.Source{Environ: os.Environ()}); err != nil {
		return nil, err
	}
	blank, err := New(config.Cove{Listen: "127.0.0.1:10000"}, nil, version, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	to := &cli.Client{URL: where.URL, Token: where.Token, Key: where.Key, Help: `start one with "cove hub", or set --hub-url`}
	root.PersistentFlags().StringVar(&to.URL, "hub-url", where.URL, "Address of the hub: http://host:port or unix:/path (COVE_URL)")
	cli.Add(root, cli.Config{Table: blank.Table, Client: to, Stdin: std.In, Stdout: std.Out, Stderr: std.Err, Person: func() bool { return host.IsTerminal(std.Out) }})
	v := &verbs{std: std, signed: func() bool { return to.Token+to.Key != "" }, dial: func() (*client.Client, error) {
		return client.New(client.Config{URL: to.URL, Token: to.Token, Key: to.Key, Agent: "cove/" + version})
	}}
	root.AddCommand(v.exec(), v.shell(), v.copy(), v.open(), v.doctor())
	addAudit(root, v, std)
	addSecret(root, v)
	return root, nil
}

func hubCommand(version string, std host.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "hub", Short: "Serve sandboxes", Args: cobra.NoArgs,
		Long: "Serve sandboxes. Settings come from defaults, then a file, then the environment, then flags; cove config shows each with its origin."}
	flags := host.Flags(cmd, "cove", config.Fields(&config.Cove{}))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var cfg config.Cove
		if _, err := config.Load(&cfg, config.System("cove", flags())); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		return serveHub(cmd.Context(), cfg, version, std, host.Log(cfg.LogLevel, cfg.LogFormat, std.Err))
	}
	return cmd
}

func serveHub(ctx context.Context, cfg config.Cove, version string, std host.Streams, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Who may come in is settled before anything is opened.
	if _, err := New(cfg, nil, version, log); err != nil {
		return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	l, err := host.Listen(cfg.Listen)
	if err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	provider, err := openProvider(ctx, cfg, log)
	if err != nil {
		l.Close()
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error() + "; cove doctor tells what this machine can do"}
	}
	for _, missing := range provider.Abilities().Missing {
		log.Warn("not everything works here", "what", missing)
	}
	h, err := New(cfg, provider, version, log)
	if err != nil {
		l.Close()
		return &cli.Error{Code: cli.ExitFailed, Msg: errors.Join(err, provider.Close()).Error()}
	}
	if err := h.many.firstKey(cfg.State, std.Out); err != nil {
		l.Close()
		return &cli.Error{Code: cli.ExitFailed, Msg: errors.Join(err, h.Close()).Error()}
	}
	announceHub(std.Out, l.Addr())
	// A hub is one among hundreds of sandboxes: its time is dearer than its memory.
	if asked := debug.SetGCPercent(400); asked != 100 {
		debug.SetGCPercent(asked)
	}
	return host.Serve(ctx, l, h, log)
}

// announceHub tells a person where to go.
func announceHub(w io.Writer, addr net.Addr) {
	if addr.Network() == "unix" {
		fmt.Fprintf(w, "serving on unix:%s\n", addr)
		return
	}
	fmt.Fprintf(w, "serving on http://%s\n  docs  http://%s/v1/docs\n  MCP   http://%s/mcp\n  try   cove create a && cove exec a -- uname -a\n", addr, addr, addr)
}
