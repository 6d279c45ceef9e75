// Package config fills one flat struct per program from four layers:
// defaults < file < environment < flags.
//
// It owns the syntax of values (types, limits, lists, sizes), the search for the file, the
// origin of each value, and the list of variables that are hidden from children. It is the
// only package that reads the process's environment. It reports all unknown keys, unknown
// variables with the program's prefix and invalid values together, and then does not change
// the struct.
package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
)

// Source is the input of Load. It is plain data, so tests need neither a process environment
// nor a home directory.
type Source struct {
	// File is the path of a YAML file; empty means none. An unreadable file is a
	// fault.
	File string
	// Environ holds KEY=value pairs as in os.Environ. A variable that is set but
	// empty counts as unset, because container tools pass optional variables that way.
	Environ []string
	// Flags contains the given command-line values by flag name without dashes.
	Flags map[string][]string
	// Prefix is that of the program's variables ("AIO_"). An unknown variable with the
	// prefix is a fault. If Prefix is empty, unknown variables are ignored.
	Prefix string
	// Ignore lists variables with the prefix that are not settings of the program.
	Ignore []string
}

// Variable returns a variable that a user has named, such as the value of a build argument.
func Variable(name string) (value string, set bool) {
	for _, pair := range os.Environ() {
		if value, set = strings.CutPrefix(pair, name+"="); set {
			return value, true
		}
	}
	return "", false
}

// Sudoer returns the ID of the user that started this process with sudo, or "".
func Sudoer() string { return os.Getenv("SUDO_UID") }

// OfSudoer adds the user that started this program with sudo, if any, to a list of users.
func OfSudoer(users []string) []string {
	if id := Sudoer(); id != "" && os.Geteuid() == 0 {
		return append(slices.Clone(users), id)
	}
	return users
}

// Environ returns the environment of this process, for child processes and for clients, whose
// settings have no file.
func Environ() []string { return os.Environ() }

// System returns the Source of this process: its environment, the file that File
// finds, and the given flags.
func System(program string, flags map[string][]string) Source {
	environ := Environ()
	explicit := ""
	if v := flags["config"]; len(v) > 0 {
		explicit = v[len(v)-1]
	}
	return Source{
		File:    File(program, explicit, environ),
		Environ: environ,
		Flags:   flags,
		Prefix:  strings.ToUpper(program) + "_",
		// The command lines read AIO_TOKEN, COVE_URL, COVE_CONTEXT and COVE_CONFIG_DIR. A hub
		// passes COVE_LISTEN and COVE_EGRESS to its sandboxes, which may run a hub. The others
		// are variables of the public sandbox image that have no effect here. They must not
		// prevent the start.
		Ignore: []string{"AIO_TOKEN", "AIO_CLI_SKILL_ENABLED", "COVE_URL", "COVE_CONTEXT", "COVE_CONFIG_DIR", "COVE_LISTEN", "COVE_EGRESS"},
	}
}

// Completer is implemented by a config struct with rules that its tags cannot express:
// defaults that depend on the machine, and checks of syntax. Complete runs after all
// layers are read; a setting whose value is invalid holds its default then.
// Texts passed to fault must not quote secrets.
type Completer interface {
	Complete(lookup func(name string) (string, bool), fault func(key, format string, args ...any))
}

// Row is one setting after Load.
type Row struct {
	Key    string `json:"key"`
	Value  string `json:"value"`  // hidden for secrets
	Origin string `json:"origin"` // "default", "file /p:3", "environment AIO_LISTEN", "flag --listen"
	Doc    string `json:"doc"`
}

// Report lists every setting in the order of the struct's fields.
type Report struct {
	Rows []Row `json:"rows"`
}

// Fault is one problem of the configuration.
type Fault struct {
	Key     string // the setting; the given name if it is unknown
	Origin  string // source of the value
	Problem string // the problem and the allowed values
}

func (f Fault) Error() string {
	if f.Origin == "" || f.Origin == f.Key {
		return f.Key + ": " + f.Problem
	}
	return f.Key + " (" + f.Origin + "): " + f.Problem
}

// Error carries all faults of one Load.
type Error struct {
	Faults []Fault
}

func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return "read configuration: " + e.Faults[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "read configuration: %d errors", len(e.Faults))
	for _, f := range e.Faults {
		b.WriteString("\n  - " + f.Error())
	}
	return b.String()
}

// Load fills dst, a pointer to a flat tagged struct, from src. If there are faults, it returns
// an *Error with all of them and does not change dst. It panics on invalid tags, which are an
// error in the program.
func Load(dst any, src Source) (*Report, error) {
	fields := Fields(dst)
	env := newEnviron(src.Environ)
	l := &loader{fields: fields, origins: make([]string, len(fields))}
	l.out = reflect.New(reflect.TypeOf(dst).Elem())

	file := l.readFile(src.File)
	for i, f := range fields {
		l.fill(i, f, file, env, src.Flags)
	}
	l.rejectUnknownFlags(src.Flags)
	l.rejectUnknownVariables(env, src.Prefix, src.Ignore)

	if c, ok := l.out.Interface().(Completer); ok {
		c.Complete(env.lookup, l.completeFault)
	}
	if len(l.faults) > 0 {
		return nil, &Error{Faults: l.faults}
	}
	reflect.ValueOf(dst).Elem().Set(l.out.Elem())
	return l.report(), nil
}

// loader holds the state of one Load.
type loader struct {
	fields  []Field
	out     reflect.Value // pointer to the struct being filled
	origins []string      // by field
	faulty  map[string]bool
	faults  []Fault
}

// fill sets the field from the highest layer that has a value. It also reports an invalid value
// in a lower layer, which would become effective without the upper one.
func (l *loader) fill(i int, f Field, file map[string]fileValue, env environ, flags map[string][]string) {
	target := l.out.Elem().Field(f.index)
	l.origins[i] = "default"
	if f.Default != "" {
		v, err := f.parse(raw{text: []string{f.Default}})
		if err != nil {
			panic(fmt.Sprintf("config: field %s has an invalid default: %v", f.Name, err))
		}
		target.Set(v)
	}
	take := func(origin string, r raw) {
		v, err := f.parse(r)
		if err != nil {
			l.fault(f.Key, origin, err.Error())
			return
		}
		target.Set(v)
		l.origins[i] = origin
	}
	if v, ok := file[f.Key]; ok {
		take(v.origin, v.raw)
	}
	if name, r, ok := env.find(f.Env); ok {
		take("environment "+name, r)
	}
	if v, ok := flags[f.Flag]; ok && len(v) > 0 {
		take("flag --"+f.Flag, raw{text: v})
	}
}

func (l *loader) fault(key, origin, problem string) {
	if l.faulty == nil {
		l.faulty = make(map[string]bool)
	}
	l.faulty[key] = true
	l.faults = append(l.faults, Fault{Key: key, Origin: origin, Problem: problem})
}

// completeFault records a fault that a Completer found. It ignores keys that already have a
// fault, because their fields contain the default.
func (l *loader) completeFault(key, format string, args ...any) {
	for i, f := range l.fields {
		if f.Key == key {
			if !l.faulty[key] {
				l.faults = append(l.faults, Fault{Key: key, Origin: l.origins[i], Problem: fmt.Sprintf(format, args...)})
			}
			return
		}
	}
	panic(fmt.Sprintf("config: Complete reports a fault of the unknown key %q", key))
}

func (l *loader) rejectUnknownFlags(flags map[string][]string) {
	known := make([]string, 0, len(l.fields)+1)
	for _, f := range l.fields {
		known = append(known, f.Flag)
	}
	known = append(known, "config") // the path of the file; see System
	for _, name := range sortedKeys(flags) {
		if !slices.Contains(known, name) {
			l.fault("--"+name, "", "unknown flag"+suggest(name, known, "--"))
		}
	}
}

func (l *loader) report() *Report {
	r := &Report{Rows: make([]Row, len(l.fields))}
	for i, f := range l.fields {
		r.Rows[i] = Row{Key: f.Key, Value: f.show(l.out.Elem().Field(f.index)), Origin: l.origins[i], Doc: f.Doc}
	}
	return r
}

// Redact formats a config struct as key=value pairs with secrets hidden. Config structs use it
// for String and GoString, so that %v and log lines reveal no secret.
func Redact(dst any) string {
	v := reflect.ValueOf(dst).Elem()
	var b strings.Builder
	for i, f := range Fields(dst) {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%q", f.Key, f.show(v.Field(f.index)))
	}
	return b.String()
}
