// Package info describes the sandbox: system, runtimes, tools and packages. It reads the machine
// for every request. It caches only versions of programs, until their files change.
package info

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/identity"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service.
type Config struct {
	Version   string // of this program: 0.1.0
	User      string
	Home      string
	Workspace string
	TZ        string // configured zone; empty: the machine's
	Venv      string // Python environment of the project, listed first
	Runner    *proc.Runner
}

// Service describes the machine.
type Service struct {
	Config
	mu       sync.Mutex
	versions map[string]version
}

// New returns the service.
func New(c Config) *Service { return &Service{Config: c, versions: map[string]version{}} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_get_context", Access: op.AccessRead, Route: "GET /v1/sandbox", Tag: "sandbox",
			SDK: "sandbox.get_context", Style: op.Own, ReadOnly: true, Verb: "sandbox info",
			Doc: "Describe the sandbox: system, user, folders, listening ports, runtimes and tools, as text and as structured data."}, s.Context),
		op.New(op.Spec{Name: "sandbox_identity", Access: op.AccessRead, Route: "GET " + identity.Path, Tag: "sandbox",
			ReadOnly: true, NoTool: true,
			Doc: "Return name, state and end of the sandbox, and the URL of its hub. Does not wake a sandbox."}, s.Identity),
		op.New(op.Spec{Name: "sandbox_get_python_packages", Route: "GET /v1/sandbox/packages/python", Tag: "sandbox",
			SDK: "sandbox.get_python_packages", ReadOnly: true, Verb: "sandbox packages-python",
			Doc: "List the installed Python packages with their versions."}, s.Python),
		op.New(op.Spec{Name: "sandbox_get_nodejs_packages", Route: "GET /v1/sandbox/packages/nodejs", Tag: "sandbox",
			SDK: "sandbox.get_nodejs_packages", ReadOnly: true, Verb: "sandbox packages-nodejs",
			Doc: "List the globally installed Node.js packages with their versions."}, s.Node),
	}
}

// Close does nothing.
func (s *Service) Close() error { return nil }

// Context is the response of GET /v1/sandbox: the envelope with additional fields.
type Context struct {
	op.Envelope
	Data      string  `json:"data"`
	HomeDir   string  `json:"home_dir"`
	Workspace *string `json:"workspace"`
	Version   string  `json:"version"`
	Detail    Detail  `json:"detail"`
}

// Detail is the context as structured data.
type Detail struct {
	System  System     `json:"system"`
	Runtime Runtime    `json:"runtime"`
	Utils   []Category `json:"utils"`
}

// System describes the machine and its user.
type System struct {
	OS            string   `json:"os"`
	OSVersion     string   `json:"os_version"`
	Arch          string   `json:"arch"`
	User          string   `json:"user"`
	HomeDir       string   `json:"home_dir"`
	Workspace     *string  `json:"workspace"`
	Timezone      string   `json:"timezone"`
	OccupiedPorts []string `json:"occupied_ports"`
}

// Runtime lists interpreters.
type Runtime struct {
	Python []Tool `json:"python"`
	NodeJS []Tool `json:"nodejs"`
}

// Tool is one interpreter.
type Tool struct {
	Ver   *string  `json:"ver"`
	Bin   *string  `json:"bin"`
	Alias []string `json:"alias"`
}

// Category groups tools that are installed.
type Category struct {
	Category string      `json:"category"`
	Tools    []Available `json:"tools"`
}

// Available is a program found on the machine.
type Available struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Identity returns the name of the machine. A hub replies in place of its sandboxes.
func (s *Service) Identity(context.Context, op.None) (identity.Identity, error) {
	name, err := os.Hostname()
	if err != nil {
		return identity.Identity{}, fmt.Errorf("read the name of the machine: %w", err)
	}
	return identity.Identity{Name: name, State: "running"}, nil
}

// Context reads the machine.
func (s *Service) Context(ctx context.Context, _ op.None) (Context, error) {
	ports, err := listeningPorts()
	if err != nil {
		return Context{}, fmt.Errorf("read listening ports: %w", err)
	}
	name, version := osRelease()
	workspace := s.workspace()
	system := System{
		OS: name, OSVersion: version, Arch: arch(), User: s.User, HomeDir: s.Home,
		Workspace: workspace, Timezone: s.zone(), OccupiedPorts: ports,
	}
	var run Runtime
	var wait sync.WaitGroup
	wait.Go(func() { run.Python = s.interpreters(ctx, s.pythons()) })
	wait.Go(func() { run.NodeJS = s.interpreters(ctx, s.nodes()) })
	wait.Wait()
	detail := Detail{System: system, Runtime: run, Utils: s.tools()}
	return Context{
		Envelope: op.SuccessEnvelope(ctx), HomeDir: s.Home, Workspace: workspace,
		Version: Version(s.Version), Detail: detail, Data: text(Version(s.Version), detail),
	}, nil
}

func (s *Service) workspace() *string {
	if s.Workspace == "" {
		return nil
	}
	return &s.Workspace
}

func arch() string {
	if a, ok := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; ok {
		return a
	}
	return runtime.GOARCH
}

// Version returns the four-part version that clients expect, such as v1.2.3.0; the
// last part counts the commits since the release.
func Version(v string) string {
	parts := strings.FieldsFunc(strings.TrimPrefix(v, "v"), func(r rune) bool { return r == '.' || r == '-' || r == '+' })
	out := []string{}
	for _, p := range parts {
		if p == "" || strings.Trim(p, "0123456789") != "" {
			break
		}
		out = append(out, p)
	}
	for len(out) < 4 {
		out = append(out, "0")
	}
	return "v" + strings.Join(out[:4], ".")
}

// text formats the detail as text.
func text(version string, d Detail) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("Sandbox %s", version)
	line("")
	line("System")
	line("- OS: %s %s (%s)", d.System.OS, d.System.OSVersion, d.System.Arch)
	line("- User: %s, home %s", d.System.User, d.System.HomeDir)
	if d.System.Workspace != nil {
		line("- Workspace: %s", *d.System.Workspace)
	}
	line("- Timezone: %s", d.System.Timezone)
	ports := "none"
	if len(d.System.OccupiedPorts) > 0 {
		ports = strings.Join(d.System.OccupiedPorts, ", ")
	}
	line("- Occupied ports: %s", ports)
	for _, group := range []struct {
		name  string
		tools []Tool
	}{{"Python", d.Runtime.Python}, {"Node.js", d.Runtime.NodeJS}} {
		line("")
		line("%s", group.name)
		if len(group.tools) == 0 {
			line("- not installed")
		}
		for _, t := range group.tools {
			alias := ""
			if len(t.Alias) > 0 {
				alias = " (also " + strings.Join(t.Alias, ", ") + ")"
			}
			line("- %s: %s%s", value(t.Ver), value(t.Bin), alias)
		}
	}
	if len(d.Utils) > 0 {
		line("")
		line("Tools")
	}
	for _, c := range d.Utils {
		names := make([]string, len(c.Tools))
		for i, t := range c.Tools {
			names[i] = t.Name
		}
		slices.Sort(names)
		line("- %s: %s", c.Category, strings.Join(names, ", "))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func value(s *string) string {
	if s == nil {
		return "unknown"
	}
	return *s
}
