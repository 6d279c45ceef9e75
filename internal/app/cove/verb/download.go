package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// download copies to this machine. Where it writes follows from its arguments and this machine's files alone: what answers for the
// sandbox can lie about names, types and contents.
func (v copier) download(ctx context.Context, g *client.Guest, from, to string) error {
	var stat struct {
		Dir bool `json:"is_directory"`
	}
	if err := g.Call(ctx, "POST", "/v1/file/stat", map[string]string{"path": cmp.Or(from, ".")}, &stat); err != nil {
		return err
	}
	if stat.Dir {
		return v.downloadFolder(ctx, g, from, to)
	}
	return v.downloadFile(ctx, g, from, to)
}

func (v copier) downloadFolder(ctx context.Context, g *client.Guest, from, to string) error {
	if to == "-" {
		return &cli.Error{Code: cli.ExitUsage, Msg: "cannot write a folder to standard output; name a folder"}
	}
	f, err := g.Archive(ctx, cmp.Or(from, "."))
	if err != nil {
		return err
	}
	defer f.Close()
	dest, err := makeFolder(from, to)
	if err != nil {
		return err
	}
	report, err := archive.Unpack(ctx, v.Progress(f, "received", -1), archive.Options{Dest: dest, Overwrite: true, Strip: 1, Untrusted: true,
		Limits: archive.Limits{Entries: math.MaxInt, Bytes: math.MaxInt64, Packed: math.MaxInt64}})
	for _, s := range report.Skipped {
		fmt.Fprintf(v.Text.Err, "skipped: %s: %s\n", cli.Line(s.Name), cli.Line(s.Reason))
	}
	return err
}

// makeFolder returns the folder that the content of from goes into, which it creates unless it exists: to itself if it is new or if
// from asks for the content alone, and otherwise the last name of from in it.
func makeFolder(from, to string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(to)), 0o777); err != nil {
		return "", err
	}
	err := os.Mkdir(to, 0o777)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return to, err
	}
	if onlyContent(from) {
		return to, nil
	}
	name, err := lastName(from)
	if err != nil {
		return "", err
	}
	dest := filepath.Join(to, name)
	err = os.Mkdir(dest, 0o777)
	if !errors.Is(err, fs.ErrExist) {
		return dest, err
	}
	// A link would lead the copy elsewhere.
	if info, err := os.Lstat(dest); err != nil || !info.IsDir() {
		return "", errors.Join(err, fmt.Errorf("%q exists and is not a folder; remove it or name another target", dest))
	}
	return dest, nil
}

// onlyContent reports whether a path asks for the content of a folder instead of the folder.
func onlyContent(from string) bool { return from == "." || strings.HasSuffix(from, "/.") }

// lastName returns the name that a path of a sandbox gets on this machine.
func lastName(from string) (string, error) {
	name := path.Base(from)
	if strings.Trim(from, "/") == "" || name == "." || name == ".." || name == "~" || name != filepath.Base(name) || !filepath.IsLocal(name) {
		msg := fmt.Sprintf("path %q does not end in a name that this machine can use; name a new target, or copy the content with PATH/.", from)
		return "", &cli.Error{Code: cli.ExitUsage, Msg: msg}
	}
	return name, nil
}

func (v copier) downloadFile(ctx context.Context, g *client.Guest, from, to string) error {
	if info, err := os.Stat(to); to != "-" && (err == nil && info.IsDir() || strings.HasSuffix(to, "/")) {
		name, err := lastName(from)
		if err != nil {
			return err
		}
		to = filepath.Join(to, name)
	}
	f, err := g.Download(ctx, from)
	if err != nil {
		return err
	}
	defer f.Close()
	if to == "-" {
		_, err := io.Copy(v.Std.Out, f)
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; create the folder first", err)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, v.Progress(f, "received", f.Size))
	return errors.Join(err, out.Close())
}
