// Command aio is the sandbox: aio serve runs it, all other commands call a running one.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/app"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// version is set by the build.
var version = "0.1.0"

func main() {
	// The guard is another process of this program. It kills the children of a killed server.
	if len(os.Args) == 2 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	if len(os.Args) > 1 && os.Args[1] == app.HelpCommand {
		if err := app.Help(os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "aio:", err)
			os.Exit(1)
		}
		return
	}
	config.DetachArgs()
	root, err := app.AioCommand(version, os.Args[1:], host.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err == nil {
		err = root.ExecuteContext(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "aio:", cli.Escape(err.Error()))
	}
	os.Exit(cli.Code(err))
}
