package httptarget

import (
	"strings"
	"testing"
)

// FuzzReadings: no path with several readings is accepted.
func FuzzReadings(f *testing.F) {
	for _, s := range []string{"/v1/x", "/v1/..", "/%2e%2e/", "/a%2fb", "//a;b/c", "*", "/%zz", "/%25%32%65"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		list, err := Readings(escaped)
		if err != nil {
			return
		}
		for _, p := range list {
			for s := range strings.SplitSeq(p, "/") {
				if s == "." || s == ".." || strings.Contains(s, "\\") {
					t.Errorf("%q: got %q, want no segment that servers resolve", escaped, p)
				}
			}
		}
	})
}
