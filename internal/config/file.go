package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the configuration file; a larger one is a mistake.
const maxFile = 1 << 20

// File finds the configuration file of a program ("aio"): the path given by flag,
// else by the variable AIO_CONFIG, else /etc/aio/config.yaml if that exists.
// Empty means there is none. A path given by hand is returned even if nothing is there:
// Load then says so instead of starting without the settings somebody asked for.
func File(program, flag string, environ []string) string {
	if flag != "" {
		return flag
	}
	if path, ok := newEnviron(environ).lookup(strings.ToUpper(program) + "_CONFIG"); ok {
		return path
	}
	path := "/etc/" + program + "/config.yaml"
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// fileValue is one top-level entry of the file.
type fileValue struct {
	raw    raw
	origin string
}

// readFile returns the entries that belong to a field; everything else in the
// file is a fault. Entries without a value (key: null) count as absent.
func (l *loader) readFile(path string) map[string]fileValue {
	if path == "" {
		return nil
	}
	root, err := parseFile(path)
	if err != nil {
		l.fault("config", "file "+path, err.Error())
		return nil
	}
	if root == nil {
		return nil
	}
	known := make([]string, len(l.fields))
	for i, f := range l.fields {
		known[i] = f.Key
	}
	values := make(map[string]fileValue)
	lines := make(map[string]int)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		origin := "file " + path + ":" + strconv.Itoa(key.Line)
		if key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value) {
			name := key.Value
			if key.Kind != yaml.ScalarNode {
				name = "(a key that is no text)"
			}
			l.fault(quote(name), origin, "is not a known key"+suggest(name, known, ""))
			continue
		}
		if first, dup := lines[key.Value]; dup {
			l.fault(key.Value, origin, fmt.Sprintf("is given twice; the first is in line %d", first))
			continue
		}
		lines[key.Value] = key.Line
		r, set, err := fromNode(node)
		if err != nil {
			l.fault(key.Value, origin, err.Error())
		} else if set {
			values[key.Value] = fileValue{raw: r, origin: origin}
		}
	}
	return values
}

// parseFile returns the mapping at the top of the file, nil for an empty file.
func parseFile(path string) (*yaml.Node, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("is larger than %s; it should hold settings only", Bytes(maxFile))
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one YAML document; keep one")
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, errors.New(`must hold "key: value" lines`)
	}
	return root, nil
}

// fromNode takes a value as the text that stands in the file, so that a token
// of digits stays a text. set is false for null.
func fromNode(n *yaml.Node) (r raw, set bool, err error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return raw{}, false, nil
		}
		return raw{text: []string{n.Value}}, true, nil
	case yaml.SequenceNode:
		items := make([]string, 0, len(n.Content))
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return raw{}, false, fmt.Errorf("must be a list of single values; look at line %d", c.Line)
			}
			items = append(items, c.Value)
		}
		return raw{items: items}, true, nil
	case yaml.MappingNode:
		pairs := make(map[string]string)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.Kind != yaml.ScalarNode || v.Kind != yaml.ScalarNode {
				return raw{}, false, fmt.Errorf("must map names to single values; look at line %d", k.Line)
			}
			if _, dup := pairs[k.Value]; dup {
				return raw{}, false, fmt.Errorf("holds %s twice; look at line %d", quote(k.Value), k.Line)
			}
			pairs[k.Value] = v.Value
		}
		return raw{pairs: pairs}, true, nil
	}
	return raw{}, false, errors.New("must be a value, a list or a mapping")
}
