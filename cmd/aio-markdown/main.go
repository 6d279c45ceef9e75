// Command aio-markdown converts web pages to Markdown and reads Excel files for aio. It
// must be in the folder of aio.
package main

import (
	"os"

	"github.com/cove-sandbox/cove/internal/document/markdown"
)

func main() { os.Exit(markdown.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
