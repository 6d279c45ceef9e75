package content

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// EvaluateIn is a script.
type EvaluateIn struct {
	Expression string `json:"expression" doc:"JavaScript: an expression, statements, a function, or a promise" alias:"script"`
	driver.Where
}

// Evaluated is the value of a script, which data contains directly.
type Evaluated struct {
	op.Envelope
	Data   any `json:"data" doc:"JSON; undefined is null, bigint, NaN and Date are strings, DOM nodes HTML, cycles \"[Circular]\""`
	Result any `json:"result" doc:"The same as data"`
}

// evaluateTime is the default timeout of a script.
const evaluateTime = 30 * time.Second

// Evaluate runs a script in the page.
func (s *Service) Evaluate(ctx context.Context, in EvaluateIn) (Evaluated, error) {
	var value json.RawMessage
	err := s.d.VisitWith(ctx, in.Where, driver.Options{Limit: evaluateTime}, func(ctx context.Context, t *tab.Tab) (err error) {
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
