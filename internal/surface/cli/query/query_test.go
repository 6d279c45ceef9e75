package query

import (
	"bytes"
	"strings"
	"testing"
)

// TestMainEvaluates: the process that evaluates expressions for aio writes the selection, or why there is none.
func TestMainEvaluates(t *testing.T) {
	t.Parallel()
	const list = `[{"name":"a","n":12345678901234567890},{"name":"b"}]`
	for _, c := range []struct {
		args, in, out, errs string
		code                int
	}{
		{"jq|.[].name", list, "a\nb\n", "", 0},
		{"jq|.[0].n", list, "12345678901234567890\n", "", 0},
		{"jsonpath|{.items[*].name}", list, "a b\n", "", 0},
		{"-check|jq|.[", "", "", "unexpected EOF\n", 1},
		{"-check|jq|.", "not JSON", "", "", 0},
		{"jq|.", "not JSON", "", "invalid character 'o' in literal null (expecting 'u')\n", 1},
		{"jq|.[].x.y.z|length", list, "", "", 2},
		{"--|jq|-1", list, "-1\n", "", 0},
		{"jq|.name", list, "", "expected an object but got: array", 1},
		{"jq|env|length", list, "", "", 2},
		{"jq|env", list, "{}\n", "", 0},
		{"jq|input", list, "", "input(s)/0", 1},
		{"awk|1", list, "", "unknown language", 1},
	} {
		var out, errs bytes.Buffer
		code := Main(strings.Split(c.args, "|"), strings.NewReader(c.in), &out, &errs)
		if code != c.code || out.String() != c.out || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%s: got exit code %d, output %q and error %q, want %d, %q and %q", c.args, code, &out, &errs, c.code, c.out, c.errs)
		}
	}
}
