package verb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// project is the content of a cove.yaml: the sandbox that a project wants.
type project struct {
	Name        string            `yaml:"name"`
	Environment string            `yaml:"environment"`
	Image       string            `yaml:"image"`
	Snapshot    string            `yaml:"from_snapshot"`
	Env         map[string]string `yaml:"env"`
	Files       map[string]source `yaml:"files"` // by path in the sandbox
	Secrets     []string          `yaml:"secrets"`
	Ports       []int             `yaml:"ports"`
	Init        lines             `yaml:"init"`
	Workdir     string            `yaml:"workdir"`
	Network     *projectNetwork   `yaml:"network"`
	Networks    []string          `yaml:"networks"` // private networks to join
	CPULimit    string            `yaml:"cpu_limit"`
	MemoryLimit string            `yaml:"memory_limit"`
	DiskLimit   string            `yaml:"disk_limit"`
	Timeout     float64           `yaml:"timeout"`      // minutes
	IdleTimeout float64           `yaml:"idle_timeout"` // minutes
	IdlePolicy  string            `yaml:"idle_policy"`
	Labels      map[string]string `yaml:"labels"`

	dir string // of the file, which relative paths start from
}

type projectNetwork struct {
	Mode  string   `yaml:"mode"`
	Allow []string `yaml:"allow"`
}

// source is where the content of a file comes from: a path of this machine, or the text itself.
type source struct{ path, content string }

// UnmarshalYAML accepts a path, or {content: text}.
func (s *source) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&s.path)
	}
	var text struct {
		Content *string `yaml:"content"`
	}
	if err := n.Decode(&text); err != nil || text.Content == nil {
		return fmt.Errorf("line %d: a file is a path of this machine, or {content: text}", n.Line)
	}
	s.content = *text.Content
	return nil
}

// lines are one command line or several.
type lines []string

// UnmarshalYAML accepts text or a list.
func (l *lines) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*l = lines{n.Value}
		return nil
	}
	return n.Decode((*[]string)(l))
}

// defaultProject is the file that up reads.
const defaultProject = "cove.yaml"

func readProject(path string) (*project, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("no file %q; write one, or name it with --file", path)}
	}
	if err != nil {
		return nil, &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	var p project
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&p); err != nil && !errors.Is(err, io.EOF) {
		return nil, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("read %s: %v", path, err)}
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	p.dir = filepath.Dir(whole)
	if p.Name == "" {
		p.Name = nameOf(filepath.Base(p.dir))
	}
	return &p, nil
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf makes the name of a sandbox of that of a folder.
func nameOf(folder string) string {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(folder), "-"), "-")
	if len(name) > 50 {
		name = strings.Trim(name[:50], "-")
	}
	if name == "" {
		return "project"
	}
	return name
}

func (p *project) options() client.CreateOptions {
	o := client.CreateOptions{
		Name: p.Name, Environment: p.Environment, Image: p.Image, Snapshot: p.Snapshot, Env: p.Env,
		Secrets: p.Secrets, Ports: p.Ports, Workdir: p.Workdir, Networks: p.Networks,
		CPULimit: p.CPULimit, MemoryLimit: p.MemoryLimit, DiskLimit: p.DiskLimit, Timeout: p.Timeout,
		IdleTimeout: p.IdleTimeout, IdlePolicy: p.IdlePolicy, Keep: true, Labels: p.Labels,
	}
	if p.Network != nil {
		o.Network = &client.Network{Mode: p.Network.Mode, Allow: p.Network.Allow}
	}
	return o
}

func (v *Verbs) up() *cobra.Command {
	var file string
	var again bool
	cmd := &cobra.Command{Use: "up", Short: "Create or update the sandbox that cove.yaml describes", Args: cli.Arguments(0, 0),
		Long: "Create the sandbox that cove.yaml describes, or start it if it exists; copy its files; run its init " +
			"commands unless they have succeeded before; and print where its ports are. " +
			"Keep the file in the project. --recreate starts from nothing, which other changes of the file than files and init need.",
		Example: "  name: shop\n  environment: aio\n  env: {STAGE: dev}\n  files: {app: ./src, app/.env: {content: " +
			"\"DEBUG=1\"}}\n  secrets: [github]\n  ports: [3000]\n  init: pip install -r app/requirements.txt",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			p, err := readProject(file)
			if err != nil {
				return err
			}
			return v.bringUp(cmd.Context(), c, p, again)
		})}
	cmd.Flags().StringVarP(&file, "file", "f", defaultProject, "The file")
	cmd.Flags().BoolVar(&again, "recreate", false, "Delete the sandbox first, with everything in it")
	return cmd
}

func (v *Verbs) down() *cobra.Command {
	var file string
	cmd := &cobra.Command{Use: "down", Short: "Delete the sandbox that cove.yaml describes", Args: cli.Arguments(0, 0),
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			p, err := readProject(file)
			if err != nil {
				return err
			}
			if err := c.Delete(cmd.Context(), p.Name); err != nil {
				return err
			}
			fmt.Fprintln(v.Text.Out, p.Name)
			return nil
		})}
	cmd.Flags().StringVarP(&file, "file", "f", defaultProject, "The file")
	return cmd
}

func (v *Verbs) bringUp(ctx context.Context, c *client.Client, p *project, again bool) error {
	if again {
		if err := c.Delete(ctx, p.Name); err != nil && !client.NotFound(err) {
			return err
		}
	}
	sb, err := c.Get(ctx, p.Name)
	switch {
	case client.NotFound(err):
		fmt.Fprintf(v.Text.Err, "creating %s\n", p.Name)
		sb, err = c.Create(ctx, p.options())
	case err == nil && (sb.Status == "stopped" || sb.Status == "failed"):
		fmt.Fprintf(v.Text.Err, "starting %s\n", p.Name)
		sb, err = c.Start(ctx, p.Name)
	}
	if err != nil {
		return err
	}
	g := c.Guest(p.Name)
	for _, there := range slices.Sorted(maps.Keys(p.Files)) {
		if err := v.sendFile(ctx, g, p.dir, there, p.Files[there]); err != nil {
			return fmt.Errorf("copy %q: %w", there, err)
		}
	}
	if err := v.runInit(ctx, g, p.Init); err != nil {
		return err
	}
	site, err := v.site(sb, p.Name)
	if err != nil {
		return err
	}
	fmt.Fprintln(v.Text.Out, p.Name)
	for _, port := range p.Ports {
		fmt.Fprintf(v.Text.Out, "%d  %s/proxy/%[1]d/\n", port, site)
	}
	return nil
}

func (v *Verbs) sendFile(ctx context.Context, g *client.Guest, dir, there string, s source) error {
	if s.path == "" {
		_, _, err := g.Upload(ctx, there, filepath.Base(there), strings.NewReader(s.content))
		return err
	}
	if !filepath.IsAbs(s.path) {
		s.path = filepath.Join(dir, s.path)
	}
	// A folder becomes the target itself, also if an earlier run has created it.
	if info, err := os.Stat(s.path); err == nil && info.IsDir() {
		return copier{v}.uploadFolder(ctx, g, s.path, there)
	}
	return copier{v}.upload(ctx, g, s.path, there)
}

// initMark is the file in the sandbox that says which init commands have succeeded.
const initMark = ".cove/init"

// runInit runs the init commands, unless the same have succeeded before.
func (v *Verbs) runInit(ctx context.Context, g *client.Guest, init lines) error {
	if len(init) == 0 {
		return nil
	}
	sum := sha256.Sum256([]byte(strings.Join(init, "\x00")))
	mark := hex.EncodeToString(sum[:])
	if f, err := g.Download(ctx, initMark); err == nil {
		b, err := io.ReadAll(io.LimitReader(f, int64(len(mark))+1))
		f.Close()
		if err == nil && string(b) == mark {
			return nil
		}
	}
	for _, line := range init {
		fmt.Fprintf(v.Text.Err, "$ %s\n", line)
		// Its output is for people; standard output is for the result.
		result, err := g.Exec(ctx, line, client.ExecOptions{Stdout: v.Std.Err, Stderr: v.Std.Err})
		if err != nil {
			return err
		}
		if result.ExitCode != 0 {
			return &cli.Error{Code: cli.ExitFailed,
				Msg: fmt.Sprintf("init command %q failed with exit code %d; fix it and rerun cove up", line, result.ExitCode)}
		}
	}
	_, _, err := g.Upload(ctx, initMark, "init", strings.NewReader(mark))
	return err
}
