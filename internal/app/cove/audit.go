//go:build linux

package cove

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// addAudit adds the verb audit verify, which also works on a folder that no hub
// serves.
func addAudit(root *cobra.Command, v *verb.Verbs, std host.Streams) {
	parent, _, err := root.Find([]string{"audit"})
	if err != nil || parent == root {
		parent = &cobra.Command{Use: "audit", Short: "Commands for audit"}
		root.AddCommand(parent)
	}
	var keyFile string
	var check hub.AuditCheck
	cmd := &cobra.Command{Use: "verify", Short: "Verify the audit log", Args: cli.Arguments(0, 0),
		Long: "Verify the audit log of a running hub, or with --dir the one in a directory, and name the first " +
			"line that was changed, removed, moved or cut off.\nThe exit code is 1 if there is one."}
	cmd.Flags().StringVar(&check.Dir, "dir", "", "Directory of the log, usually audit in the hub's state directory")
	cmd.Flags().StringVar(&keyFile, "key-file", "", "File with the key that the log was written with")
	cmd.Flags().Uint64Var(&check.Known.Seq, "known-seq", 0, "Sequence number of a line stored elsewhere that must exist")
	cmd.Flags().StringVar(&check.Known.Hash, "known-hash", "", "Hash of the line with the sequence number known-seq")
	overHub := v.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		var r hub.AuditReport
		if err := c.Call(cmd.Context(), "GET", "/api/v1/audit/verify", nil, &r); err != nil {
			return err
		}
		return report(std, r)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if check.Dir == "" {
			return overHub(cmd, args)
		}
		r, err := hub.VerifyAudit(cmd.Context(), check, keyFile)
		if e, ok := op.AsError(err); ok && e.Code == op.Invalid {
			return &cli.Error{Code: cli.ExitUsage, Msg: e.Msg}
		}
		if err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		return report(std, r)
	}
	parent.AddCommand(cmd)
}

// report prints what was found.
func report(std host.Streams, r hub.AuditReport) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintln(std.Out, cli.Escape(string(b)))
	if r.Problem != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: r.Problem.String()}
	}
	return nil
}
