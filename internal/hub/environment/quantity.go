package environment

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Quantity is an amount in the notation of Kubernetes, such as "100m" CPU or "128Mi" memory, or a
// plain number.
type Quantity string

// DecodeOp accepts a string or a number.
func (q *Quantity) DecodeOp(v any) error {
	switch v := v.(type) {
	case nil:
	case string:
		*q = Quantity(strings.TrimSpace(v))
	case json.Number:
		*q = Quantity(v.String())
	default:
		return errors.New("use a string such as 500m or 256Mi, or a number")
	}
	return nil
}

// UnmarshalJSON accepts a string or a number.
func (q *Quantity) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return err
	}
	return q.DecodeOp(v)
}

// SchemaOp describes the JSON of a Quantity.
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

// parse returns the amount times scale; 0 if it is empty.
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
	return 0, fmt.Errorf("%s %.40q: use an amount such as 500m (half a CPU), 256Mi or 1Gi", what, string(q))
}

// FormatCPU formats thousandths of a CPU.
func FormatCPU(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10) + "m"
}

// FormatSize formats bytes in the largest unit up to Mi that is exact.
func FormatSize(n int64) string {
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

// Amounts are resources as in requests and environments.
type Amounts struct{ CPU, Memory, CPULimit, MemoryLimit, Disk, DiskRate, Bandwidth Quantity }

// Apply overrides the resources whose amount is set.
func (a Amounts) Apply(r *sandbox.Resources) error {
	for _, f := range []struct {
		what  string
		q     Quantity
		scale float64
		to    *int64
	}{
		{"cpu", a.CPU, 1000, &r.CPU}, {"cpu_limit", a.CPULimit, 1000, &r.CPULimit},
		{"memory", a.Memory, 1, &r.Memory}, {"memory_limit", a.MemoryLimit, 1, &r.MemoryLimit}, {"disk_limit", a.Disk, 1, &r.Disk},
		{"disk_rate_limit", a.DiskRate, 1, &r.DiskRate}, {"bandwidth_limit", a.Bandwidth, 1, &r.Bandwidth},
	} {
		n, err := f.q.parse(f.what, f.scale)
		if err != nil {
			return err
		}
		*f.to = cmp.Or(n, *f.to)
	}
	// A limit alone lowers the default request, and vice versa.
	if a.CPU == "" && r.CPULimit > 0 {
		r.CPU = min(r.CPU, r.CPULimit)
	}
	if a.Memory == "" && r.MemoryLimit > 0 {
		r.Memory = min(r.Memory, r.MemoryLimit)
	}
	if a.CPULimit == "" && r.CPULimit > 0 {
		r.CPULimit = max(r.CPULimit, r.CPU)
	}
	if a.MemoryLimit == "" && r.MemoryLimit > 0 {
		r.MemoryLimit = max(r.MemoryLimit, r.Memory)
	}
	return nil
}
