package dockerfile

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/recipe"
)

// arg declares build arguments; without a stage, those of FROM.
func (p *parser) arg(in instruction, s *stage) error {
	words, err := splitWords(in.rest, p.escape)
	if err != nil {
		return err
	}
	for _, w := range words {
		name, text, hasDefault := strings.Cut(w, "=")
		if nameLength(name) != len(name) {
			return fmt.Errorf("%.60q: use letters, digits and _, and begin with a letter or _", name)
		}
		known, to := p.global, p.global
		if s != nil {
			known, to = s.known(), s.args
		}
		p.used[name] = true
		value, given := p.Args[name]
		predefined, isPredefined := p.platformArgs()[name]
		global, isGlobal := p.global[name]
		switch {
		case given:
		case hasDefault:
			if value, err = p.expandKnown(text, known, s != nil); err != nil {
				return err
			}
		case s != nil && isGlobal:
			value = global
		case isPredefined:
			value = predefined
		default:
			continue // declared without a value
		}
		to[name] = value
	}
	return nil
}

// pairs returns the names and values of ENV or LABEL.
func (p *parser) pairs(in instruction) (pairs []string, err error) {
	words, err := splitWords(in.rest, p.escape)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(words[0], "=") { // ENV NAME rest of the line
		name, value, ok := strings.Cut(strings.ReplaceAll(in.rest, "\t", " "), " ")
		if !ok {
			return nil, fmt.Errorf("%.60s: use NAME=VALUE", in.rest)
		}
		return []string{name, strings.TrimSpace(value)}, nil
	}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%.60s: use NAME=VALUE; quote values with spaces", w)
		}
		pairs = append(pairs, name, value)
	}
	return pairs, nil
}

func (p *parser) env(in instruction, s *stage) error {
	pairs, err := p.pairs(in)
	if err != nil {
		return err
	}
	known := s.known()
	next := maps.Clone(s.env) // variables of one instruction do not see each other
	for i := 0; i < len(pairs); i += 2 {
		name := pairs[i]
		if nameLength(name) != len(name) {
			return fmt.Errorf("%.60q: use letters, digits and _, and begin with a letter or _", name)
		}
		value, names, err := unquote(pairs[i+1], p.escape)
		if err != nil {
			return err
		}
		pairs[i+1] = value
		next[name] = recipe.Expand(value, known)
		if slices.ContainsFunc(names, func(n string) bool { _, ok := known[n]; return !ok }) {
			delete(next, name) // its value depends on the base image
		}
	}
	p.add(s, in, recipe.Step{Kind: recipe.Env, Pairs: pairs})
	s.env = next
	for i := 0; i < len(pairs); i += 2 {
		delete(s.args, pairs[i]) // ENV takes precedence
	}
	return nil
}

// label checks labels, which sandboxes do not have.
func (p *parser) label(in instruction, _ *stage) error {
	pairs, err := p.pairs(in)
	for i := 1; err == nil && i < len(pairs); i += 2 {
		_, _, err = unquote(pairs[i], p.escape)
	}
	return err
}

func (p *parser) ignore(in instruction, _ *stage) error {
	p.warn(in.line, "%s has no effect", in.name)
	return nil
}

func (p *parser) workdir(in instruction, s *stage) error {
	text, _, err := unquote(in.rest, p.escape)
	if err == nil {
		p.add(s, in, recipe.Step{Kind: recipe.Workdir, Path: text})
	}
	return err
}

func (p *parser) user(in instruction, s *stage) error {
	text, _, err := unquote(in.rest, p.escape)
	if err == nil {
		p.add(s, in, recipe.Step{Kind: recipe.User, User: text})
	}
	return err
}

func (p *parser) shell(in instruction, s *stage) error {
	list, ok := jsonList(in.rest)
	if !ok || len(list) == 0 {
		return errors.New(`use SHELL ["PROGRAM", "ARGUMENT"]`)
	}
	s.shell = list
	return nil
}

// program handles CMD and ENTRYPOINT.
func (p *parser) program(in instruction, s *stage) error {
	c := s.commandOf(in.rest)
	if in.name == "CMD" {
		s.command = c
		return nil
	}
	s.entrypoint = c
	if s.parent != nil && slices.Equal(s.command.args, s.parent.command.args) && s.command.shell == s.parent.command.shell {
		s.command = command{} // as in Docker, the command of the base is for its entrypoint
	}
	return nil
}

// commandOf returns an exec form, or a shell form for the shell of the stage.
func (s *stage) commandOf(text string) command {
	if list, ok := jsonList(text); ok {
		return command{args: list}
	}
	if slices.Equal(s.shell, []string{"/bin/sh", "-c"}) {
		return command{shell: text}
	}
	return command{shell: quoteShell(append(slices.Clip(s.shell), text))}
}

var ports = regexp.MustCompile(`^[0-9]{1,5}(-[0-9]{1,5})?(/(tcp|udp|sctp))?$`)

func (p *parser) expose(in instruction, s *stage) error {
	for _, w := range strings.Fields(in.rest) {
		port, names, err := unquote(w, p.escape)
		if err != nil {
			return err
		}
		if len(names) == 0 && !ports.MatchString(strings.ToLower(port)) {
			return fmt.Errorf("%.60s: use PORT or PORT/PROTOCOL", w)
		}
	}
	s.exposed = true
	return nil
}

func (p *parser) healthcheck(in instruction, s *stage) error {
	flags, rest, err := takeFlags(in.rest, p.escape)
	if err != nil {
		return err
	}
	for _, f := range flags {
		if !slices.Contains([]string{"interval", "timeout", "start-period", "start-interval", "retries"}, f.name) {
			return fmt.Errorf("unknown flag --%.60s", f.name)
		}
	}
	kind, text, _ := strings.Cut(rest, " ")
	switch kind = strings.ToUpper(kind); {
	case kind == "NONE" && text == "":
		s.health = nil
	case kind == "CMD" && strings.TrimSpace(text) != "":
		c := s.commandOf(strings.TrimSpace(text))
		s.health = &c
	default:
		return errors.New("use HEALTHCHECK CMD COMMAND or HEALTHCHECK NONE")
	}
	return nil
}

func (p *parser) run(in instruction, s *stage) error {
	flags, rest, err := takeFlags(in.rest, p.escape)
	if err != nil {
		return err
	}
	step := recipe.Step{Kind: recipe.Run}
	for _, f := range flags {
		switch {
		case f.name == "mount":
			m, err := p.mount(f.value)
			if err != nil {
				return fmt.Errorf("--mount=%.100s: %w", f.value, err)
			}
			step.Mounts = append(step.Mounts, m)
		case f.name == "network" && f.value == "default":
		case f.name == "network", f.name == "security", f.name == "device":
			return fmt.Errorf("--%s=%.60s is unsupported: steps run with the network and the rights of a sandbox", f.name, f.value)
		default:
			return fmt.Errorf("unknown flag --%.60s", f.name)
		}
	}
	list, exec := jsonList(rest)
	switch {
	case exec && len(list) > 0:
		step.Args = list
	case rest == "":
		return errors.New("it has no command")
	default:
		text := script(rest, in.heredocs)
		if slices.Equal(s.shell, []string{"/bin/sh", "-c"}) {
			step.Command = text
		} else {
			step.Args = append(slices.Clone(s.shell), text)
		}
	}
	p.add(s, in, step)
	return nil
}

// script returns the text for a shell.
func script(rest string, heredocs []heredoc) string {
	if len(heredocs) == 1 && heredocWord.MatchString(rest) { // only <<NAME: the text is the script
		text := heredocs[0].text
		if interpreter, body, ok := strings.Cut(text, "\n"); ok && strings.HasPrefix(interpreter, "#!") {
			end := "COVE_END"
			for strings.Contains(body, end) {
				end += "_"
			}
			return fmt.Sprintf("exec %s /dev/stdin <<'%s'\n%s%[2]s\n", strings.TrimSpace(interpreter[2:]), end, body)
		}
		return text
	}
	var b strings.Builder
	b.WriteString(rest)
	for _, h := range heredocs {
		b.WriteString("\n" + h.text + h.name)
	}
	return b.String()
}

// mount reads the value of --mount.
func (p *parser) mount(text string) (recipe.Mount, error) {
	m := recipe.Mount{Kind: "bind"} // Docker's default
	fields := map[string]string{}
	for part := range strings.SplitSeq(strings.Trim(text, `"`), ",") {
		name, value, hasValue := strings.Cut(part, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if !hasValue {
			value = "true"
		}
		value, _, err := unquote(value, p.escape)
		if err != nil {
			return m, err
		}
		if alias := map[string]string{"dst": "target", "destination": "target"}[name]; alias != "" {
			name = alias
		}
		fields[name] = value
	}
	if kind, ok := fields["type"]; ok {
		m.Kind = kind
	}
	switch m.Kind {
	case recipe.Cache, recipe.Secret:
	case "bind", "tmpfs", "ssh":
		return m, fmt.Errorf("type=%s is unsupported: use type=cache or type=secret, or COPY for files", m.Kind)
	default:
		return m, fmt.Errorf("unknown type %.60q", m.Kind)
	}
	owner := [2]string{"0", "0"}
	for name, value := range fields {
		known := true
		switch name {
		case "type":
		case "id":
			m.ID = value
		case "target":
			m.Target = value
		case "env":
			m.Env, known = value, m.Kind == recipe.Secret
		case "required":
			m.Required, known = value == "true" || value == "1", m.Kind == recipe.Secret
		case "uid":
			owner[0] = value
		case "gid":
			owner[1] = value
		case "mode":
			m.Mode = value
			if len(value) > 4 {
				m.Mode = strings.TrimPrefix(value, "0")
			}
		case "sharing":
			// All caches are locked, which each of these values permits.
			known = m.Kind == recipe.Cache && slices.Contains([]string{"shared", "private", "locked"}, value)
		case "from", "source", "src", "ro", "readonly", "rw", "readwrite":
			return m, fmt.Errorf("%s is unsupported", name)
		default:
			known = false
		}
		if !known {
			return m, fmt.Errorf("%s=%.60s is unknown for type=%s", name, value, m.Kind)
		}
	}
	for _, id := range owner {
		if _, err := strconv.ParseUint(id, 10, 16); err != nil {
			return m, fmt.Errorf("uid and gid: %.20q is not a number below 65536", id)
		}
	}
	if m.Owner = owner[0] + ":" + owner[1]; m.Owner == "0:0" {
		m.Owner = ""
	}
	if m.Kind == recipe.Secret && m.ID == "" {
		m.ID = path.Base(m.Target)
	}
	return m, nil
}

// copyFlags are the flags of COPY and ADD.
type copyFlags struct {
	from    string
	parents bool
	exclude []string
}

func (p *parser) copyFlags(in instruction, s *stage, step *recipe.Step, flags []flag) (c copyFlags, err error) {
	for _, f := range flags {
		switch value, _, err := unquote(f.value, p.escape); {
		case err != nil:
			return c, err
		case f.name == "chown":
			step.Owner = value
		case f.name == "chmod":
			if step.Mode, err = p.expandKnown(f.value, s.known(), true); err != nil {
				return c, err
			}
			if len(step.Mode) > 4 {
				step.Mode = strings.TrimPrefix(step.Mode, "0")
			}
			if step.Mode == "" || strings.Trim(step.Mode, "01234567") != "" || len(step.Mode) > 4 {
				return c, fmt.Errorf("--chmod=%.60s: use up to four octal digits", f.value)
			}
		case f.name == "from" && in.name == "COPY":
			if c.from, err = p.expandKnown(f.value, p.global, true); err != nil {
				return c, err
			}
		case f.name == "exclude":
			pattern, err := p.expandKnown(f.value, s.known(), true)
			if err != nil {
				return c, err
			}
			c.exclude = append(c.exclude, pattern)
		case f.name == "parents":
			c.parents = f.value != "false"
		case f.name == "link": // layers are saved disks in either case
		default:
			return c, fmt.Errorf("flag --%.60s is unknown or unsupported", f.name)
		}
	}
	if c.from != "" && (c.parents || len(c.exclude) > 0) {
		return c, errors.New("--parents and --exclude are unsupported with --from")
	}
	return c, nil
}

// copy handles COPY and ADD.
func (p *parser) copy(in instruction, s *stage) error {
	flags, rest, err := takeFlags(in.rest, p.escape)
	if err != nil {
		return err
	}
	step := recipe.Step{Kind: recipe.Copy, Unpack: in.name == "ADD"}
	c, err := p.copyFlags(in, s, &step, flags)
	if err != nil {
		return err
	}
	words, ok := jsonList(rest)
	if !ok {
		words = strings.Fields(rest)
	}
	if len(words) < 2 {
		return errors.New("it needs a source and a destination")
	}
	last := len(words) - 1
	if step.To, _, err = unquote(words[last], p.escape); err != nil {
		return err
	}
	x := Context{Line: in.line, Exclude: c.exclude}
	docs := in.heredocs
	for _, w := range words[:last] {
		if m := heredocWord.FindStringSubmatch(w); m != nil && len(docs) > 0 {
			file, err := p.inline(s, docs[0])
			if err != nil {
				return err
			}
			docs, x.Inline = docs[1:], append(x.Inline, file)
			step.Sources = append(step.Sources, file.Name)
			continue
		}
		src, err := p.source(s, in, w)
		if err != nil {
			return err
		}
		x.Sources = append(x.Sources, src)
		step.Sources = append(step.Sources, src)
	}
	if c.parents {
		step.Sources = []string{"/"}
		step.To = strings.TrimSuffix(step.To, "/") + "/"
	}
	if len(words) > 2 && !strings.HasSuffix(step.To, "/") && step.To != "." && !strings.HasSuffix(step.To, "/.") {
		return fmt.Errorf("destination %.60q: it must end with / because there are several sources", words[last])
	}
	if c.from != "" {
		from, err := p.copySource(s, c.from)
		if err != nil {
			return err
		}
		step.From = from.name
		s.uses = append(s.uses, from)
	} else {
		s.contexts[len(s.steps)] = x
	}
	p.add(s, in, step)
	return nil
}

var fileName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// inline returns the text of a heredoc as a file.
func (p *parser) inline(s *stage, h heredoc) (File, error) {
	if !fileName.MatchString(h.name) || strings.Trim(h.name, ".") == "" {
		return File{}, fmt.Errorf("<<%.60s: use letters, digits, _, . and - in the name of a file", h.name)
	}
	if h.literal {
		return File{h.name, h.text}, nil
	}
	known := s.known()
	_, names, err := unquote(strings.NewReplacer(`'`, "", `"`, "").Replace(h.text), '\\')
	if err != nil {
		return File{}, err
	}
	for _, name := range names {
		if _, ok := known[name]; !ok {
			return File{}, unknownVariable("<<"+h.name, name)
		}
	}
	return File{h.name, recipe.Expand(h.text, known)}, nil
}

// source returns a pattern of files relative to the context.
func (p *parser) source(s *stage, in instruction, word string) (string, error) {
	text, err := p.expandKnown(word, s.known(), true)
	if err != nil {
		return "", err
	}
	if in.name == "ADD" && (strings.Contains(text, "://") || strings.HasPrefix(text, "git@")) {
		return "", fmt.Errorf("%.100s: URLs are unsupported; download it in a RUN step and check its digest there", text)
	}
	clean := path.Clean("/" + text)[1:]
	if up := path.Clean(strings.TrimLeft(text, "/")); up == ".." || strings.HasPrefix(up, "../") {
		return "", fmt.Errorf("%.100s is outside the build context", text)
	}
	if _, err := path.Match(clean, ""); err != nil {
		return "", fmt.Errorf("%.100s: invalid pattern", text)
	}
	if clean == "" {
		clean = "/"
	}
	return clean, nil
}

// copySource returns the stage that --from names. An image becomes a stage without steps.
func (p *parser) copySource(s *stage, name string) (*stage, error) {
	if from := p.findStage(name, true); from != nil {
		if from == s {
			return nil, fmt.Errorf("--from=%.60s is this stage itself", name)
		}
		return from, nil
	}
	if _, err := strconv.Atoi(name); err == nil {
		return nil, fmt.Errorf("--from=%.60s: no such stage", name)
	}
	base, err := baseOf(name)
	if err != nil {
		return nil, err
	}
	for _, other := range p.stages {
		for _, u := range other.uses {
			if u.base == base && len(u.steps) == 0 && strings.HasPrefix(u.name, imagePrefix) {
				return u, nil
			}
		}
	}
	count := 0
	for _, other := range p.stages {
		count += len(other.uses)
	}
	return &stage{name: imagePrefix + strconv.Itoa(count), base: base}, nil
}

// imagePrefix begins the names of stages that are only images. No name in a file begins with a digit.
const imagePrefix = "0-image-"
