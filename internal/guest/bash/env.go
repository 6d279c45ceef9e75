package bash

import (
	"maps"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// checkEnv rejects names and values that an environment cannot contain.
func checkEnv(env map[string]*string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return op.Errorf(op.Invalid, "invalid name in env: %q; a name must not be empty and must not contain = or a zero byte", name)
		}
		if v := env[name]; v != nil && strings.IndexByte(*v, 0) >= 0 {
			return op.Errorf(op.Invalid, "the value of %q in env contains a zero byte; remove it", name)
		}
	}
	return nil
}
