package cove

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/audit"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// addAudit puts verify beside the other verbs of audit: it also works on a
// folder that no hub serves.
func addAudit(root *cobra.Command, v *verbs, std host.Streams) {
	parent, _, err := root.Find([]string{"audit"})
	if err != nil || parent == root {
		parent = &cobra.Command{Use: "audit", Short: "Operations of audit"}
		root.AddCommand(parent)
	}
	var dir, key string
	var known audit.Mark
	cmd := &cobra.Command{Use: "verify", Short: "Verify the audit log", Args: cobra.NoArgs,
		Long: "Verify the audit log of a running hub, or with --dir one in a folder, and name the first line that was changed, removed, moved or cut off.\nThe exit code is 1 if there is one."}
	cmd.Flags().StringVar(&dir, "dir", "", "Folder of the log, such as audit below the hub's state folder")
	cmd.Flags().StringVar(&key, "key-file", "", "File with the key that the log was written with")
	cmd.Flags().Uint64Var(&known.Seq, "known-seq", 0, "Sequence number of a line that was noted elsewhere and must be there")
	cmd.Flags().StringVar(&known.Hash, "known-hash", "", "Its hash")
	overHub := v.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		var r audit.Report
		if err := c.Call(cmd.Context(), "GET", "/api/v1/audit/verify", nil, &r); err != nil {
			return err
		}
		return report(std, r)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dir == "" {
			return overHub(cmd, args)
		}
		check := audit.Check{Dir: dir, Known: known}
		if key != "" {
			var err error
			if check.Key, err = readKey(key); err != nil {
				return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
			}
		}
		r, err := audit.Verify(cmd.Context(), check)
		if err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		return report(std, r)
	}
	parent.AddCommand(cmd)
}

// report prints what was found.
func report(std host.Streams, r audit.Report) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintf(std.Out, "%s\n", b)
	if r.Problem != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: r.Problem.String()}
	}
	return nil
}
