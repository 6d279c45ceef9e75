// Command cove-init is the first process of a sandbox. cove can be that process, too, but
// cove-init has a sixth of its size and starts in a third of its time, which is most of
// the cost of a sandbox when a hundred are created at once. Under the name sudo it is the
// sandbox's sudo.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/system/isolate/initprocess"
	"github.com/cove-sandbox/cove/internal/system/sudo"
)

func main() {
	if filepath.Base(os.Args[0]) == sudo.Name {
		sudo.Main(os.Args[1:])
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "cove-init: only cove starts this program, as the first process of a sandbox")
		os.Exit(2)
	}
	initprocess.Main()
}
