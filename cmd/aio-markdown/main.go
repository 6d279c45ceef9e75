// Command aio-markdown converts web pages to Markdown, reads Excel files and evaluates
// --jq for aio, whose start its libraries would slow down. It must be in the folder of aio.
package main

import (
	"os"

	"github.com/cove-sandbox/cove/internal/document/markdown"
	"github.com/cove-sandbox/cove/internal/surface/cli/query"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "select" {
		os.Exit(query.Main(args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(markdown.Main(args, os.Stdin, os.Stdout, os.Stderr))
}
