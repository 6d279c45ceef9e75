package page

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// EvaluateIn is a script.
type EvaluateIn struct {
	Expression string `json:"expression" doc:"JavaScript: an expression, statements, a function, or a promise" alias:"script"`
	Where
}

// Evaluated is the value of a script. It stands in data itself.
type Evaluated struct {
	op.Envelope
	Data   any `json:"data" doc:"The value as JSON. undefined is null; a bigint, NaN or Infinity is a string, a Date its ISO text, a DOM node its HTML, a cycle \"[Circular]\""`
	Result any `json:"result" doc:"The same as data"`
}

// evaluateTime is how long a script may run unless told otherwise.
const evaluateTime = 30 * time.Second

// Evaluate runs a script in the page.
func (s *Service) Evaluate(ctx context.Context, in EvaluateIn) (Evaluated, error) {
	var value json.RawMessage
	err := s.visitFor(ctx, in.Where, evaluateTime, false, func(ctx context.Context, t *tab.Tab) (err error) {
		value, err = locate.RunScript(ctx, t, in.Expression)
		return err
	})
	if err != nil {
		return Evaluated{}, err
	}
	if value == nil {
		value = json.RawMessage("null")
	}
	return Evaluated{Envelope: op.SuccessEnvelope(ctx), Data: value, Result: value}, nil
}
