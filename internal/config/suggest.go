package config

import (
	"maps"
	"slices"
	"strings"
)

// suggest names the known word nearest to a wrong one, or nothing if none is
// near. Dashes, underscores and case don't count as differences.
func suggest(wrong string, known []string, prefix string) string {
	if len(wrong) > 64 {
		return ""
	}
	best, least := "", len(wrong)/3+1
	for _, k := range known {
		if d := distance(fold(wrong), fold(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + prefix + best + "?"
}

func fold(s string) string {
	return strings.ReplaceAll(strings.ToLower(s), "-", "_")
}

// distance counts the single-character edits between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
