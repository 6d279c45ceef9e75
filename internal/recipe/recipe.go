// Package recipe defines how a template is built: a base and steps. Every interface that builds templates produces a
// Recipe, and only the hub's builder executes it. The package validates recipes, and derives what a step depends on.
// It does no I/O.
package recipe

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
)

// Recipe describes a template.
type Recipe struct {
	// Stages are built before the template. Only the template is stored under its name.
	Stages []Stage `json:"stages,omitempty" nullable:"true"`

	Base  Base   `json:"base"`
	Steps []Step `json:"steps,omitempty" nullable:"true"`
	// Start is a shell command that runs in each sandbox; Ready is a shell command that succeeds when it is ready.
	Start string `json:"start,omitempty"`
	Ready string `json:"ready,omitempty"`
	// Force ignores stored layers, and resolves the image again.
	Force bool `json:"force,omitempty"`
	// Pull resolves images again, but uses stored layers.
	Pull bool `json:"pull,omitempty"`
	// Login runs commands in a login shell and starts with the user "user" in its home, as E2B does.
	Login bool `json:"login,omitempty"`
}

// Stage is a disk that later stages start from or copy files from.
type Stage struct {
	Name  string `json:"name" doc:"Name of the stage"`
	Base  Base   `json:"base,omitzero" doc:"What it starts from; default: the default environment"`
	Steps []Step `json:"steps,omitempty" nullable:"true" doc:"Steps, in order"`
}

// Base is what a recipe starts from: one of these, or the default environment.
type Base struct {
	Image       string `json:"image,omitempty" doc:"OCI image"`
	Environment string `json:"environment,omitempty" doc:"Environment of the hub"`
	Template    string `json:"template,omitempty" doc:"Template, NAME or NAME:TAG"`
	Stage       string `json:"stage,omitempty" doc:"Earlier stage of the same build"`
}

// Kind is the kind of a step.
type Kind string

// The kinds of step. Run and Copy change the disk; the others only change Config.
const (
	Run     Kind = "run"
	Copy    Kind = "copy"
	Env     Kind = "env"
	Workdir Kind = "workdir"
	User    Kind = "user"
)

// Step is one step. Variables in values, paths and users are replaced by those of Config.
type Step struct {
	Kind Kind   `json:"kind" enum:"run,copy,env,workdir,user" doc:"Kind of the step"`
	Text string `json:"text,omitempty" doc:"The step as the user wrote it"`
	Line int    `json:"line,omitempty" doc:"Its line in a file"`

	Command string   `json:"command,omitempty" doc:"run: shell command"`
	Args    []string `json:"args,omitempty" nullable:"true" doc:"run: program and arguments, without a shell"`
	// Pairs are names and values in turn.
	Pairs []string `json:"pairs,omitempty" nullable:"true" doc:"env: names and values in turn"`
	Path  string   `json:"path,omitempty" doc:"workdir: path"`
	User  string   `json:"user,omitempty" doc:"user: name. run: user of this step"`

	Sources []string `json:"sources,omitempty" nullable:"true" doc:"copy: patterns of paths in the uploaded files"`
	To      string   `json:"to,omitempty" doc:"copy: destination"`
	Owner   string   `json:"owner,omitempty" doc:"copy: owner of the files"`
	Mode    string   `json:"mode,omitempty" doc:"copy: mode of the files in octal"`
	Files   string   `json:"files,omitempty" doc:"copy: hash of the uploaded files"`
	From    string   `json:"from,omitempty" doc:"copy: stage to copy from, instead of uploaded files"`
	Unpack  bool     `json:"unpack,omitempty" doc:"copy: unpack tar archives instead of copying them"`

	Mounts []Mount           `json:"mounts,omitempty" nullable:"true" doc:"run: caches and secrets of this step"`
	Vars   map[string]string `json:"vars,omitempty" nullable:"true" doc:"Variables of this step; those of env take precedence"`

	Force bool `json:"force,omitempty" doc:"Ignore the stored layer of this step"`
}

// The kinds of Mount.
const (
	Cache  = "cache"
	Secret = "secret"
)

// Mount is a folder or file that a run step sees and that its layer does not contain.
type Mount struct {
	Kind     string `json:"kind" enum:"cache,secret" doc:"cache: a folder that later builds of the tenant see again"`
	ID       string `json:"id,omitempty" doc:"Name of the secret, or of the cache; default for a cache: target"`
	Target   string `json:"target,omitempty" doc:"Path; default for a secret: /run/secrets/ID"`
	Env      string `json:"env,omitempty" doc:"secret: variable with its value; then it has no file unless target is set"`
	Owner    string `json:"owner,omitempty" doc:"Owner of the file or folder; default root"`
	Mode     string `json:"mode,omitempty" doc:"Mode in octal; default 0400 for a secret, 0755 for a cache"`
	Required bool   `json:"required,omitempty" doc:"secret: fail without it"`
}

// String returns the step as the user wrote it, or in the form of a Dockerfile.
func (s Step) String() string {
	if s.Text != "" {
		return s.Text
	}
	rest := map[Kind]string{Run: s.Command + strings.Join(s.Args, " "), Copy: strings.Join(append(s.Sources, s.To), " "),
		Env: strings.Join(s.Pairs, " "), Workdir: s.Path, User: s.User}[s.Kind]
	return strings.ToUpper(string(s.Kind)) + " " + rest
}

// Config is the state of a build in addition to its disk.
type Config struct {
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
}

// The limits of a Recipe.
const (
	MaxSteps  = 500
	maxStages = 20
	maxStep   = 64 << 10
	maxAll    = 1 << 20
	maxMounts = 16
)

// Validate returns an error that names the step.
func (r Recipe) Validate() error {
	if len(r.Stages) > maxStages {
		return fmt.Errorf("%d stages, more than %d", len(r.Stages), maxStages)
	}
	v := validator{stages: map[string]bool{}, size: len(r.Start) + len(r.Ready)}
	for _, s := range r.Stages {
		if !isStage(s.Name) || v.stages[s.Name] {
			return fmt.Errorf("stage %.60q: use a unique name of lower-case letters, digits, _, . and -", s.Name)
		}
		if err := v.check(s.Base, s.Steps); err != nil {
			return fmt.Errorf("stage %s: %w", s.Name, err)
		}
		v.stages[s.Name] = true
	}
	if err := v.check(r.Base, r.Steps); err != nil {
		return err
	}
	if v.size > maxAll {
		return fmt.Errorf("the recipe is longer than %d bytes", maxAll)
	}
	if strings.IndexByte(r.Start+r.Ready, 0) >= 0 {
		return fmt.Errorf("the start or ready command contains a NUL byte")
	}
	return nil
}

// validator validates the stages of a recipe in order.
type validator struct {
	stages      map[string]bool // that can be named
	size, steps int
}

func (v *validator) check(b Base, steps []Step) error {
	bases := 0
	for _, name := range []string{b.Image, b.Environment, b.Template, b.Stage} {
		if v.size += len(name); name != "" {
			bases++
		}
	}
	if bases > 1 {
		return fmt.Errorf("base: set one of image, environment, template and stage")
	}
	if b.Stage != "" && !v.stages[b.Stage] {
		return fmt.Errorf("base: no earlier stage %.60q", b.Stage)
	}
	if v.steps += len(steps); v.steps > MaxSteps {
		return fmt.Errorf("%d steps, more than %d", v.steps, MaxSteps)
	}
	for i, s := range steps {
		text, err := json.Marshal(s)
		v.size += len(text)
		switch {
		case err != nil:
		case len(text) > maxStep:
			err = fmt.Errorf("it is longer than %d bytes", maxStep)
		case strings.Contains(string(text), `\u0000`):
			err = fmt.Errorf("it contains a NUL byte")
		case s.From != "" && !v.stages[s.From]:
			err = fmt.Errorf("copy: no earlier stage %.60q", s.From)
		default:
			err = s.validate()
		}
		if err != nil {
			return fmt.Errorf("step %d (%.60q): %w", i+1, s, err)
		}
	}
	return nil
}

func (s Step) validate() error {
	for name := range s.Vars {
		if !isName(name) {
			return fmt.Errorf("vars: %w", badName(name))
		}
	}
	switch s.Kind {
	case Run:
		if (s.Command == "") == (len(s.Args) == 0) {
			return fmt.Errorf("run: set either command or args")
		}
		return s.validateMounts()
	case Copy:
		return s.validateCopy()
	case Env:
		if len(s.Pairs) == 0 || len(s.Pairs)%2 != 0 {
			return fmt.Errorf("env: give names and values in turn")
		}
		for i := 0; i < len(s.Pairs); i += 2 {
			if !isName(s.Pairs[i]) {
				return fmt.Errorf("env: %w", badName(s.Pairs[i]))
			}
		}
	case Workdir:
		if s.Path == "" {
			return fmt.Errorf("workdir: the path is empty")
		}
	case User:
		if s.User == "" || strings.HasPrefix(s.User, "-") || strings.ContainsAny(s.User, " \n/") {
			return fmt.Errorf("user %.60q: use a name or an ID", s.User)
		}
	default:
		return fmt.Errorf("unknown kind %.60q", s.Kind)
	}
	return nil
}

func badName(name string) error {
	return fmt.Errorf("%.60q: use letters, digits and _, and begin with a letter or _", name)
}

func (s Step) validateCopy() error {
	if len(s.Sources) == 0 || s.To == "" || (s.Files == "") == (s.From == "") {
		return fmt.Errorf("copy: sources, to, and either files or from are required")
	}
	for _, src := range s.Sources {
		if clean := path.Clean(strings.TrimLeft(src, "/")); clean == ".." || strings.HasPrefix(clean, "../") {
			return fmt.Errorf("copy %q: the source is outside the uploaded files", src)
		}
	}
	if !isMode(s.Mode) {
		return fmt.Errorf("copy: mode %q: use up to four octal digits", s.Mode)
	}
	if s.Files != "" && !IsHash(s.Files) {
		return fmt.Errorf("copy: files %.80q: expected 64 hexadecimal digits", s.Files)
	}
	return nil
}

func isMode(mode string) bool { return strings.Trim(mode, "01234567") == "" && len(mode) <= 4 }

func (s Step) validateMounts() error {
	if len(s.Mounts) > maxMounts {
		return fmt.Errorf("%d mounts, more than %d", len(s.Mounts), maxMounts)
	}
	for _, m := range s.Mounts {
		switch {
		case m.Kind == Cache && (m.Target == "" || m.Env != "" || m.Required):
			return fmt.Errorf("cache: set target, and neither env nor required")
		case m.Kind == Secret && !isSecret(m.ID):
			return fmt.Errorf("secret %.60q: use up to 64 letters, digits, _, . and -", m.ID)
		case m.Kind != Cache && m.Kind != Secret:
			return fmt.Errorf("unknown kind of mount %.60q: use cache or secret", m.Kind)
		case m.Env != "" && !isName(m.Env):
			return fmt.Errorf("secret %s: %w", m.ID, badName(m.Env))
		case !isMode(m.Mode):
			return fmt.Errorf("mount: mode %q: use up to four octal digits", m.Mode)
		}
	}
	return nil
}

const (
	lower   = "abcdefghijklmnopqrstuvwxyz0123456789"
	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + lower
)

func isWord(text, chars string, most int) bool {
	return len(text) <= most && strings.Trim(text, chars+"_.-") == "" && strings.Trim(text, ".") != ""
}

func isStage(name string) bool { return isWord(name, lower, 128) }

// isSecret reports whether a name can be that of a file.
func isSecret(id string) bool { return isWord(id, letters, 64) }

// IsHash reports whether a text has the form of a SHA-256 in hexadecimal digits.
func IsHash(text string) bool { return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == "" }

func isName(s string) bool {
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	return strings.Trim(s, letters+"_") == ""
}

// standardPath is the PATH of steps whose base sets none.
const standardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// env returns the variables that a step sees.
func (c Config) env(s Step) map[string]string {
	env := map[string]string{"PATH": standardPath}
	maps.Copy(env, s.Vars)
	maps.Copy(env, c.Env)
	return env
}

// maxEnv is the maximum size of all variables of a Config.
const maxEnv = 1 << 20

// Apply returns the Config after a step.
func (c Config) Apply(s Step) (Config, error) {
	before := c.env(s) // variables of one step do not see each other
	c.Env = maps.Clone(c.Env)
	if c.Env == nil {
		c.Env = map[string]string{}
	}
	switch s.Kind {
	case Env:
		for i := 0; i+1 < len(s.Pairs); i += 2 {
			c.Env[s.Pairs[i]] = Expand(s.Pairs[i+1], before)
		}
		size := 0
		for name, value := range c.Env {
			size += len(name) + len(value)
		}
		if size > maxEnv {
			return c, fmt.Errorf("the variables are longer than %d bytes", maxEnv)
		}
	case Workdir:
		c.Workdir = c.resolve(Expand(s.Path, before))
	case User:
		c.User = Expand(s.User, before)
	}
	return c, nil
}

func (c Config) resolve(p string) string {
	if !path.IsAbs(p) {
		p = path.Join("/", c.Workdir, p)
	}
	return path.Clean(p)
}

// Resolve returns a copy or run step with its variables replaced and its paths absolute. The destination of a copy keeps
// its final slash, which makes it a folder.
func (c Config) Resolve(s Step) Step {
	env := c.env(s)
	switch s.Kind {
	case Copy:
		to := Expand(s.To, env)
		clean := c.resolve(to)
		if (strings.HasSuffix(to, "/") || strings.HasSuffix(to, "/.") || to == ".") && clean != "/" {
			clean += "/"
		}
		s.To, s.Owner, s.Vars = clean, Expand(s.Owner, env), nil
	case Run:
		mounts := make([]Mount, 0, len(s.Mounts))
		for _, m := range s.Mounts {
			if m.Target != "" {
				m.Target = c.resolve(Expand(m.Target, env))
			}
			if m.Kind == Cache && m.ID == "" {
				m.ID = m.Target
			}
			mounts = append(mounts, m)
		}
		s.Mounts, s.Vars = mounts, maps.Clone(s.Vars)
		for name := range c.Env {
			delete(s.Vars, name) // it has no effect
		}
	}
	return s
}

// maxExpanded is the maximum size of an expanded text; longer ones are cut.
const maxExpanded = 64 << 10

// Expand replaces $NAME, ${NAME}, ${NAME:-default} and ${NAME:+other}; without the colon, an empty variable counts as
// set. A backslash before $ keeps it, and two are one; others stay. Text with invalid braces stays.
func Expand(text string, env map[string]string) string {
	e := expander{text: text, env: env}
	e.word(0)
	return e.out.String()
}

// expander replaces the variables of a text.
type expander struct {
	text string
	at   int
	env  map[string]string
	out  strings.Builder
}

func (e *expander) write(text string) {
	e.out.WriteString(text[:min(len(text), max(maxExpanded-e.out.Len(), 0))])
}

// maxDepth bounds nested variables.
const maxDepth = 8

// word expands to the end of the text or, inside of braces, to theirs.
func (e *expander) word(depth int) {
	for e.at < len(e.text) {
		switch c := e.text[e.at]; {
		case c == '}' && depth > 0:
			return
		case c == '\\':
			e.backslashes(depth)
		case c == '$':
			e.variable(depth)
		default:
			e.write(e.text[e.at : e.at+1])
			e.at++
		}
	}
}

func (e *expander) backslashes(depth int) {
	begin := e.at
	for e.at < len(e.text) && e.text[e.at] == '\\' {
		e.at++
	}
	n := e.at - begin
	if e.at == len(e.text) || e.text[e.at] != '$' && (e.text[e.at] != '}' || depth == 0) {
		e.write(e.text[begin:e.at])
		return
	}
	e.write(e.text[begin : begin+n/2])
	if n%2 == 1 {
		e.write(e.text[e.at : e.at+1])
		e.at++
	}
}

// variable expands $NAME or ${NAME…}.
func (e *expander) variable(depth int) {
	e.at++
	rest := e.text[e.at:]
	n := nameLength(rest)
	if n > 0 {
		e.write(e.env[rest[:n]])
		e.at += n
		return
	}
	if strings.HasPrefix(rest, "{") {
		n = nameLength(rest[1:])
	}
	if n == 0 || depth >= maxDepth {
		e.write("$")
		return
	}
	name, after := rest[1:1+n], rest[1+n:]
	value, set := e.env[name]
	if strings.HasPrefix(after, "}") {
		e.write(value)
		e.at += n + 2
		return
	}
	op := strings.TrimPrefix(after, ":")
	if op == "" || op[0] != '-' && op[0] != '+' {
		e.write("$")
		return
	}
	if op != after {
		set = value != ""
	}
	inner := expander{text: e.text, at: e.at + 1 + n + len(after) - len(op) + 1, env: e.env}
	inner.word(depth + 1)
	if inner.at >= len(e.text) { // there is no brace for this one or for another
		e.write(e.text[e.at-1:])
		e.at = len(e.text)
		return
	}
	e.at = inner.at + 1
	switch {
	case set && op[0] == '-':
		e.write(value)
	case set != (op[0] == '-'):
		e.write(inner.out.String())
	}
}

func nameLength(text string) int {
	if text == "" || text[0] >= '0' && text[0] <= '9' {
		return 0
	}
	return len(text) - len(strings.TrimLeft(text, letters+"_"))
}

// Canonical returns everything that the result of a step depends on, beside its parent: not what only people see. Files
// is the digest of the content of a copy, or the identity of the stage that it copies from.
func (s Step) Canonical(c Config, login bool, files string) []byte {
	s = c.Resolve(s)
	s.Text, s.Line, s.Force, s.Files, s.From = "", 0, false, files, ""
	if s.Kind == Copy {
		c.Env = nil // other variables do not matter
	}
	b, err := json.Marshal(struct {
		Step   Step
		Config Config
		Login  bool
	}{s, c, login})
	if err != nil {
		panic(err) // strings and maps of strings
	}
	return b
}
