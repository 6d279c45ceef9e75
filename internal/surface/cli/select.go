package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Select compiles an expression in a language: jq or jsonpath.
type Select func(ctx context.Context, language, expression string) (Selection, error)

// Selection writes what an expression selects from a JSON value.
type Selection interface {
	Write(ctx context.Context, w io.Writer, json []byte) error
}

const jsonPath = "jsonpath"

// compile compiles --jq or -o jsonpath=TEMPLATE; nil if neither is given.
func (r *run) compile(ctx context.Context) (Selection, error) {
	name, language, expression := "--jq", "jq", r.jq
	if expression == "" {
		if name, expression, _ = strings.Cut(r.output, "="); name != jsonPath {
			return nil, nil //nolint:nilnil // neither is given
		}
		language = jsonPath
	}
	s, err := r.Select(ctx, language, expression)
	if err != nil {
		return nil, &Error{ExitUsage, fmt.Sprintf("invalid %s %q: %v", name, expression, err)}
	}
	return s, nil
}

// writeSelection prints what the expression selects from a response, which may contain control sequences.
func (r *run) writeSelection(b []byte) error {
	out := bufio.NewWriter(r.Stdout)
	w := Writer(out)
	if err := r.selection.Write(r.ctx, w, b); err != nil {
		return &Error{ExitFailed, "cannot evaluate the expression: " + err.Error()}
	}
	return outputError(errors.Join(w.Close(), out.Flush()))
}
