// Command cove is the hub's program: it hands out sandboxes.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/app"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// version is stamped by the build.
var version = "0.1.0"

func main() {
	err := app.CoveCommand(version, app.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}).ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "cove:", err)
	}
	os.Exit(cli.Code(err))
}
