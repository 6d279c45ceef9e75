package environment

import (
	"log/slog"
	"testing"
)

func TestQuantity(t *testing.T) {
	t.Parallel()
	for q, want := range map[Quantity]int64{"100m": 100, "1": 1000, "0.5": 500, "2": 2000, "1.5": 1500, "": 0} {
		if n, err := q.parse("cpu", 1000); n != want || err != nil {
			t.Errorf("%s: got %d %v, want %d", q, n, err, want)
		}
	}
	for q, want := range map[Quantity]int64{"128Mi": 128 << 20, "1Gi": 1 << 30, "1.5Gi": 3 << 29, "1G": 1e9,
		"512Ki": 512 << 10, "1000": 1000, "1Ti": 1 << 40} {
		if n, err := q.parse("memory", 1); n != want || err != nil {
			t.Errorf("%s: got %d %v, want %d", q, n, err, want)
		}
	}
	for _, q := range []Quantity{"x", "-1", "0", "1Q", "Mi", "1e400", "NaN", "Inf", "0x10", "1_0", "9999Ti9", "1 Gi"} {
		if n, err := q.parse("memory", 1); err == nil {
			t.Errorf("%s: got %d, want an error", q, n)
		}
	}
}

func FuzzFile(f *testing.F) {
	for _, s := range []string{`[]`, `[{"name":"a","cpu":1}]`, `[{"name":"a","network":{"allow":["*"]}}]`, `null`, `[null]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseFile(b, slog.New(slog.DiscardHandler))
		for _, e := range list {
			s, bad := e.Spec(Defaults{})
			if err == nil && (bad != nil || s.Validate() != nil) {
				t.Errorf("%q was accepted", b)
			}
		}
	})
}
