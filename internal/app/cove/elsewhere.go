//go:build !linux

package cove

import (
	"context"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/api"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// IsolateInit is the argument with which the program would start itself as the first process
// of a sandbox.
const IsolateInit = "isolate-init"

// verbTable is the table as the hub's own build has written it down.
func verbTable(string) (*op.Table, error) { return op.ReadOutline(api.CoveVerbs) }

// addLocal adds nothing: the verbs that work on a hub's machine need Linux.
func addLocal(*cobra.Command, *verb.Verbs, string, *login.Target) {}

// browse leaves it to the user to open the page.
func browse(context.Context, string) error { return nil }

func hubCommand(string, host.Streams) *cobra.Command {
	return &cobra.Command{Use: "hub", Short: "Serve sandboxes (on Linux)", DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return &cli.Error{Code: cli.ExitUsage, Msg: "a hub runs on Linux, not on " + runtime.GOOS +
				"; run it in a Linux virtual machine or container " +
				"(docker run, or WSL on Windows), or sign in to a hub elsewhere with \"cove login URL\""}
		}}
}
