package skill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

const (
	documentName = "SKILL.md"
	maxDocument  = 1 << 20
	maxFront     = 64 << 10
	maxDepth     = 4      // of skill folders below a registered one
	maxFolders   = 10_000 // visited by one registration
)

// document is a parsed SKILL.md.
type document struct {
	front map[string]any
	body  string
}

// readDocument reads the SKILL.md of a folder.
func readDocument(dir string) (document, error) {
	path, err := documentPath(dir)
	if err != nil {
		return document{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return document{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return document{}, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return document{}, err
	}
	if len(b) > maxDocument {
		return document{}, fmt.Errorf("%s is larger than %d bytes", path, maxDocument)
	}
	doc, err := parseDocument(b)
	if err != nil {
		return document{}, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}

// documentPath returns the path of the SKILL.md of a folder, regardless of its case.
func documentPath(dir string) (string, error) {
	path := filepath.Join(dir, documentName)
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return path, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.EqualFold(e.Name(), documentName) {
			return filepath.Join(dir, e.Name()), nil
		}
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

var fence = []byte("---")

// parseDocument separates the front matter, which is optional, from the body.
func parseDocument(b []byte) (document, error) {
	b = bytes.ReplaceAll(bytes.TrimPrefix(b, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if !bytes.Equal(bytes.TrimRight(first, " \t"), fence) {
		return document{front: map[string]any{}, body: string(b)}, nil
	}
	var front []byte
	for at := rest; ; {
		line, after, more := bytes.Cut(at, []byte("\n"))
		if bytes.Equal(bytes.TrimRight(line, " \t"), fence) {
			front, rest = rest[:len(rest)-len(at)], after
			break
		}
		if !more {
			return document{}, errors.New("the front matter has no closing ---; add it after the last field")
		}
		at = after
	}
	if len(front) > maxFront {
		return document{}, fmt.Errorf("the front matter is larger than %d bytes", maxFront)
	}
	fields, err := parseFront(front)
	if err != nil {
		return document{}, err
	}
	return document{front: fields, body: strings.TrimLeft(string(rest), "\n")}, nil
}

func parseFront(b []byte) (map[string]any, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(b, &node); err != nil {
		return nil, fmt.Errorf("the front matter is not valid YAML (its first line is line 2 of the file): %s",
			strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(node.Content) == 0 {
		return map[string]any{}, nil
	}
	if node.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("the front matter must be a list of fields such as \"name: my-skill\"")
	}
	fields := map[string]any{}
	if err := node.Decode(&fields); err != nil {
		return nil, fmt.Errorf("the front matter is not valid: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	plain, ok := jsonValue(fields).(map[string]any)
	if !ok {
		return nil, errors.New("the front matter must have names as keys")
	}
	return plain, nil
}

// jsonValue replaces values of YAML that JSON does not support: keys that are not strings, and
// numbers that are not finite.
func jsonValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = jsonValue(e)
		}
		return v
	case map[any]any:
		out := map[string]any{}
		for k, e := range v {
			out[fmt.Sprint(k)] = jsonValue(e)
		}
		return out
	case []any:
		for i, e := range v {
			v[i] = jsonValue(e)
		}
		return v
	case float64:
		if v != v || v > 1e308 || v < -1e308 {
			return fmt.Sprint(v)
		}
	}
	return v
}

// plainName matches the allowed names of skills, which become part of paths and URLs.
var plainName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[\p{L}\p{N}_][\p{L}\p{N} ._-]{0,126}[\p{L}\p{N}_-]$|^[\p{L}\p{N}_]$`)
})

// name returns the name of a skill, from the front matter or else from its folder.
func (d document) name(dir string) (string, error) {
	name := filepath.Base(dir)
	if given, ok := d.front["name"]; ok && given != nil {
		text, ok := given.(string)
		if !ok {
			return "", fmt.Errorf("the name in the front matter must be text, not %v; put it in quotes", given)
		}
		name = strings.TrimSpace(text)
	}
	if !plainName().MatchString(name) || strings.Contains(name, "..") {
		return "", fmt.Errorf("invalid skill name %.80q; use letters, digits, hyphens, underscores and single dots, at most 128 characters", name)
	}
	return name, nil
}
