package verb

import (
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// maxSecret is larger than any valid secret.
const maxSecret = 1 << 20

// addSecret adds the verb secret set, which reads the value from standard input:
// others can read command lines.
func (v *Verbs) addSecret(root *cobra.Command) {
	parent, _, err := root.Find([]string{"secret"})
	if err != nil || parent == root {
		parent = &cobra.Command{Use: "secret", Short: "Commands for secret"}
		root.AddCommand(parent)
	}
	in := struct {
		Value    string   `json:"value"`
		Mode     string   `json:"mode,omitempty"`
		Target   string   `json:"target,omitempty"`
		Hosts    []string `json:"hosts,omitempty"`
		Header   string   `json:"header,omitempty"`
		Format   string   `json:"format,omitempty"`
		Insecure bool     `json:"insecure,omitempty"`
	}{}
	cmd := &cobra.Command{Use: "set NAME", Short: "Store a secret, or replace it", Args: cli.Arguments(1, 1),
		Long: "Store a secret, or replace it. The value is read from standard input, without the line break at " +
			"its end. It can never be read back.",
		Example: "  cove secret set token < token.txt\n  cove secret set github --mode broker --host " +
			"api.github.com < token.txt\n  cove create a --secrets github",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			b, err := io.ReadAll(io.LimitReader(v.Std.In, maxSecret))
			if err != nil {
				return err
			}
			if in.Value = strings.TrimRight(string(b), "\r\n"); in.Value == "" {
				return &cli.Error{Code: cli.ExitUsage, Msg: "no value on standard input; pipe the value in"}
			}
			return c.Call(cmd.Context(), "PUT", "/api/v1/secret/"+url.PathEscape(args[0]), in, nil)
		})}
	cmd.Flags().StringVar(&in.Mode, "mode", "env", "How a sandbox gets it: env, file or broker")
	cmd.Flags().StringVar(&in.Target, "target", "", "Environment variable (default: the name) or absolute path of the file")
	cmd.Flags().StringArrayVar(&in.Hosts, "host", nil, "Brokered: host name, *.name for all subdomains; repeatable")
	cmd.Flags().StringVar(&in.Header, "header", "", "Brokered: the header (default Authorization)")
	cmd.Flags().StringVar(&in.Format, "value-format", "", "Brokered: the header's value, with %s where the secret goes")
	cmd.Flags().BoolVar(&in.Insecure, "insecure", false, "Brokered: over plain HTTP too")
	parent.AddCommand(cmd)
}
