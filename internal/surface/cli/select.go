package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/itchyny/gojq"
	"go.yaml.in/yaml/v3"
)

// queryTimeout bounds an expression, which can loop forever.
const queryTimeout = time.Minute

// jsonPath is the prefix of an output format with an expression.
const jsonPath = "jsonpath="

// query is a compiled expression of --jq or -o jsonpath.
type query struct {
	parts []part
	jq    bool
}

// part is a text or an expression of a jsonpath template.
type part struct {
	text string
	code *gojq.Code
	body []part // of a range
}

// newQuery compiles --jq or the format jsonpath=TEMPLATE; nil if neither is given.
func newQuery(jq, output string) (*query, error) {
	if jq != "" {
		code, err := compile(jq)
		if err != nil {
			return nil, &Error{ExitUsage, fmt.Sprintf("invalid --jq %q: %v", jq, err)}
		}
		return &query{[]part{{code: code}}, true}, nil
	}
	template, ok := strings.CutPrefix(output, jsonPath)
	if !ok {
		return nil, nil //nolint:nilnil // neither is given
	}
	p := &pathParser{rest: template}
	parts, err := p.parse(false)
	if err != nil {
		return nil, &Error{ExitUsage, fmt.Sprintf("invalid jsonpath %q: %v; use a template such as {.name} or "+
			`{range .items[*]}{.name}{"\n"}{end}`, template, err)}
	}
	return &query{parts, false}, nil
}

// compile compiles an expression of jq without access to variables, files or the environment.
func compile(text string) (*gojq.Code, error) {
	q, err := gojq.Parse(text)
	if err != nil {
		return nil, err
	}
	return gojq.Compile(q)
}

// pathParser reads a jsonpath template as of kubectl. Its expressions are the subset that jq shares: fields, indexes, [*] and ranges.
type pathParser struct{ rest string }

func (p *pathParser) parse(inside bool) (parts []part, err error) {
	for p.rest != "" {
		text, rest, found := strings.Cut(p.rest, "{")
		if text != "" {
			parts = append(parts, part{text: text})
		}
		if p.rest = rest; !found {
			break
		}
		expression, rest, closed := strings.Cut(p.rest, "}")
		if !closed {
			return nil, fmt.Errorf("no } after {%s", expression)
		}
		p.rest = rest
		expression = strings.TrimSpace(expression)
		over, isRange := strings.CutPrefix(expression, "range ")
		switch {
		case expression == "end" && inside:
			return parts, nil
		case strings.HasPrefix(expression, `"`):
			var text string
			if err := json.Unmarshal([]byte(expression), &text); err != nil {
				return nil, err
			}
			parts = append(parts, part{text: text})
		case isRange:
			code, err := compilePath(over)
			if err != nil {
				return nil, err
			}
			body, err := p.parse(true)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part{code: code, body: append(body, part{})})
		default:
			code, err := compilePath(expression)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part{code: code})
		}
	}
	if inside {
		return nil, errors.New("no {end} after {range}")
	}
	return parts, nil
}

func compilePath(path string) (*gojq.Code, error) {
	path = strings.TrimPrefix(strings.TrimSpace(path), "$")
	path = strings.TrimPrefix(path, "@")
	if path == "" {
		path = "."
	}
	if !strings.HasPrefix(path, ".") {
		path = "." + path
	}
	path = strings.ReplaceAll(strings.ReplaceAll(path, "[*]", "[]?"), "'", `"`)
	return compile(path)
}

// write applies the query to a JSON value.
func (q *query) write(ctx context.Context, w io.Writer, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err
	}
	if list, ok := v.([]any); ok && !q.jq {
		v = map[string]any{"items": list} // as kubectl shows lists
	}
	if err := q.run(ctx, w, q.parts, v); err != nil {
		return &Error{ExitFailed, "cannot evaluate the expression: " + err.Error()}
	}
	if !q.jq {
		fmt.Fprintln(w)
	}
	return nil
}

func (q *query) run(ctx context.Context, w io.Writer, parts []part, v any) error {
	for _, p := range parts {
		if p.code == nil {
			if _, err := io.WriteString(w, p.text); err != nil {
				return err
			}
			continue
		}
		results := p.code.RunWithContext(ctx, v)
		for n := 0; ; n++ {
			r, ok := results.Next()
			if !ok {
				break
			}
			if err, ok := r.(error); ok {
				return err
			}
			switch {
			case p.body != nil:
				if err := q.run(ctx, w, p.body, r); err != nil {
					return err
				}
			case q.jq:
				fmt.Fprintln(w, plain(r))
			case r != nil:
				fmt.Fprint(w, strings.Repeat(" ", min(n, 1)), plain(r))
			}
		}
	}
	return nil
}

// plain formats a result: texts without quotes, as jq -r.
func plain(v any) string {
	if text, ok := v.(string); ok {
		return Escape(text)
	}
	b, err := gojq.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return Escape(string(b))
}

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
