// Command cove is the hub's program: it hands out sandboxes, and reaches them.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/app/cove"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// version is stamped by the build.
var version = "0.1.0"

func main() {
	// The first process of a sandbox is this program again.
	if len(os.Args) == 2 && os.Args[1] == cove.IsolateInit {
		isolate.Main()
	}
	root, err := cove.Command(version, os.Args[1:], host.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err == nil {
		err = root.ExecuteContext(context.Background())
	}
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, "cove:", err)
	}
	os.Exit(cli.Code(err))
}
