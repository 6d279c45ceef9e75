package toolcatalog

import (
	"strings"
	"testing"
)

// TestNextPageOfMatches: the note of a truncated page states the offset at which the next one begins.
func TestNextPageOfMatches(t *testing.T) {
	t.Parallel()
	match := map[string]any{"file": "/a", "line_number": 1.0, "line_content": "x"}
	page := map[string]any{"matches": []any{match, match}, "match_count": 2.0, "truncated": true}
	for _, x := range []struct {
		in   map[string]any
		want string
	}{
		{map[string]any{}, "continue with offset 2]"},
		{map[string]any{"offset": 400.0}, "continue with offset 402]"},
	} {
		if got := renderGrep(page, x.in).Text; !strings.HasSuffix(got, x.want) {
			t.Errorf("%v: got %q, want %q at its end", x.in, got, x.want)
		}
	}
}
