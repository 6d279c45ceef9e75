// Command hub is cove with profiling, at the address in the variable PROFILE.
package main

import (
	"context"
	"fmt"
	"net/http"
	_ "net/http/pprof"
	"os"

	"github.com/cove-sandbox/cove/internal/app/cove"
	"github.com/cove-sandbox/cove/internal/app/host"
)

func main() {
	go http.ListenAndServe(os.Getenv("PROFILE"), nil)
	root, err := cove.Command("scale", os.Args[1:], host.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err == nil {
		err = root.ExecuteContext(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hub:", err)
		os.Exit(1)
	}
}
