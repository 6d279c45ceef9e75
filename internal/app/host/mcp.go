package host

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
)

// AddBridge adds "mcp stdio", which serves the tools of a running server over standard input and
// output.
func AddBridge(root *cobra.Command, to *cli.Client, std Streams, what string) *cobra.Command {
	noun := cli.Noun(root, "mcp")
	cmd := &cobra.Command{Use: "stdio", Short: "Serve the tools of " + what + " over standard input and output", Args: cli.Arguments(0, 0),
		Long: "Serve the tools of " + what + " over standard input and output, for programs that start MCP servers as processes."}
	tools := cmd.Flags().String("tools", "", "Tools to offer: all, or names separated by commas")
	servers := cmd.Flags().String("servers", "", "Groups of tools to offer, separated by commas")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := to.Ready(); err != nil {
			return err
		}
		query := url.Values{}
		for name, value := range map[string]string{"tools": *tools, "servers": *servers} {
			if value != "" {
				query.Set(name, value)
			}
		}
		target := "/mcp"
		if len(query) > 0 {
			target += "?" + query.Encode()
		}
		bridge := mcp.Bridge{URL: to.Address(target), Do: to.Do, In: std.In, Out: std.Out}
		if err := bridge.Run(cmd.Context()); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		return nil
	}
	noun.AddCommand(cmd)
	return noun
}

// ParseArguments parses the arguments of a tool from name=value pairs. A value that is valid JSON is
// sent as JSON, other values as strings.
func ParseArguments(pairs []string) (map[string]any, error) {
	out := map[string]any{}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("invalid argument %q; use name=value", pair)}
		}
		var parsed any
		if json.Unmarshal([]byte(value), &parsed) == nil {
			out[name] = parsed
		} else {
			out[name] = value
		}
	}
	return out, nil
}
