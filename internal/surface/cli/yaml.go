package cli

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// toYAML converts JSON.
func toYAML(b []byte) (string, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(b, &node); err != nil { // JSON is YAML; a node keeps the order of the fields
		return "", err
	}
	block(&node)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	err := e.Encode(&node)
	return Escape(out.String()), err
}

// block selects the usual style for a value and all values in it.
func block(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		block(child)
	}
}
