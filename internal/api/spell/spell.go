// Package spell finds known words that are similar to a wrong one, for suggestions.
package spell

import (
	"slices"
	"strings"
)

// Nearest returns the known word that is most similar to a wrong one; empty if none is similar.
// It ignores case and treats dashes like underscores.
func Nearest(wrong string, known []string) string {
	if len(wrong) > 64 {
		return ""
	}
	best, minimum := "", len(wrong)/3+1
	for _, k := range known {
		if d := distance(fold(wrong), fold(k)); d < minimum {
			best, minimum = k, d
		}
	}
	return best
}

// Related returns known words that contain a wrong one, or share a part between underscores of
// more than two letters with it. The best matches are first.
func Related(wrong string, known []string) []string {
	wrong = fold(wrong)
	if len(wrong) > 64 || wrong == "" {
		return nil
	}
	score := map[string]int{}
	for _, k := range known {
		for part := range strings.SplitSeq(wrong, "_") {
			if len(part) > 2 && slices.Contains(strings.Split(fold(k), "_"), part) {
				score[k]++
			}
		}
		if len(wrong) > 2 && strings.Contains(fold(k), wrong) {
			score[k] += 2
		}
	}
	found := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return score[k] == 0 })
	slices.SortStableFunc(found, func(a, b string) int { return score[b] - score[a] })
	return found
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
