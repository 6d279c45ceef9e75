package vt

// span is a range of characters, inclusive, of one width.
type span struct {
	first, last rune
	width       int
}

// runeWidth returns the number of columns of a character: 2 for East Asian wide characters and
// emoji, 0 for combining marks, joiners and other invisible ones, otherwise 1. Programs
// calculate the position of the cursor in the same way (wcwidth).
func runeWidth(r rune) int {
	switch {
	case r < 0x300, r >= 0x370 && r < 0x483: // Latin, Greek, Cyrillic
		return 1
	case r >= 0x4e00 && r <= 0x9fff, r >= 0xac00 && r <= 0xd7a3: // Han, Hangul
		return 2
	}
	low, high := 0, len(widths)
	for low < high {
		if m := int(uint(low+high) / 2); widths[m].last < r {
			low = m + 1
		} else {
			high = m
		}
	}
	if low < len(widths) && widths[low].first <= r {
		return widths[low].width
	}
	return 1
}
