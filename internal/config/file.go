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

// maxFile is the maximum size of a configuration file.
const maxFile = 1 << 20

// File finds the configuration file of a program ("aio"): the path given by flag,
// else by the variable AIO_CONFIG, else /etc/aio/config.yaml if that exists.
// Empty means none. A given path is returned even if the file is missing, so that Load fails
// instead of ignoring the file.
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

// readFile returns the entries that belong to a field; other entries are faults.
// Entries without a value (key: null) count as absent.
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
				name = "(a key that is not a string)"
			}
			l.fault(quote(name), origin, "unknown key"+suggest(name, known, ""))
			continue
		}
		if first, dup := lines[key.Value]; dup {
			l.fault(key.Value, origin, fmt.Sprintf("is duplicated; it is first set in line %d", first))
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

// parseFile returns the top-level mapping of the file, nil if the file is empty.
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
		return nil, fmt.Errorf("is larger than the maximum of %s", Bytes(maxFile))
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one YAML document; only one is allowed")
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, errors.New(`must consist of "key: value" entries`)
	}
	return root, nil
}

// fromNode returns a value as the text in the file, so that a token of digits remains text.
// set is false for null.
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
				return raw{}, false, fmt.Errorf("must be a list of single values; see line %d", c.Line)
			}
			items = append(items, c.Value)
		}
		return raw{items: items}, true, nil
	case yaml.MappingNode:
		pairs := make(map[string]string)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.Kind != yaml.ScalarNode || v.Kind != yaml.ScalarNode {
				return raw{}, false, fmt.Errorf("must map names to single values; see line %d", k.Line)
			}
			if _, dup := pairs[k.Value]; dup {
				return raw{}, false, fmt.Errorf("has the key %s twice; see line %d", quote(k.Value), k.Line)
			}
			pairs[k.Value] = v.Value
		}
		return raw{pairs: pairs}, true, nil
	}
	return raw{}, false, errors.New("must be a value, a list or a mapping")
}
