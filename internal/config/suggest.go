package config

import (
	"maps"
	"slices"

	"github.com/cove-sandbox/cove/internal/api/spell"
)

// suggest returns a hint with the known word that is most similar to a wrong one; empty if none
// is similar.
func suggest(wrong string, known []string, prefix string) string {
	best := spell.Nearest(wrong, known)
	if best == "" {
		return ""
	}
	return "; did you mean " + prefix + best + "?"
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
