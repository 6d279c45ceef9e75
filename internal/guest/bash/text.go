package bash

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// clean replaces invalid UTF-8 with U+FFFD.
func clean(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.Map(func(r rune) rune { return r }, s)
}

// unfinished returns how many bytes at the end of s belong to an incomplete character.
func unfinished(s string) int {
	for i := 1; i < utf8.UTFMax && i <= len(s); i++ {
		if utf8.RuneStart(s[len(s)-i]) {
			if utf8.FullRuneInString(s[len(s)-i:]) {
				return 0
			}
			return i
		}
	}
	return 0
}

// orphans returns how many bytes at the start of s belong to a character that starts
// before s.
func orphans(s string) int {
	n := 0
	for n < len(s) && n < utf8.UTFMax-1 && !utf8.RuneStart(s[n]) {
		n++
	}
	return n
}

// firstRunes returns the first n characters of s.
func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// lastRunes returns the last n characters of s.
func lastRunes(s string, n int) string {
	at := len(s)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	return s[at:]
}

// read returns at most n bytes of text from an offset, the next offset, and how many bytes
// after the requested offset are no longer kept. An incomplete character is left for the
// next call, unless final says that no output follows.
func (sp *spool) read(from int64, n int, final bool) (text string, next, dropped int64) {
	_, total := sp.extent()
	s, at := sp.slice(from, n)
	if at > from {
		skip := orphans(s)
		s, at = s[skip:], at+int64(skip)
	}
	if !final || at+int64(len(s)) < total {
		s = s[:len(s)-unfinished(s)]
	}
	return clean(s), at + int64(len(s)), at - from
}

// more reports whether read would return text from an offset.
func (sp *spool) more(from int64, final bool) bool {
	_, total := sp.extent()
	return total-from >= utf8.UTFMax || final && total > from
}

// excerpt returns at most limit characters of the kept output (0: maxReply bytes) with a
// note in place of the middle, the next offset, and whether output is missing.
func (sp *spool) excerpt(limit int, final bool) (text string, next int64, cut bool) {
	start, total := sp.extent()
	if limit <= 0 || limit > maxReply {
		limit = maxReply
	}
	room := min(utf8.UTFMax*limit, maxReply)
	headRunes, tailRunes := limit-limit/2, limit/2
	lost := ""
	if start > 0 {
		lost = fmt.Sprintf("[... the first %d bytes were dropped ...]\n", start)
	}
	if total-start <= int64(room) {
		s, at := sp.slice(start, int(total-start))
		if !final {
			s = s[:len(s)-unfinished(s)]
		}
		if utf8.RuneCountInString(s) <= limit {
			return lost + clean(s), at + int64(len(s)), start > 0
		}
		head, tail := firstRunes(s, headRunes), lastRunes(s, tailRunes)
		return lost + joinEnds(head, tail, at, at+int64(len(s))), at + int64(len(s)), true
	}
	head, at := sp.slice(start, room-room/2)
	tail, tailAt := sp.slice(total-int64(room/2), room/2)
	end := tailAt + int64(len(tail))
	if !final {
		keep := len(tail) - unfinished(tail)
		tail, end = tail[:keep], end-int64(len(tail)-keep)
	}
	head = firstRunes(head[:len(head)-unfinished(head)], headRunes)
	tail = lastRunes(tail[orphans(tail):], tailRunes)
	return lost + joinEnds(head, tail, at, end), end, true
}

// joinEnds joins the start and the end of the output between two offsets with a note about
// the omitted middle.
func joinEnds(head, tail string, from, to int64) string {
	left := to - from - int64(len(head)) - int64(len(tail))
	return fmt.Sprintf("%s\n[... %d bytes omitted; read them with bash_output from offset %d ...]\n%s",
		clean(head), left, from+int64(len(head)), clean(tail))
}
