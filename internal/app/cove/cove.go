// Package cove composes the hub's program: configuration becomes a provider, a hub
// and their operations, and the operations a server and a command line.
package cove

import (
	"context"
	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/api"
	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/cli/query"
)

// Command is the command line of cove: hub, doctor, config, a verb for every
// operation of a hub, and those that pass streams.
func Command(version string, args []string, std host.Streams) (*cobra.Command, error) {
	root := host.Root("cove", "Computers for AI agents, by the hundred", version, args, std)
	root.Long = "cove hub serves sandboxes. Every other verb calls a running hub.\n\n" + cli.ExitHelp
	root.AddCommand(hubCommand(version, std), host.Config("cove", &config.Cove{}, std), host.Version("cove", version, std))
	var where config.CoveClient
	if _, err := config.Load(&where, config.Source{Environ: config.Environ()}); err != nil {
		return nil, err
	}
	table, err := verbTable(version)
	if err != nil {
		return nil, err
	}
	to := &cli.Client{Help: `start one with "cove hub", sign in to another with "cove login URL", or set --hub-url`, SignIn: login.Help,
		ServerUsers: config.OfSudoer(where.ServerUsers), ServerUsersVariable: "COVE_SERVER_USERS"}
	root.PersistentFlags().StringVar(&to.URL, "hub-url", where.URL, "URL of the hub: http(s)://host:port or unix:/path (COVE_URL)")
	t := &login.Target{Settings: where, To: to}
	root.PersistentFlags().StringVar(&t.Context, "context", where.Context, "Context to use instead of the current one (COVE_CONTEXT)")
	_ = root.RegisterFlagCompletionFunc("context", t.Complete)
	to.Resolve = t.Resolve
	text := host.Streams{In: std.In, Out: cli.Writer(std.Out), Err: cli.Writer(std.Err)}
	v := verb.New(verb.Config{Std: std, Text: text, Agent: "cove/" + version, Unsigned: login.Help, Table: table, Inside: api.AioCommands,
		Browse:  browse,
		Address: func() string { return to.URL }, SignsIn: func() bool { return to.Token+to.Key != "" },
		Dial: func() (*client.Client, error) {
			if err := t.Resolve(); err != nil {
				return nil, err
			}
			return client.New(client.Config{URL: to.URL, Token: to.Token, Key: to.Key, Agent: "cove/" + version, Transport: to.Transport()})
		}})
	cli.Add(root, cli.Config{Table: table, Client: to, Stdin: std.In, Stdout: std.Out, Stderr: std.Err,
		Person: func() bool { return host.IsTerminal(std.Out) },
		Short:  true, Program: "cove", Units: verb.Units, Presets: verb.Presets, Complete: v.Complete,
		Select: func(_ context.Context, language, expression string) (cli.Selection, error) {
			return query.Compile(language, expression)
		}})
	v.Add(root)
	t.Add(root, login.Verbs{Std: std, Text: text, Agent: v.Agent, ExitCode: verb.WithExitCode})
	addLocal(root, v, version, t)
	host.AddBridge(root, to, std, "the hub")
	addTLS(root, where.Dir, std)
	verb.Organize(root)
	return root, nil
}
