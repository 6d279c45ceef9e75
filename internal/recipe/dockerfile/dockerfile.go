// Package dockerfile converts Dockerfiles to recipes. It reads no files and starts nothing: for the files of a build
// context it returns what the caller must find and upload. It rejects what a recipe cannot express, with the line.
package dockerfile

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/recipe"
)

// Options of Parse.
type Options struct {
	// Name of the file for errors; default Dockerfile.
	Name string
	// Target is the name or number of the last stage; default: the last one of the file.
	Target string
	// Args are the values of --build-arg.
	Args map[string]string
	// Platform of the hub; default linux on the architecture of this program.
	Platform string
}

// Result is a Dockerfile as a recipe.
type Result struct {
	Recipe recipe.Recipe
	// Contexts are the copies of files of the build context, whose steps need Files.
	Contexts []Context
	Warnings []Warning
}

// Context says what a copy needs of the build context.
type Context struct {
	Line    int
	Step    *recipe.Step // set its Files
	Sources []string     // patterns, relative to the root of the context
	Exclude []string     // patterns of files below the sources
	Inline  []File
}

// File is the text of a file in the Dockerfile itself.
type File struct{ Name, Text string }

// Warning is something that has no effect.
type Warning struct {
	Line int
	Text string
}

// stage is a stage while the file is read.
type stage struct {
	name  string // as it is referred to in the recipe
	alias string // AS name
	base  recipe.Base
	// parent is the stage it starts from; nil: none of the file.
	parent *stage
	uses   []*stage // that it copies from
	steps  []recipe.Step
	// contexts have the index of their step instead of the step.
	contexts map[int]Context

	args, env  map[string]string
	shell      []string
	entrypoint command
	command    command
	health     *command
	exposed    bool
}

// command is the value of CMD, ENTRYPOINT or HEALTHCHECK.
type command struct {
	args  []string // exec form
	shell string
}

type parser struct {
	Options
	escape   byte
	global   map[string]string // arguments before the first stage
	used     map[string]bool   // of Args
	stages   []*stage
	warnings []Warning
}

// Parse converts a Dockerfile. Errors have the form NAME:LINE: text.
func Parse(text []byte, o Options) (r Result, err error) {
	if o.Name == "" {
		o.Name = "Dockerfile"
	}
	if o.Platform == "" {
		o.Platform = "linux/" + runtime.GOARCH
	}
	p := &parser{Options: o, global: map[string]string{}, used: map[string]bool{}}
	r, err = p.parse(text)
	if at, ok := errors.AsType[*lineError](err); ok {
		return r, fmt.Errorf("%s:%d: %w", o.Name, at.line, at.err)
	} else if err != nil {
		return r, fmt.Errorf("%s: %w", o.Name, err)
	}
	return r, nil
}

func (p *parser) parse(text []byte) (Result, error) {
	list, escape, err := readInstructions(text)
	if err != nil {
		return Result{}, err
	}
	p.escape = escape
	for _, in := range list {
		if err := p.instruction(in); err != nil {
			if _, ok := errors.AsType[*lineError](err); !ok {
				err = errorAt(in.line, "%s: %w", in.name, err)
			}
			return Result{}, err
		}
	}
	target, err := p.target()
	if err != nil {
		return Result{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(p.Args)) {
		if !p.used[name] && !slices.Contains(proxyArgs, strings.ToUpper(name)) {
			p.warn(1, "the build argument %.60s is not declared with ARG", name)
		}
	}
	return p.result(target)
}

func (p *parser) warn(line int, format string, args ...any) {
	p.warnings = append(p.warnings, Warning{line, fmt.Sprintf(format, args...)})
}

// proxyArgs are predefined in Docker. Here, steps have the proxy of the sandbox.
var proxyArgs = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}

// platformArgs are predefined; a stage sees them after ARG.
func (p *parser) platformArgs() map[string]string {
	system, arch, _ := strings.Cut(p.Platform, "/")
	out := map[string]string{}
	for _, kind := range []string{"TARGET", "BUILD"} {
		out[kind+"PLATFORM"], out[kind+"OS"], out[kind+"ARCH"], out[kind+"VARIANT"] = p.Platform, system, arch, ""
	}
	return out
}

// target returns the last stage that is built.
func (p *parser) target() (*stage, error) {
	if len(p.stages) == 0 {
		return nil, errorAt(1, "it has no FROM")
	}
	if p.Target == "" {
		return p.stages[len(p.stages)-1], nil
	}
	if s := p.findStage(p.Target, true); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("no stage %.60q; stages have the names of FROM … AS NAME", p.Target)
}

// findStage finds a stage by its name or, if numbers are allowed, by its number.
func (p *parser) findStage(name string, numbers bool) *stage {
	for _, s := range slices.Backward(p.stages) {
		if s.alias != "" && strings.EqualFold(s.alias, name) {
			return s
		}
	}
	if n, err := strconv.Atoi(name); err == nil && numbers && n >= 0 && n < len(p.stages) {
		return p.stages[n]
	}
	return nil
}

// result returns the recipe of the stages that the target needs.
func (p *parser) result(target *stage) (Result, error) {
	needed := map[*stage]bool{}
	var visit func(s *stage)
	visit = func(s *stage) {
		if s == nil || needed[s] {
			return
		}
		needed[s] = true
		visit(s.parent)
		for _, u := range s.uses {
			visit(u)
		}
	}
	visit(target)
	r := Result{Warnings: p.warnings}
	all := p.stages
	for _, s := range p.stages {
		all = append(slices.Clip(all), s.uses...) // images that files are copied from
	}
	images := map[string]bool{}
	add := func(s *stage) {
		if needed[s] && s != target && !images[s.name] {
			images[s.name] = true
			r.Recipe.Stages = append(r.Recipe.Stages, recipe.Stage{Name: s.name, Base: s.base, Steps: s.steps})
		}
	}
	for _, s := range p.stages {
		for _, u := range s.uses {
			if needed[s] {
				add(u)
			}
		}
		add(s)
	}
	r.Recipe.Base, r.Recipe.Steps = target.base, target.steps
	r.Recipe.Start, r.Recipe.Ready = target.start()
	for _, s := range all {
		if !needed[s] {
			continue
		}
		for _, i := range slices.Sorted(maps.Keys(s.contexts)) {
			c := s.contexts[i]
			c.Step = &s.steps[i]
			r.Contexts = append(r.Contexts, c)
		}
		clear(s.contexts) // an image can be used by several stages
	}
	return r, nil
}

// start returns the commands that run the program of the image, if it has a port or a health check.
func (s *stage) start() (start, ready string) {
	if !s.exposed && s.health == nil {
		return "", ""
	}
	args := append(slices.Clip(s.entrypoint.args), s.command.args...)
	switch {
	case s.entrypoint.shell != "":
		start = s.entrypoint.shell
	case len(s.entrypoint.args) > 0 && s.command.shell != "":
		start = quoteShell(append(args, "/bin/sh", "-c", s.command.shell))
	case s.command.shell != "":
		start = s.command.shell
	default:
		start = quoteShell(args)
	}
	if s.health != nil && start != "" {
		if ready = s.health.shell; ready == "" {
			ready = quoteShell(s.health.args)
		}
	}
	return start, ready
}

// instruction handles one instruction.
func (p *parser) instruction(in instruction) error {
	if in.name == "ARG" && len(p.stages) == 0 {
		return p.arg(in, nil)
	}
	if in.name == "FROM" {
		return p.from(in)
	}
	handle, known := handlers[in.name]
	switch {
	case in.name == "ONBUILD":
		return errors.New("unsupported: write the instruction into the Dockerfiles that use this image")
	case !known:
		return errorAt(in.line, "unknown instruction %.60s", in.name)
	case len(p.stages) == 0:
		return errors.New("the first instruction must be FROM")
	case in.rest == "":
		return errors.New("it has no arguments")
	}
	return handle(p, in, p.stages[len(p.stages)-1])
}

var handlers = map[string]func(p *parser, in instruction, s *stage) error{
	"RUN": (*parser).run, "COPY": (*parser).copy, "ADD": (*parser).copy, "ENV": (*parser).env, "ARG": (*parser).arg,
	"WORKDIR": (*parser).workdir, "USER": (*parser).user, "SHELL": (*parser).shell, "CMD": (*parser).program,
	"ENTRYPOINT": (*parser).program, "EXPOSE": (*parser).expose, "HEALTHCHECK": (*parser).healthcheck, "LABEL": (*parser).label,
	"VOLUME": (*parser).ignore, "STOPSIGNAL": (*parser).ignore, "MAINTAINER": (*parser).ignore,
}

var stageName = regexp.MustCompile(`^[a-z][a-z0-9_.-]*$`)

func (p *parser) from(in instruction) error {
	flags, rest, err := takeFlags(in.rest, p.escape)
	if err != nil {
		return err
	}
	for _, f := range flags {
		if f.name != "platform" {
			return fmt.Errorf("unknown flag --%.60s", f.name)
		}
		if err := p.checkPlatform(f.value); err != nil {
			return err
		}
	}
	words := strings.Fields(rest)
	s := &stage{name: strconv.Itoa(len(p.stages)), contexts: map[int]Context{}, args: map[string]string{}, env: map[string]string{},
		shell: []string{"/bin/sh", "-c"}}
	switch {
	case len(words) == 3 && strings.EqualFold(words[1], "as"):
		if s.alias = strings.ToLower(words[2]); !stageName.MatchString(s.alias) {
			return fmt.Errorf("stage %.60q: use letters, digits, _, . and -, and begin with a letter", words[2])
		}
		if p.findStage(s.alias, false) != nil {
			return fmt.Errorf("there are two stages %s", s.alias)
		}
		s.name = s.alias
	case len(words) != 1:
		return errors.New("use FROM IMAGE or FROM IMAGE AS NAME")
	}
	all := p.platformArgs()
	maps.Copy(all, p.global)
	name, err := p.expandKnown(words[0], all, false)
	if err != nil {
		return err
	}
	if parent := p.findStage(name, false); parent != nil {
		s.parent, s.base.Stage = parent, parent.name
		s.env, s.shell = maps.Clone(parent.env), parent.shell
		s.entrypoint, s.command, s.health, s.exposed = parent.entrypoint, parent.command, parent.health, parent.exposed
	} else if s.base, err = baseOf(name); err != nil {
		return err
	}
	p.stages = append(p.stages, s)
	return nil
}

// The schemes of bases that are no images.
const (
	environmentScheme = "environment://"
	templateScheme    = "template://"
)

// baseOf returns what FROM names.
func baseOf(name string) (b recipe.Base, err error) {
	environment, isEnvironment := strings.CutPrefix(name, environmentScheme)
	template, isTemplate := strings.CutPrefix(name, templateScheme)
	switch {
	case name == "":
		return b, errors.New("the name of the image is empty; give its build argument a value")
	case name == "scratch":
		return b, errors.New("scratch is unsupported: a sandbox needs a shell; use a small image, such as debian:12-slim")
	case isEnvironment:
		return recipe.Base{Environment: environment}, nil // empty: the default environment
	case isTemplate && template == "":
		return b, errors.New("template:// needs a name: use template://NAME or template://NAME:TAG")
	case isTemplate:
		return recipe.Base{Template: template}, nil
	}
	return recipe.Base{Image: name}, nil
}

func (p *parser) checkPlatform(value string) error {
	value, err := p.expandKnown(value, p.platformArgs(), false)
	if err != nil {
		return err
	}
	system, arch, _ := strings.Cut(value, "/")
	arch, _, _ = strings.Cut(arch, "/") // without the variant
	arch = strings.NewReplacer("x86_64", "amd64", "aarch64", "arm64").Replace(arch)
	if system+"/"+arch != p.Platform {
		return fmt.Errorf("--platform=%.60s is unsupported: sandboxes have the platform of the hub, %s", value, p.Platform)
	}
	return nil
}

// expandKnown replaces variables in a text by values that are known here. Strict rejects other variables: the base image
// may set them.
func (p *parser) expandKnown(text string, known map[string]string, strict bool) (string, error) {
	out, names, err := unquote(text, p.escape)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if _, ok := known[name]; !ok && strict {
			return "", unknownVariable(text, name)
		}
	}
	return recipe.Expand(out, known), nil
}

func unknownVariable(text, name string) error {
	return fmt.Errorf("%.60s: the variable %s is not set before this line; variables of the base image cannot be used here", text, name)
}

// known returns the variables of a stage with a value that the file sets.
func (s *stage) known() map[string]string {
	all := maps.Clone(s.args)
	maps.Copy(all, s.env)
	return all
}

// add appends a step, with the build arguments that it sees.
func (p *parser) add(s *stage, in instruction, step recipe.Step) {
	step.Line, step.Text = in.line, describe(in)
	for name, value := range s.args {
		if _, hidden := s.env[name]; !hidden {
			if step.Vars == nil {
				step.Vars = map[string]string{}
			}
			step.Vars[name] = value
		}
	}
	s.steps = append(s.steps, step)
}

// maxShown is the maximum length of an instruction in a log.
const maxShown = 200

// describe returns an instruction on one line.
func describe(in instruction) string {
	text := []rune(in.name + " " + strings.Join(strings.Fields(in.rest), " "))
	if len(text) > maxShown {
		return string(text[:maxShown]) + "…"
	}
	return string(text)
}
