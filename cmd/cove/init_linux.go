package main

import (
	"os"

	"github.com/cove-sandbox/cove/internal/app/cove"
	"github.com/cove-sandbox/cove/internal/system/isolate/initprocess"
)

// runInit becomes the init process of a sandbox if the hub started this program as init.
func runInit() {
	if len(os.Args) == 2 && os.Args[1] == cove.IsolateInit {
		initprocess.Main()
	}
}
