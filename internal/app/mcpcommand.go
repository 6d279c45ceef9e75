package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// addMCP adds the MCP commands that are not operations: stdio and call.
func addMCP(root *cobra.Command, to *cli.Client, std host.Streams) {
	noun := host.AddBridge(root, to, std, "a sandbox")
	cmd := &cobra.Command{Use: "call TOOL [NAME=VALUE]...",
		Short: "Call a tool of the sandbox, or of an added server", Args: cli.Arguments(1, -1),
		Example: "  aio mcp call bash_exec command='ls -l'\n  aio mcp call file_read path=/etc/hosts start_line=1"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		named, err := host.ParseArguments(args[1:])
		if err != nil {
			return err
		}
		body, err := json.Marshal(named)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(cmd.Context(), http.MethodPost,
			to.Address("/v1/mcp/all/tools/"+url.PathEscape(args[0])), bytes.NewReader(body))
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := to.Do(req)
		if err != nil {
			return &cli.Error{Code: cli.ExitConnect, Msg: fmt.Sprintf("cannot reach %s: %v; %s", to.URL, err, to.Help)}
		}
		defer res.Body.Close()
		return printTool(std, res)
	}
	noun.AddCommand(cmd)
}

// printTool shows the result of a tool: its texts to a person, JSON to a program.
func printTool(std host.Streams, res *http.Response) error {
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	var reply struct {
		Success bool
		Message string
		Data    *struct {
			Content []struct{ Type, Text, MIMEType, URI string } `json:"content"`
			IsError bool                                         `json:"isError"`
		}
	}
	if err := json.Unmarshal(b, &reply); err != nil || !reply.Success || reply.Data == nil {
		msg := reply.Message
		if msg == "" {
			msg = res.Status
		}
		return &cli.Error{Code: cli.ExitFailed, Msg: msg}
	}
	var text []string
	for _, c := range reply.Data.Content {
		switch {
		case c.Type == "text":
			text = append(text, c.Text)
		case c.URI != "":
			text = append(text, c.URI)
		default:
			text = append(text, "["+c.Type+" "+c.MIMEType+"]")
		}
	}
	joined := strings.Join(text, "\n")
	if reply.Data.IsError {
		return &cli.Error{Code: cli.ExitFailed, Msg: joined}
	}
	if host.IsTerminal(std.Out) {
		fmt.Fprintln(std.Out, cli.Escape(joined))
		return nil
	}
	var data struct{ Data json.RawMessage }
	if err := json.Unmarshal(b, &data); err != nil {
		return err
	}
	fmt.Fprintln(std.Out, cli.Escape(string(data.Data)))
	return nil
}
