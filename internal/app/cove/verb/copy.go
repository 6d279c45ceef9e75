package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

func (v copier) copy() *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{Use: "cp SOURCE… TARGET", Short: "Copy files and folders into a sandbox or out of it",
		Args: cli.Arguments(2, -1), ValidArgsFunction: v.completeCopy,
		Long: "Copy files and folders into a sandbox or out of it. NAME:PATH is a path in a sandbox, relative to its home; " +
			"- is standard input or output.\n" +
			"As with docker cp and scp -r, a file or folder keeps its name in an existing target folder; otherwise it becomes TARGET. " +
			"SOURCE/. copies the content of a folder into the target folder and replaces files there. " +
			"Links that point outside the copy are skipped. A path of this machine with a colon begins with ./ or /.",
		Example: "  cove cp notes.txt a:\n  cove cp project a:            # creates project in the home of a\n" +
			"  cove cp project/. a:work      # copies the content\n  cove cp a:/home/gem/out ./results\n  cove cp a:result.json -",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return v.copyAll(cmd.Context(), c, args[:len(args)-1], args[len(args)-1])
		})}
	// Users of cp, scp and docker cp give these.
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "No effect: folders are always copied as a whole")
	return cmd
}

// copyAll copies each source to the target, which is a folder if there are several.
func (v copier) copyAll(ctx context.Context, c *client.Client, sources []string, target string) error {
	to, toPath, inTo := splitPath(target)
	if len(sources) > 1 && !strings.HasSuffix(target, "/") && toPath != "" {
		target, toPath = target+"/", toPath+"/"
	}
	for _, source := range sources {
		from, fromPath, inFrom := splitPath(source)
		var err error
		switch {
		case inFrom && inTo:
			err = &cli.Error{Code: cli.ExitUsage, Msg: "cannot copy between sandboxes; copy in two steps, or use a volume"}
		case inTo:
			err = v.upload(ctx, c.Guest(to), source, toPath)
		case inFrom:
			err = v.download(ctx, c.Guest(from), fromPath, target)
		default:
			err = &cli.Error{Code: cli.ExitUsage, Msg: "one side must be in a sandbox, written NAME:PATH"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// splitPath reads NAME:PATH. Paths that begin with . or / and drive letters of Windows are on this machine.
func splitPath(arg string) (name, path string, inside bool) {
	if strings.HasPrefix(arg, ".") || filepath.IsAbs(arg) || filepath.VolumeName(arg) != "" {
		return "", "", false
	}
	return strings.Cut(arg, ":")
}

// upload copies from this machine.
func (v copier) upload(ctx context.Context, g *client.Guest, from, to string) error {
	if from == "-" {
		_, _, err := g.Upload(ctx, to, "stdin", v.Progress(v.Std.In, "sent", -1))
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
		_, _, err := g.Upload(ctx, cmp.Or(to, "./"), filepath.Base(from), v.Progress(f, "sent", SizeOf(f)))
		return err
	}
	to = cmp.Or(to, ".")
	if !onlyContent(filepath.ToSlash(from)) {
		if to, err = folderInside(ctx, g, from, to); err != nil {
			return err
		}
	}
	return v.uploadFolder(ctx, g, from, to)
}

// folderInside returns the path that a folder of this machine gets: its name in an existing folder, otherwise the target.
func folderInside(ctx context.Context, g *client.Guest, from, to string) (string, error) {
	var stat struct {
		Dir bool `json:"is_directory"`
	}
	err := g.Call(ctx, "POST", "/v1/file/stat", map[string]string{"path": to}, &stat)
	e, failed := errors.AsType[*client.Error](err)
	switch {
	case err != nil && !failed:
		return "", err
	case failed && e.Status >= 500:
		return "", err
	case failed && strings.HasSuffix(to, "/"), err == nil && stat.Dir:
		whole, err := filepath.Abs(from) // of a path such as ..
		return strings.TrimSuffix(to, "/") + "/" + filepath.Base(whole), err
	case err == nil:
		return "", fmt.Errorf("cannot copy folder %q: %q is a file; name another target", from, to)
	}
	return to, nil
}

// uploadFolder copies the content of a folder into a folder, which it creates.
func (v copier) uploadFolder(ctx context.Context, g *client.Guest, from, to string) error {
	from, err := filepath.Abs(from) // without a final dot, which the archive's names would begin with
	if err != nil {
		return err
	}
	if _, err := archive.Survey(ctx, from); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive.Pack(ctx, w, from, archive.TarGz)) }()
	defer r.Close()
	_, err = g.Unpack(ctx, to, v.Progress(r, "sent", -1), 1)
	return err
}

// SizeOf is the size of a file, -1 if it is unknown.
func SizeOf(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	return info.Size()
}

// completeCopy completes names of sandboxes, which a colon follows, and files.
func (v copier) completeCopy(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	if strings.ContainsAny(typed, ":/.") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, name := range v.names(cmd.Context(), "/api/v1/sandbox") {
		names = append(names, name+":")
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// Progress shows the progress of a long copy on a terminal. size is -1 if it is unknown.
func (v *Verbs) Progress(r io.Reader, verb string, size int64) io.Reader {
	if !host.IsTerminal(v.Std.Err) {
		return r
	}
	return cli.Progress(r, v.Std.Err, verb, size)
}
