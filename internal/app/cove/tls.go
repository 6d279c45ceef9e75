package cove

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// addTLS adds the verb tls init.
func addTLS(root *cobra.Command, configDir string, std host.Streams) {
	var dir, domain string
	var port int
	noun := cli.Noun(root, "tls")
	noun.Short = "Certificates for a hub that serves HTTPS"
	cmd := &cobra.Command{Use: "init", Short: "Create a certificate for a hub on this machine", Args: cli.Arguments(0, 0),
		Long: "Create a certificate authority and a certificate for a domain and all names below it, in a new " +
			"folder that only you can read. Nothing is overwritten. " +
			"The authority's key is discarded, so it cannot be used for other names. Standard output has the " +
			"variables for E2B's clients, to be evaluated by a shell.",
		Example: "  eval \"$(cove tls init)\"\n  cove tls init --domain sandbox.example.com --dir ./tls",
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				dir = filepath.Join(configDir, "tls")
			}
			path, err := filepath.Abs(dir)
			if err != nil {
				return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
			}
			files, err := certificate.Create(path, domain)
			if err != nil {
				return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
			}
			fmt.Fprintf(std.Err, "created %s, %s and %s\nstart the hub with\n  cove hub --domains %s --tls-cert %s --tls-key %s\nand clients with\n",
				files.Authority, files.Cert, files.Key, verb.Quote([]string{domain}), verb.Quote([]string{files.Cert}), verb.Quote([]string{files.Key}))
			ca := verb.Quote([]string{files.Authority})
			at := verb.Quote([]string{fmt.Sprintf("%s:%d", domain, port)})
			fmt.Fprintf(std.Out, "export E2B_DOMAIN=%s\nexport SSL_CERT_FILE=%s NODE_EXTRA_CA_CERTS=%s\n", at, ca, ca)
			return nil
		}}
	cmd.Flags().StringVar(&dir, "dir", "", "Folder to create (default: tls next to the contexts file)")
	cmd.Flags().StringVar(&domain, "domain", "cove.localhost", "Domain below which sandboxes have names")
	cmd.Flags().IntVar(&port, "port", 10000, "Port that the hub listens on")
	noun.AddCommand(cmd)
}
