package disk

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestExcess(t *testing.T) {
	const limit = 100 << 20
	for name, c := range map[string]struct {
		size tree.Size
		over bool
	}{
		"within":    {tree.Size{Bytes: limit, Files: 10}, false},
		"too large": {tree.Size{Bytes: limit + 1}, true},
		"too many":  {tree.Size{Files: limit/bytesPerFile + 1}, true},
		"too deep":  {tree.Size{TooDeep: true}, true},
	} {
		if got := Excess(c.size, limit); (got != "") != c.over {
			t.Errorf("%s: got %q, want an excess: %v", name, got, c.over)
		}
	}
}
