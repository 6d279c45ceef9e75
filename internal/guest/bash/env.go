package bash

import (
	"maps"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// checkEnv refuses what no environment can hold.
func checkEnv(env map[string]*string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return op.Errorf(op.Invalid, "env has the name %q; a name must not be empty and holds no = and no zero byte", name)
		}
		if v := env[name]; v != nil && strings.IndexByte(*v, 0) >= 0 {
			return op.Errorf(op.Invalid, "the value of %s in env holds a zero byte, which no environment can", name)
		}
	}
	return nil
}

// with is base with the changes made to it; a nil value takes a variable away.
func with(base []string, changes map[string]*string) []string {
	env := make([]string, 0, len(base)+len(changes))
	for _, pair := range base {
		name, _, _ := strings.Cut(pair, "=")
		if _, changed := changes[name]; !changed {
			env = append(env, pair)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if v := changes[name]; v != nil {
			env = append(env, name+"="+*v)
		}
	}
	return env
}

// lookup finds a variable.
func lookup(env []string, name string) (string, bool) {
	for _, pair := range env {
		if key, v, _ := strings.Cut(pair, "="); key == name {
			return v, true
		}
	}
	return "", false
}
