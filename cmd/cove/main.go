// Command cove is the hub: cove hub serves sandboxes, all other commands call a running hub.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/app/cove"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// version is set by the build.
var version = "0.1.0"

func main() {
	runInit()
	config.DetachArgs()
	root, err := cove.Command(version, os.Args[1:], host.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err == nil {
		err = root.ExecuteContext(context.Background())
	}
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, "cove:", cli.Escape(err.Error()))
	}
	os.Exit(cli.Code(err))
}
