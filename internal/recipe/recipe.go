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
	Base  Base   `json:"base"`
	Steps []Step `json:"steps,omitempty" nullable:"true"`
	// Start is a shell command that runs in each sandbox; Ready is a shell command that succeeds when it is ready.
	Start string `json:"start,omitempty"`
	Ready string `json:"ready,omitempty"`
	// Force ignores stored layers, and resolves the image again.
	Force bool `json:"force,omitempty"`
	// Login runs commands in a login shell and starts with the user "user" in its home, as E2B does.
	Login bool `json:"login,omitempty"`
}

// Base is what a recipe starts from: one of these, or the default environment.
type Base struct {
	Image       string `json:"image,omitempty" doc:"OCI image"`
	Environment string `json:"environment,omitempty" doc:"Environment of the hub"`
	Template    string `json:"template,omitempty" doc:"Template, NAME or NAME:TAG"`
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

	Force bool `json:"force,omitempty" doc:"Ignore the stored layer of this step"`
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
	MaxSteps = 500
	maxStep  = 64 << 10
	maxAll   = 1 << 20
)

// Validate returns an error that names the step.
func (r Recipe) Validate() error {
	bases := 0
	for _, b := range []string{r.Base.Image, r.Base.Environment, r.Base.Template} {
		if b != "" {
			bases++
		}
	}
	if bases > 1 {
		return fmt.Errorf("base: set one of image, environment and template")
	}
	if len(r.Steps) > MaxSteps {
		return fmt.Errorf("%d steps, more than %d", len(r.Steps), MaxSteps)
	}
	all := len(r.Start) + len(r.Ready)
	for i, s := range r.Steps {
		b, err := json.Marshal(s)
		if err == nil && len(b) > maxStep {
			err = fmt.Errorf("it is longer than %d bytes", maxStep)
		}
		all += len(b)
		if err == nil {
			err = s.validate()
		}
		if err != nil {
			return fmt.Errorf("step %d (%.60q): %w", i+1, s, err)
		}
	}
	if all > maxAll {
		return fmt.Errorf("the recipe is longer than %d bytes", maxAll)
	}
	if strings.IndexByte(r.Start+r.Ready, 0) >= 0 {
		return fmt.Errorf("the start or ready command contains a NUL byte")
	}
	return nil
}

func (s Step) validate() error {
	b, _ := json.Marshal(s)
	if strings.Contains(string(b), `\u0000`) {
		return fmt.Errorf("it contains a NUL byte")
	}
	switch s.Kind {
	case Run:
		if (s.Command == "") == (len(s.Args) == 0) {
			return fmt.Errorf("run: set either command or args")
		}
	case Copy:
		if len(s.Sources) == 0 || s.To == "" || s.Files == "" {
			return fmt.Errorf("copy: sources, to and files are required")
		}
		for _, src := range s.Sources {
			if clean := path.Clean("/" + src); path.Clean(strings.TrimPrefix(src, "/")) == ".." ||
				strings.HasPrefix(path.Clean(strings.TrimPrefix(src, "/")), "../") || clean == "" {
				return fmt.Errorf("copy %q: the source is outside the uploaded files", src)
			}
		}
		if strings.Trim(s.Mode, "01234567") != "" || len(s.Mode) > 4 {
			return fmt.Errorf("copy: mode %q: use up to four octal digits", s.Mode)
		}
		if !IsHash(s.Files) {
			return fmt.Errorf("copy: files %.80q: expected 64 hexadecimal digits", s.Files)
		}
	case Env:
		if len(s.Pairs) == 0 || len(s.Pairs)%2 != 0 {
			return fmt.Errorf("env: give names and values in turn")
		}
		for i := 0; i < len(s.Pairs); i += 2 {
			if !isName(s.Pairs[i]) {
				return fmt.Errorf("env %.60q: use letters, digits and _, and begin with a letter or _", s.Pairs[i])
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

// IsHash reports whether a text has the form of a SHA-256 in hexadecimal digits.
func IsHash(text string) bool { return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == "" }

func isName(s string) bool {
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// Apply returns the Config after a step.
func (c Config) Apply(s Step) Config {
	c.Env = maps.Clone(c.Env)
	if c.Env == nil {
		c.Env = map[string]string{}
	}
	switch s.Kind {
	case Env:
		before := maps.Clone(c.Env) // variables of one step do not see each other
		for i := 0; i+1 < len(s.Pairs); i += 2 {
			c.Env[s.Pairs[i]] = Expand(s.Pairs[i+1], before)
		}
	case Workdir:
		c.Workdir = c.resolve(Expand(s.Path, c.Env))
	case User:
		c.User = Expand(s.User, c.Env)
	}
	return c
}

func (c Config) resolve(p string) string {
	if !path.IsAbs(p) {
		p = path.Join("/", c.Workdir, p)
	}
	return path.Clean(p)
}

// Target returns the destination of a copy: absolute, with its final slash, which makes it a folder.
func (c Config) Target(s Step) string {
	to := Expand(s.To, c.Env)
	clean := c.resolve(to)
	if (strings.HasSuffix(to, "/") || strings.HasSuffix(to, "/.") || to == ".") && clean != "/" {
		clean += "/"
	}
	return clean
}

// Expand replaces $NAME, ${NAME}, ${NAME:-default} and ${NAME:+other}. A backslash before $ keeps it.
func Expand(text string, env map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] == '$':
			i++
			b.WriteByte('$')
		case text[i] == '$' && i+1 < len(text) && text[i+1] == '{':
			end := strings.IndexByte(text[i:], '}')
			value, ok := expandBraces(text[i+2:max(i+end, i+2)], env)
			if end < 0 || !ok {
				b.WriteByte('$')
				continue
			}
			b.WriteString(value)
			i += end
		case text[i] == '$':
			j := i + 1
			for j < len(text) && isName(text[i+1:j+1]) {
				j++
			}
			if j == i+1 {
				b.WriteByte('$')
				continue
			}
			b.WriteString(env[text[i+1:j]])
			i = j - 1
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String()
}

func expandBraces(text string, env map[string]string) (string, bool) {
	name, word, has := strings.Cut(text, ":")
	value := env[name]
	switch {
	case !isName(name):
		return "", false
	case !has:
		return value, true
	case strings.HasPrefix(word, "-"):
		if value == "" {
			value = word[1:]
		}
		return value, true
	case strings.HasPrefix(word, "+"):
		if value == "" {
			return "", true
		}
		return word[1:], true
	}
	return "", false
}

// Canonical returns everything that the result of a step depends on, beside its parent: not what only people see. Files
// is the digest of the content of a copy.
func (s Step) Canonical(c Config, login bool, files string) []byte {
	s.Text, s.Line, s.Force, s.Files = "", 0, false, files
	if s.Kind == Copy {
		s.To, c.Env = c.Target(s), nil // other variables do not matter
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
