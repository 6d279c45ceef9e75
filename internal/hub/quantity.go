package hub

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Quantity is an amount as Kubernetes writes it: "100m" of a processor, "128Mi"
// of memory. A plain number is accepted too.
type Quantity string

// DecodeOp takes a text or a number.
func (q *Quantity) DecodeOp(v any) error {
	switch v := v.(type) {
	case nil:
	case string:
		*q = Quantity(strings.TrimSpace(v))
	case json.Number:
		*q = Quantity(v.String())
	default:
		return fmt.Errorf("use a text such as 500m or 256Mi, or a number")
	}
	return nil
}

// SchemaOp describes it.
func (Quantity) SchemaOp() *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}, {Type: "null"}}}
}

var suffixes = []struct {
	text  string
	times float64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"m", 1e-3}, {"", 1},
}

// parse returns the amount times scale; 0 when nothing was given.
func (q Quantity) parse(what string, scale float64) (int64, error) {
	if q == "" {
		return 0, nil
	}
	for _, s := range suffixes {
		digits, ok := strings.CutSuffix(string(q), s.text)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(digits, 64)
		amount := math.Ceil(n * s.times * scale)
		if err != nil || !(amount > 0) || amount > 1<<53 || strings.ContainsAny(digits, "xXpP_nN") {
			break
		}
		return int64(amount), nil
	}
	return 0, fmt.Errorf("%s %.40q: use an amount such as 500m (half a processor), 256Mi or 1Gi", what, string(q))
}

// processors writes thousandths of a processor.
func processors(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10) + "m"
}

// size writes bytes in the largest unit up to Mi that is exact.
func size(n int64) string {
	switch {
	case n == 0:
		return ""
	case n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "Mi"
	case n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "Ki"
	}
	return strconv.FormatInt(n, 10)
}
