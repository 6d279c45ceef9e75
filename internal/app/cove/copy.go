package cove

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

func (v *verbs) copy() *cobra.Command {
	return &cobra.Command{Use: "cp SOURCE TARGET", Short: "Copy files and folders into a sandbox or out of it",
		Args: cli.Arguments(2, 2), ValidArgsFunction: v.completeCopy,
		Long: "Copy a file or a folder into a sandbox or out of it. NAME:PATH is a path in a sandbox; - is standard input or output.\n" +
			"Into a sandbox, the content of a folder goes into the target folder, which is created if needed.\n" +
			"Out of a sandbox, a file or folder gets the last name of PATH in an existing target folder; otherwise it becomes TARGET. " +
			"PATH/. copies the content of a folder into the target folder and replaces files there. Links that point outside the copy are skipped.",
		Example: "  cove cp notes.txt a:notes.txt\n  cove cp a:/home/gem/out ./results\n  cove cp a:/home/gem/out/. ./results\n" +
			"  cove cp a:result.json -",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			from, fromPath, inFrom := strings.Cut(args[0], ":")
			to, toPath, inTo := strings.Cut(args[1], ":")
			switch {
			case inFrom && inTo:
				return &cli.Error{Code: cli.ExitUsage, Msg: "one side must be on this machine; copy in two steps, or use a volume"}
			case inTo:
				return v.upload(cmd.Context(), c.Guest(to), args[0], toPath)
			case inFrom:
				return v.download(cmd.Context(), c.Guest(from), fromPath, args[1])
			}
			return &cli.Error{Code: cli.ExitUsage, Msg: "one side must be in a sandbox, written NAME:PATH"}
		})}
}

// upload copies from this machine.
func (v *verbs) upload(ctx context.Context, g *client.Guest, from, to string) error {
	if from == "-" {
		_, _, err := g.Upload(ctx, to, "stdin", v.progress(v.std.In, "sent", -1))
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		_, _, err := g.Upload(ctx, cmp.Or(to, "./"), filepath.Base(from), v.progress(f, "sent", sizeOf(f)))
		return err
	}
	if _, err := archive.Survey(ctx, from); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive.Pack(ctx, w, from, archive.TarGz)) }()
	defer r.Close()
	_, err = g.Unpack(ctx, cmp.Or(to, "."), v.progress(r, "sent", -1), 1)
	return err
}

// sizeOf is the size of a file, -1 if it is unknown.
func sizeOf(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	return info.Size()
}

// completeCopy completes names of sandboxes, which a colon follows, and files.
func (v *verbs) completeCopy(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	if strings.ContainsAny(typed, ":/.") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, name := range v.names(cmd.Context(), "/api/v1/sandbox") {
		names = append(names, name+":")
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// progress shows the progress of a long copy on a terminal. size is -1 if it is unknown.
func (v *verbs) progress(r io.Reader, verb string, size int64) io.Reader {
	if !host.IsTerminal(v.std.Err) {
		return r
	}
	return cli.Progress(r, v.std.Err, verb, size)
}
