// Command aio-markdown turns a web page into Markdown, for aio, which finds it in its
// own folder.
package main

import (
	"os"

	"github.com/cove-sandbox/cove/internal/markdown"
)

func main() { os.Exit(markdown.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
