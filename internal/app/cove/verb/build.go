package verb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/filesystem/buildcontext"
	"github.com/cove-sandbox/cove/internal/recipe/dockerfile"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// buildOptions are the flags of build.
type buildOptions struct {
	names, args, secrets []string
	file, target         string
	quiet, detach        bool
	options              client.BuildOptions
}

// build builds templates from Dockerfiles.
type builder struct{ *Verbs }

func (v builder) build() *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{Use: "build [flags] [DIR]", Short: "Build a template from a Dockerfile", Args: cli.Arguments(0, 1),
		Long: "Build a template from a Dockerfile and the files of DIR, and create sandboxes from it: cove create --environment NAME. " +
			"Steps that have not changed are not run again, and only missing files are sent. The build runs in a sandbox of the hub, " +
			"with its limits and network rules.\n" +
			"FROM names an image, environment://NAME or template://NAME. .dockerignore excludes files. What a template cannot have is " +
			"rejected with its line. Ctrl-C cancels the build.",
		Example: "  cove build -t web .\n  cove build -t web:v2 --build-arg VERSION=2 --secret id=npmrc,src=$HOME/.npmrc .\n" +
			"  cove create a --environment web"}
	cmd.RunE = v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
		dir := "."
		if len(args) > 0 {
			dir = args[0]
		}
		return v.run(cmd.Context(), c, o, dir)
	})
	f := cmd.Flags()
	f.StringArrayVarP(&o.names, "tag", "t", nil, "Name of the template, NAME or NAME:TAG; repeatable for more tags. Default: name of DIR")
	f.StringVarP(&o.file, "file", "f", "", "Dockerfile; - reads it from standard input. Default: DIR/Dockerfile")
	f.StringArrayVar(&o.args, "build-arg", nil, "Build argument, NAME=VALUE, or NAME to take it from the environment; repeatable")
	f.StringArrayVar(&o.secrets, "secret", nil, "Secret for steps that mount it: id=ID,src=FILE or id=ID,env=NAME; repeatable")
	f.StringVar(&o.target, "target", "", "Stage to build. Default: the last one")
	f.BoolVar(&o.options.Force, "no-cache", false, "Run all steps again")
	f.BoolVar(&o.options.Pull, "pull", false, "Pull the images again")
	f.BoolVar(&o.options.Keep, "keep", false, "Keep a copy of the sandbox of a failed step")
	f.StringVar(&o.options.Start, "start", "",
		"Shell command that runs in each sandbox. Default: that of the image if it has EXPOSE or HEALTHCHECK")
	f.StringVar(&o.options.Ready, "ready", "", "Shell command that succeeds when the start command is ready")
	f.StringVar(&o.options.CPU, "cpu-limit", "", "CPU limit of the build and its sandboxes, such as 1500m")
	f.StringVarP(&o.options.Memory, "memory-limit", "m", "", "Memory limit of both, such as 2Gi")
	f.StringVar(&o.options.Disk, "disk-limit", "", "Disk limit of both, such as 10Gi")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "Print only the name of the template, and the output of a failed step")
	f.BoolVarP(&o.detach, "detach", "d", false, "Start the build, print its ID and return")
	return cmd
}

func usage(format string, args ...any) error {
	return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf(format, args...)}
}

func (v builder) run(ctx context.Context, c *client.Client, o buildOptions, dir string) error {
	began := time.Now()
	name, err := o.name(dir)
	if err != nil {
		return err
	}
	file, text, err := v.dockerfile(o.file, dir)
	if err != nil {
		return err
	}
	args, err := buildArgs(o.args)
	if err != nil {
		return err
	}
	if o.options.Secrets, err = buildSecrets(o.secrets); err != nil {
		return err
	}
	parsed, err := dockerfile.Parse(text, dockerfile.Options{Name: file, Target: o.target, Args: args})
	if err != nil {
		return usage("%v", err)
	}
	for _, w := range parsed.Warnings {
		fmt.Fprintf(v.Text.Err, "%s:%d: warning: %s\n", file, w.Line, w.Text)
	}
	if err := v.upload(ctx, c, parsed, file, dir); err != nil {
		return err
	}
	if err := o.setRecipe(parsed); err != nil {
		return err
	}
	b, err := c.Templates().StartBuild(ctx, name, o.options)
	if err != nil {
		return err
	}
	if o.detach {
		fmt.Fprintln(v.Text.Out, b.ID)
		return nil
	}
	return v.follow(ctx, c, b, o, name, file, began)
}

// name returns the name of the template with its first tag, and adds the other tags to the options.
func (o *buildOptions) name(dir string) (string, error) {
	if len(o.names) == 0 {
		whole, err := filepath.Abs(dir)
		return nameOf(filepath.Base(whole)), err
	}
	base, _, _ := strings.Cut(o.names[0], ":")
	for _, n := range o.names[1:] {
		other, tag, _ := strings.Cut(n, ":")
		if other != base {
			return "", usage("--tag %s: a build has one template, %s; give other names with cove template tag", n, base)
		}
		o.options.Tags = append(o.options.Tags, cmp.Or(tag, "default"))
	}
	return o.names[0], nil
}

// setRecipe sets the steps of the Dockerfile.
func (o *buildOptions) setRecipe(r dockerfile.Result) error {
	start, ready := o.options.Start, o.options.Ready
	text, err := json.Marshal(r.Recipe)
	if err == nil {
		err = json.Unmarshal(text, &o.options)
	}
	if start != "" {
		o.options.Start, o.options.Ready = start, ready // without the health check, which is of another command
	}
	if ready != "" {
		o.options.Ready = ready
	}
	return err
}

// dockerfile reads the Dockerfile.
func (v builder) dockerfile(file, dir string) (name string, text []byte, err error) {
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(v.Std.In, maxDockerfile))
		return "stdin", text, err
	}
	if file == "" {
		file = filepath.Join(dir, "Dockerfile")
	}
	text, err = readText(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, usage("no file %q; write a Dockerfile, or name it with --file", file)
	}
	if err != nil {
		return "", nil, usage("%v", err)
	}
	return file, text, nil
}

// maxDockerfile is larger than any valid Dockerfile, .dockerignore or secret.
const maxDockerfile = 2 << 20

// readText reads the begin of a file, which a hostile project can make a link to an endless one.
func readText(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxDockerfile))
}

func buildArgs(list []string) (map[string]string, error) {
	args := map[string]string{}
	for _, a := range list {
		name, value, given := strings.Cut(a, "=")
		if name == "" {
			return nil, usage("--build-arg %q: use NAME=VALUE", a)
		}
		if !given {
			if value, given = config.Variable(name); !given {
				continue // as in Docker
			}
		}
		args[name] = value
	}
	return args, nil
}

// buildSecrets reads secrets. Without a source, it is the variable or else the file with the name of the secret.
func buildSecrets(list []string) (map[string]string, error) {
	secrets := map[string]string{}
	for _, spec := range list {
		fields := map[string]string{}
		for part := range strings.SplitSeq(spec, ",") {
			name, value, ok := strings.Cut(part, "=")
			if name = strings.ToLower(strings.TrimSpace(name)); !ok || !slices.Contains([]string{"id", "src", "source", "env", "type"}, name) {
				return nil, usage("--secret %.100s: use id=ID,src=FILE or id=ID,env=NAME", spec)
			}
			fields[name] = value
		}
		id, file, env := fields["id"], cmp.Or(fields["src"], fields["source"]), fields["env"]
		if id == "" || file != "" && env != "" {
			return nil, usage("--secret %.100s: use id=ID,src=FILE or id=ID,env=NAME", spec)
		}
		value, set := config.Variable(cmp.Or(env, id))
		switch {
		case file == "" && set:
		case env != "":
			return nil, usage("--secret %.100s: the variable %s is not set", spec, env)
		default:
			b, err := readText(cmp.Or(file, id))
			if err != nil {
				return nil, usage("--secret id=%s: %v", id, err)
			}
			if !utf8.Valid(b) {
				return nil, usage("--secret id=%s: the file is not UTF-8 text; encode it, such as with base64", id)
			}
			value = string(b)
		}
		secrets[id] = value
	}
	return secrets, nil
}

// contextLimits are those of an upload.
var contextLimits = buildcontext.Limits{Entries: 200_000, Bytes: 8 << 30}

// upload sends the missing files of the context.
func (v builder) upload(ctx context.Context, c *client.Client, r dockerfile.Result, file, dir string) error {
	if len(r.Contexts) == 0 {
		return nil
	}
	ignore, err := ignored(file, dir)
	if err != nil {
		return err
	}
	tree, err := buildcontext.Open(dir, ignore, contextLimits)
	if err != nil {
		return usage("open the build context: %v", err)
	}
	defer tree.Close()
	for _, x := range r.Contexts {
		sel := buildcontext.Selection{Sources: x.Sources, Exclude: x.Exclude}
		for _, in := range x.Inline {
			sel.Inline = append(sel.Inline, buildcontext.Inline(in))
		}
		files, err := tree.Select(ctx, sel)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			return usage("%s:%d: %v", file, x.Line, err)
		}
		// Patterns that match nothing are left out, but not "/", which a copy with the folders of its sources has.
		x.Step.Sources = slices.DeleteFunc(x.Step.Sources, func(s string) bool { return s != "/" && !slices.Contains(files.Sources, s) })
		x.Step.Files = files.Digest
		sent, err := c.Templates().UploadFiles(ctx, files.Digest, func(w io.Writer) error { return files.WriteArchive(ctx, w) })
		if err != nil {
			return fmt.Errorf("%s:%d: %w", file, x.Line, err)
		}
		if sent {
			fmt.Fprintf(v.Text.Err, "sent %s for line %d\n", cli.Size(files.Size), x.Line)
		}
	}
	return nil
}

// ignored returns the patterns of NAME.dockerignore next to the Dockerfile, or else of .dockerignore.
func ignored(file, dir string) (*buildcontext.Patterns, error) {
	for _, name := range []string{file + ".dockerignore", filepath.Join(dir, ".dockerignore")} {
		text, err := readText(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var p *buildcontext.Patterns
		if err == nil {
			p, err = buildcontext.ParsePatterns(text)
		}
		if err != nil {
			return nil, usage("read %s: %v", name, err)
		}
		return p, nil
	}
	return buildcontext.NewPatterns(nil)
}

// cancelTimeout bounds how long an interrupted build is canceled.
const cancelTimeout = time.Minute

// follow prints the log of a build and its result.
func (v builder) follow(ctx context.Context, c *client.Client, b *client.Build, o buildOptions, name, file string,
	began time.Time) error {
	var tail []client.BuildEntry // of the current step
	for e, err := range c.Templates().BuildLog(ctx, b.ID) {
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			break
		}
		switch {
		case e.Level == "error": // the result has it
		case !o.quiet:
			fmt.Fprintln(v.Text.Err, e.Text)
		default:
			if len(tail) > 0 && tail[0].Step != e.Step {
				tail = nil
			}
			if tail = append(tail, e); len(tail) > maxTail {
				tail = tail[1:]
			}
		}
	}
	if ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
		fmt.Fprintln(v.Text.Err, "canceling the build")
		return c.Templates().CancelBuild(ctx, b.ID)
	}
	b, err := c.Templates().Build(ctx, b.ID)
	if err != nil {
		return err
	}
	if b.Status != "ready" {
		for _, e := range tail {
			fmt.Fprintln(v.Text.Err, e.Text)
		}
		message := b.Error
		if rest, ok := strings.CutPrefix(message, "line "); ok {
			message = file + ":" + rest
		}
		return &cli.Error{Code: cli.ExitFailed, Msg: message}
	}
	if o.quiet {
		fmt.Fprintln(v.Text.Out, name)
		return nil
	}
	ran := 0
	for _, s := range b.Steps {
		kind, _, _ := strings.Cut(s.Text, " ")
		if !s.Cached && slices.Contains([]string{"RUN", "COPY", "ADD"}, kind) {
			ran++
		}
	}
	all := len(b.Steps)
	fmt.Fprintf(v.Text.Out, "%s  %s  %d of %d steps cached  %.2f s\n", name, cli.Size(b.Size), all-ran, all,
		time.Since(began).Seconds())
	return nil
}

// maxTail is the number of lines of a failed step that --quiet shows.
const maxTail = 100
