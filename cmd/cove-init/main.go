// Command cove-init is the first process of a sandbox. cove can be that itself; this
// one is a sixth of its size and starts in a third of its time, which is most of what
// a sandbox costs to make when hundred are made at once. It runs on one processor, so
// the runtime need not look for how many its control group has.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/isolate"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "cove-init: it is started by cove, as the first process of a sandbox")
		os.Exit(2)
	}
	isolate.Main()
}
