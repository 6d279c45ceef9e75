package local

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
)

func TestFitIDs(t *testing.T) {
	const all = "         0          0 4294967295\n"
	for name, c := range map[string]struct {
		users, groups string
		first, count  uint32
		shared        bool
	}{
		"host":            {all, all, defaultFirstID, disk.IDRange, false},
		"container":       {"0 100000 65536\n", "0 100000 65536\n", 32768, 32768, true},
		"rootless podman": {"0 1000 1\n1 100000 65536\n", "0 1000 1\n1 100000 65536\n", 32769, 32768, true},
		"fewer groups":    {"0 100000 65536\n", "0 100000 1\n", 0, 0, false},
		"one user":        {"0 1000 1\n", "0 1000 1\n", 0, 0, false},
		"empty":           {"", "x y z\n", 0, 0, false},
	} {
		cfg := Config{FirstID: defaultFirstID}
		err := cfg.fitIDs(c.users, c.groups)
		if (err == nil) != (c.count > 0) || err == nil && (cfg.FirstID != c.first || cfg.ids != c.count || cfg.withoutIDMaps != c.shared) {
			t.Errorf("%s: got %d IDs from %d, shared: %v, %v; want %d from %d, %v", name, cfg.ids, cfg.FirstID, cfg.withoutIDMaps, err,
				c.count, c.first, c.shared)
		}
	}
}
