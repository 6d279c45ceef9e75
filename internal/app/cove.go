package app

import "github.com/spf13/cobra"

// CoveCommand is the command line of cove.
func CoveCommand(version string, std Streams) *cobra.Command {
	root := &cobra.Command{
		Use: "cove", Short: "Computers for AI agents, by the hundred", Version: version,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	return root
}
