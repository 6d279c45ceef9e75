// Command aio is the sandbox: aio serve runs it, every other verb calls one.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/app"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// version is stamped by the build.
var version = "0.1.0"

func main() {
	// The guard is this program again, watching over children of a server.
	if len(os.Args) == 2 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	root, err := app.AioCommand(version, os.Args[1:], host.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err == nil {
		err = root.ExecuteContext(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "aio:", err)
	}
	os.Exit(cli.Code(err))
}
