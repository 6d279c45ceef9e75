package file

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// applyMode reads an octal mode, or changes one by symbols as chmod does.
func applyMode(text string, mode fs.FileMode) (fs.FileMode, error) {
	if n, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32); err == nil && n <= 0o7777 {
		return fromBits(uint32(n)), nil
	}
	bits := uint32(mode.Perm())
	for bit, value := range specials {
		if mode&bit != 0 {
			bits |= value
		}
	}
	for clause := range strings.SplitSeq(text, ",") {
		var ok bool
		if bits, ok = applyClause(clause, bits, mode.IsDir()); !ok {
			return 0, fmt.Errorf("the mode %q is not valid; write octal such as 0644, or symbols such as u+x,go-w", text)
		}
	}
	return fromBits(bits), nil
}

var specials = map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000}

func fromBits(n uint32) fs.FileMode {
	m := fs.FileMode(n & 0o777)
	for bit, value := range specials {
		if n&value != 0 {
			m |= bit
		}
	}
	return m
}

// applyClause applies one clause such as go-w.
func applyClause(clause string, bits uint32, dir bool) (uint32, bool) {
	at := strings.IndexAny(clause, "+-=")
	if at < 0 {
		return 0, false
	}
	var who uint32
	for _, c := range clause[:at] {
		switch c {
		case 'u':
			who |= 0o4700
		case 'g':
			who |= 0o2070
		case 'o':
			who |= 0o1007
		case 'a':
			who |= 0o7777
		default:
			return 0, false
		}
	}
	if at == 0 {
		who = 0o7777
	}
	var what uint32
	for _, c := range clause[at+1:] {
		switch c {
		case 'r':
			what |= 0o444
		case 'w':
			what |= 0o222
		case 'x':
			what |= 0o111
		case 'X':
			if dir || bits&0o111 != 0 {
				what |= 0o111
			}
		case 's':
			what |= 0o6000
		case 't':
			what |= 0o1000
		default:
			return 0, false
		}
	}
	switch clause[at] {
	case '+':
		return bits | who&what, true
	case '-':
		return bits &^ (who & what), true
	}
	return bits&^(who&0o777) | who&what, true
}
