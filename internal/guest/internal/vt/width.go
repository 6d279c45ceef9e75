package vt

// span is a range of characters, inclusive, of one width.
type span struct {
	first, last rune
	width       int
}

// runeWidth is the number of columns a character takes: 2 for East Asian wide ones and emoji, 0 for combining
// marks, joiners and other invisible ones, else 1. Programs count the same way (wcwidth), so that their idea of
// where the cursor stands agrees with ours.
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
