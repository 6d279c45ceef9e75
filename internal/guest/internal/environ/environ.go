// Package environ reads and changes environments, which are lists of NAME=value. If a name
// occurs more than once, its last value applies.
package environ

import (
	"maps"
	"slices"
	"strings"
)

// Lookup returns the value of a variable and whether it is set.
func Lookup(env []string, name string) (string, bool) {
	for _, pair := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Get returns the value of a variable, or "" if it is not set.
func Get(env []string, name string) string {
	value, _ := Lookup(env, name)
	return value
}

// Set sets a variable. It may change env in place.
func Set(env []string, name, value string) []string {
	env = slices.DeleteFunc(env, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	return append(env, name+"="+value)
}

// Merge returns env with the changes applied; a nil value unsets a variable.
func Merge(env []string, changes map[string]*string) []string {
	merged := make([]string, 0, len(env)+len(changes))
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		if _, changed := changes[name]; !changed {
			merged = append(merged, pair)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if value := changes[name]; value != nil {
			merged = append(merged, name+"="+*value)
		}
	}
	return merged
}
