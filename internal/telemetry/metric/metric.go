// Package metric collects metrics and writes them in the Prometheus text format. It bounds the
// number of series: above the limit, new label values are counted together as "other".
package metric

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxSeries is the maximum number of series of one metric.
const maxSeries = 512

// Registry contains metrics by name.
type Registry struct {
	mu     sync.Mutex
	family map[string]*family
}

type family struct {
	kind, help string
	labels     []string
	series     map[string]*series
	read       func() map[string]float64 // reads a gauge
}

type series struct {
	value   float64
	count   uint64
	buckets []uint64
}

// bounds of the buckets of histograms, in seconds.
var bounds = []float64{0.001, 0.005, 0.025, 0.1, 0.5, 2, 10, 60}

// New returns an empty registry.
func New() *Registry { return &Registry{family: map[string]*family{}} }

// Counter declares a counter and returns the function that adds to it.
func (r *Registry) Counter(name, help string, labels ...string) func(n float64, values ...string) {
	f := r.declare(name, "counter", help, labels)
	return func(n float64, values ...string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		f.seriesOf(values).value += n
	}
}

// Histogram declares a histogram of durations and returns the function that adds one.
func (r *Registry) Histogram(name, help string, labels ...string) func(d time.Duration, values ...string) {
	f := r.declare(name, "histogram", help, labels)
	return func(d time.Duration, values ...string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		s := f.seriesOf(values)
		if s.buckets == nil {
			s.buckets = make([]uint64, len(bounds))
		}
		for i, b := range bounds {
			if d.Seconds() <= b {
				s.buckets[i]++
			}
		}
		s.count++
		s.value += d.Seconds()
	}
}

// Gauge declares a gauge whose values are read when the metrics are written. The keys of the
// map are the values of its label; without a label, the key is "".
func (r *Registry) Gauge(name, help, label string, read func() map[string]float64) {
	labels := []string{label}
	if label == "" {
		labels = nil
	}
	r.declare(name, "gauge", help, labels).read = read
}

func (r *Registry) declare(name, kind, help string, labels []string) *family {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &family{kind: kind, help: help, labels: labels, series: map[string]*series{}}
	r.family[name] = f
	return f
}

// seriesOf returns the series with the label values, or "other" if there are too many.
func (f *family) seriesOf(values []string) *series {
	key := strings.Join(values, "\x00")
	if s := f.series[key]; s != nil {
		return s
	}
	if len(f.series) >= maxSeries {
		other := make([]string, len(f.labels))
		for i := range other {
			other[i] = "other"
		}
		key = strings.Join(other, "\x00")
		if s := f.series[key]; s != nil {
			return s
		}
	}
	s := &series{}
	f.series[key] = s
	return s
}

// WriteTo writes all metrics in the Prometheus text format.
func (r *Registry) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	r.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(r.family)) {
		r.family[name].write(&b, name)
	}
	r.mu.Unlock()
	return b.WriteTo(w)
}

func (f *family) write(b *bytes.Buffer, name string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, f.help, name, f.kind)
	if f.read != nil {
		values := f.read()
		for _, key := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(b, "%s%s %s\n", name, f.label(key, ""), number(values[key]))
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(f.series)) {
		s := f.series[key]
		if f.kind != "histogram" {
			fmt.Fprintf(b, "%s%s %s\n", name, f.label(key, ""), number(s.value))
			continue
		}
		for i, bound := range bounds {
			fmt.Fprintf(b, "%s_bucket%s %d\n", name, f.label(key, number(bound)), s.buckets[i])
		}
		fmt.Fprintf(b, "%s_bucket%s %d\n", name, f.label(key, "+Inf"), s.count)
		fmt.Fprintf(b, "%s_sum%s %s\n%s_count%s %d\n", name, f.label(key, ""), number(s.value), name, f.label(key, ""), s.count)
	}
}

func (f *family) label(key, le string) string {
	var parts []string
	if len(f.labels) > 0 {
		for i, v := range strings.Split(key, "\x00") {
			if i < len(f.labels) {
				parts = append(parts, f.labels[i]+"="+quote(v))
			}
		}
	}
	if le != "" {
		parts = append(parts, `le="`+le+`"`)
	}
	if len(parts) == 0 {
		return ""
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "?")) + `"`
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
