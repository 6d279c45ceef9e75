package toolset

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/spell"
)

// synonyms are names that models confuse. A tool that has exactly one name of a group accepts
// the other names of the group too.
var synonyms = [][]string{
	{"path", "file", "file_path", "filename"},
	{"command", "cmd"},
	{"exec_dir", "cwd", "workdir", "working_directory"},
	{"session_id", "id"},
	{"pattern", "regex"},
	{"script", "expression"},
	{"uri", "url"},
}

// choices maps words that models use to values of an enum.
var choices = map[string]string{
	"py": "python", "python3": "python", "js": "javascript", "node": "javascript", "nodejs": "javascript",
}

// bind decodes the arguments into the operation's input.
func (t Tool) bind(raw json.RawMessage) (in any, fields map[string]any, err error) {
	args, err := parseObject(raw)
	if err != nil {
		return nil, nil, op.Errorf(op.Invalid, "the arguments of %s must be a JSON object: %v", t.Name, err)
	}
	named := t.form.names()
	fields = make(map[string]any, len(args))
	var wrong []string
	for name, value := range args {
		field, ok := named.resolve(name)
		switch _, twice := fields[field]; {
		case !ok:
			wrong = append(wrong, named.describeUnknown(name))
		case twice:
			wrong = append(wrong, fmt.Sprintf("argument %q is given twice under different names", named.nameOf(field)))
		default:
			fields[field] = value
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return nil, nil, op.Errorf(op.Invalid, "%s", strings.Join(wrong, "; "))
	}
	for _, a := range t.Args {
		if _, given := fields[a.Field]; !given && a.Preset != nil {
			fields[a.Field] = a.Preset
		}
	}
	if in := t.Op.In(); in.Kind == op.Union && fields[in.Tag] == nil {
		return nil, nil, op.Errorf(op.Invalid, "missing argument %q", named.nameOf(in.Tag))
	}
	files := map[string]*op.File{}
	if err := t.convert(fields, files); err != nil {
		return nil, nil, err
	}
	b, err := json.Marshal(fields)
	if err != nil {
		return nil, nil, err
	}
	in, err = t.Op.Bind(op.Input{Flat: true, JSON: b, File: func(name string) *op.File { return files[name] }})
	if faults, ok := errors.AsType[op.Faults](err); ok {
		return nil, nil, op.Errorf(op.Invalid, "%s", t.describe(faults))
	}
	return in, fields, err
}

func parseObject(raw json.RawMessage) (map[string]any, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return map[string]any{}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var args map[string]any
	if err := dec.Decode(&args); err != nil {
		return nil, errors.New("got " + kindOf(raw))
	}
	return args, nil
}

func kindOf(raw []byte) string {
	switch raw[0] {
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '{':
		return "invalid JSON"
	}
	return "a value that is not an object"
}

// names maps the arguments of a tool to the fields that they set.
type names struct {
	fields  map[string]string // by argument
	args    map[string]string // by field
	aliases map[string]string // other names, to fields
	order   []string
}

func (t Tool) listNames() names {
	n := names{map[string]string{}, map[string]string{}, map[string]string{}, nil}
	for _, f := range t.Op.In().AllFields() {
		name := f.Name
		if a, ok := t.arg(f.Name); ok && a.Name != "" {
			name = a.Name
			n.aliases[f.Name] = f.Name
		}
		n.fields[name], n.args[f.Name] = f.Name, name
		if t.Only == nil || slices.Contains(t.Only, f.Name) {
			n.order = append(n.order, name)
		}
		for _, alias := range f.Aliases {
			n.aliases[alias] = f.Name
		}
	}
	return n
}

// resolve finds the field that an argument sets.
func (n names) resolve(name string) (field string, ok bool) {
	if field, ok = n.fields[name]; ok {
		return field, true
	}
	if field, ok = n.aliases[name]; ok {
		return field, true
	}
	for _, group := range synonyms {
		if !slices.Contains(group, name) {
			continue
		}
		known := slices.DeleteFunc(slices.Clone(group), func(other string) bool { return n.fields[other] == "" })
		if len(known) == 1 {
			return n.fields[known[0]], true
		}
	}
	return "", false
}

func (n names) nameOf(field string) string {
	if name, ok := n.args[field]; ok {
		return name
	}
	return field
}

func (n names) describeUnknown(name string) string {
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	switch near := spell.Nearest(name, n.order); {
	case near != "":
		return fmt.Sprintf("unknown argument %q; did you mean %q?", name, near)
	case len(n.order) == 0:
		return fmt.Sprintf("unknown argument %q; this tool has no arguments", name)
	}
	return fmt.Sprintf("unknown argument %q; use one of %s", name, strings.Join(n.order, ", "))
}

// describe describes all faults with the argument names of the tool.
func (t Tool) describe(faults op.Faults) string {
	var all []string
	n := t.form.names()
	for _, f := range faults {
		loc, hint := slices.Clone(f.Loc), ""
		if len(loc) > 0 {
			if field, ok := loc[0].(string); ok {
				loc[0] = n.nameOf(field)
				hint = t.hint(field)
			}
		}
		var at strings.Builder
		for i, part := range loc {
			if i > 0 {
				at.WriteByte('.')
			}
			fmt.Fprint(&at, part)
		}
		if f.Type == "missing" {
			all = append(all, fmt.Sprintf("missing argument %q%s", at.String(), hint))
			continue
		}
		if len(loc) == 0 {
			all = append(all, f.Msg)
			continue
		}
		all = append(all, fmt.Sprintf("argument %q: %s", at.String(), f.Msg))
	}
	return strings.Join(all, "; ")
}

// hint returns the allowed values of a missing argument.
func (t Tool) hint(field string) string {
	for _, f := range t.Op.In().AllFields() {
		if f.Name == field && len(f.Enum) > 0 {
			return ": one of " + strings.Trim(fmt.Sprint(f.Enum), "[]")
		}
	}
	return ""
}

func isChoice(v any, enum []any) bool {
	return slices.ContainsFunc(enum, func(choice any) bool { return fmt.Sprint(choice) == fmt.Sprint(v) })
}

// chooseValue returns the value of an enum that matches a word, or the word.
func chooseValue(word string, enum []any) any {
	lower := strings.ToLower(strings.TrimSpace(word))
	for _, meant := range []string{word, lower, strings.ToUpper(lower), choices[lower]} {
		if slices.Contains(enum, any(meant)) {
			return meant
		}
	}
	return word
}

// convert converts arguments to the form of the fields: line numbers, maps that were sent as
// lists, JSON that was sent as a string, and contents of files.
func (t Tool) convert(fields map[string]any, files map[string]*op.File) error {
	in := t.Op.In()
	for _, f := range in.AllFields() {
		v, ok := fields[f.Name]
		if !ok || v == nil {
			continue
		}
		if word, ok := v.(string); ok && len(f.Enum) > 0 {
			v = chooseValue(word, f.Enum)
			fields[f.Name] = v
		}
		// The operation ignores fields of other variants, whose values would be accepted.
		if in.Kind == op.Union && f.Name != in.Tag && len(f.Enum) > 0 && !isChoice(v, f.Enum) {
			return op.Errorf(op.Invalid, "argument %q: use one of %s", t.form.names().nameOf(f.Name), strings.Trim(fmt.Sprint(f.Enum), "[]"))
		}
		if _, ok := v.(string); ok && len(f.Enum) > 0 {
			continue
		}
		arg, _ := t.arg(f.Name)
		if arg.Count != Plain {
			if fields[f.Name], ok = countFromZero(v, arg.Count); !ok {
				return op.Errorf(op.Invalid, "argument %q: lines are counted from 1; -1 is the last line", t.form.names().nameOf(f.Name))
			}
			continue
		}
		switch kind := f.Type.Base().Kind; kind {
		case op.Upload:
			file, err := fileOf(v)
			if err != nil {
				return op.Errorf(op.Invalid, "argument %q: %v", f.Name, err)
			}
			files[f.Name] = file
			delete(fields, f.Name)
		case op.Map, op.Any, op.Object, op.Array, op.Union:
			fields[f.Name] = parseText(v, kind)
		}
	}
	return nil
}

// countFromZero converts a line number; ok is false for line 0. A nil number means no limit.
func countFromZero(v any, count Count) (any, bool) {
	number, ok := v.(json.Number)
	if !ok {
		return v, true // the operation reports the error
	}
	n, err := number.Int64()
	switch {
	case err != nil:
		return v, true
	case n == 0:
		return nil, false
	case count == FirstLine && n > 0:
		return n - 1, true
	case count == LastLine && n == -1:
		return nil, true
	case count == LastLine && n < 0:
		return n + 1, true
	}
	return n, true
}

// parseText parses a value that was sent as text: a map as a list of NAME=value, and other
// values as JSON in a string.
func parseText(v any, kind op.Kind) any {
	if list, ok := v.([]any); ok && kind == op.Map {
		out := map[string]any{}
		for _, item := range list {
			name, value, ok := strings.Cut(fmt.Sprint(item), "=")
			if !ok {
				return v
			}
			out[name] = value
		}
		return out
	}
	s, ok := v.(string)
	if !ok {
		return v
	}
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil || dec.More() {
		return v
	}
	switch tree.(type) {
	case map[string]any, []any:
		return tree
	}
	return v
}

// fileOf returns the file in an argument, which is base64 or a data URI.
func fileOf(v any) (*op.File, error) {
	s, ok := v.(string)
	if !ok {
		return nil, errors.New("send the content of the file as base64 in a string")
	}
	if head, body, ok := strings.Cut(s, ","); ok && strings.HasPrefix(head, "data:") && strings.HasSuffix(head, ";base64") {
		s = body
	}
	s = strings.Join(strings.Fields(s), "")
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		if data, err = base64.RawStdEncoding.DecodeString(s); err != nil {
			return nil, errors.New("the content is not base64; use file_write to write text")
		}
	}
	return &op.File{Name: "upload", Type: "application/octet-stream", Reader: bytes.NewReader(data)}, nil
}
