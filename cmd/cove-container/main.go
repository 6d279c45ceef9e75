// Command cove-container is the first process of a sandbox that an engine runs. It is
// small, because every such sandbox has one.
package main

import (
	"os"

	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

func main() { os.Exit(containerinit.Main(os.Args[1:])) }
