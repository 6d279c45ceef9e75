package op

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/tag"
)

func (d *decoder) string(dst reflect.Value, f *Field, v any, at *loc) {
	s, ok := v.(string)
	if !ok {
		d.fault(at, "string_type", "Input should be a string, not %s", kindOf(v))
		return
	}
	dst.SetString(s)
	if f == nil {
		return
	}
	if f.MinLen != nil || f.MaxLen != nil {
		n := utf8.RuneCountInString(s)
		if f.MinLen != nil && n < *f.MinLen {
			d.fault(at, "string_too_short", "String should have at least %d characters", *f.MinLen)
		}
		if f.MaxLen != nil && n > *f.MaxLen {
			d.fault(at, "string_too_long", "String should have at most %d characters", *f.MaxLen)
		}
	}
	if f.Pattern != nil && !f.Pattern.MatchString(s) {
		d.fault(at, "string_pattern_mismatch", "String should match pattern '%s'", f.Pattern)
	}
	if f.Const != "" && s != f.Const {
		d.fault(at, "literal_error", "Input should be '%s'", f.Const)
	}
	d.enum(f, s, at)
}

func (d *decoder) enum(f *Field, v any, at *loc) {
	if f == nil || len(f.choices) == 0 || slices.Contains(f.choices, fmt.Sprint(v)) {
		return
	}
	d.fault(at, "literal_error", "Input should be one of: %s", strings.Join(f.choices, ", "))
}

// bool accepts the values of the reference implementation: true, 1, "true", "yes", "on" and others.
func (d *decoder) bool(dst reflect.Value, v any, at *loc) {
	switch x := v.(type) {
	case bool:
		dst.SetBool(x)
		return
	case string, json.Number:
		if b, ok := tag.ParseBool(fmt.Sprint(x)); ok {
			dst.SetBool(b)
			return
		}
	}
	d.fault(at, "bool_parsing", "Input should be true or false, not %s", kindOf(v))
}

func (d *decoder) int(dst reflect.Value, f *Field, v any, at *loc) {
	var text string
	switch x := v.(type) {
	case json.Number:
		text = x.String()
	case string:
		text = strings.TrimSpace(x)
	default:
		d.fault(at, "int_type", "Input should be an integer, not %s", kindOf(v))
		return
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		whole, ferr := strconv.ParseFloat(text, 64)
		switch {
		case ferr != nil:
			d.fault(at, "int_parsing", "Input should be an integer")
			return
		case whole != math.Trunc(whole):
			d.fault(at, "int_from_float", "Input should be an integer, but has a fraction")
			return
		case math.Abs(whole) >= 1<<63:
			d.fault(at, "int_parsing_size", "Input is too large an integer")
			return
		}
		n = int64(whole)
	}
	unsigned := dst.CanUint()
	if unsigned && (n < 0 || dst.OverflowUint(uint64(n))) || !unsigned && dst.OverflowInt(n) {
		d.fault(at, "int_parsing_size", "Input is out of range")
		return
	}
	if unsigned {
		dst.SetUint(uint64(n))
	} else {
		dst.SetInt(n)
	}
	d.limits(f, float64(n), at)
	d.enum(f, n, at)
}

func (d *decoder) float(dst reflect.Value, f *Field, v any, at *loc) {
	var n float64
	var err error
	switch x := v.(type) {
	case json.Number:
		n, err = x.Float64()
	case string:
		n, err = strconv.ParseFloat(strings.TrimSpace(x), 64)
	default:
		d.fault(at, "float_type", "Input should be a number, not %s", kindOf(v))
		return
	}
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		d.fault(at, "float_parsing", "Input should be a finite number")
		return
	}
	dst.SetFloat(n)
	d.limits(f, n, at)
	d.enum(f, n, at)
}

func (d *decoder) limits(f *Field, n float64, at *loc) {
	if f == nil {
		return
	}
	switch key, limit := f.Violated(n); key {
	case tag.Minimum:
		d.fault(at, "greater_than_equal", "Input should be greater than or equal to %v", limit)
	case tag.Maximum:
		d.fault(at, "less_than_equal", "Input should be less than or equal to %v", limit)
	case tag.ExclusiveMinimum:
		d.fault(at, "greater_than", "Input should be greater than %v", limit)
	case tag.ExclusiveMaximum:
		d.fault(at, "less_than", "Input should be less than %v", limit)
	}
}
