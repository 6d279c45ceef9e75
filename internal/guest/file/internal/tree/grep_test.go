package tree

import "testing"

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"1": 1, "2k": 2 << 10, "1M": 1 << 20, "3 GB": 3 << 30, "": 0, "-1": 0, "x": 0, "1T": 0} {
		if n, ok := parseSize(text); n != want || ok != (want > 0) {
			t.Errorf("%q: got %d and ok %v, want %d and ok %v", text, n, ok, want, want > 0)
		}
	}
}
