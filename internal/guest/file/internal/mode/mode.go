// Package mode formats and parses file modes in the notations of ls and chmod.
package mode

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Permissions formats a mode as ls does.
func Permissions(m fs.FileMode) string {
	b := []byte("-rwxrwxrwx")
	switch {
	case m.IsDir():
		b[0] = 'd'
	case m&fs.ModeSymlink != 0:
		b[0] = 'l'
	case m&fs.ModeNamedPipe != 0:
		b[0] = 'p'
	case m&fs.ModeSocket != 0:
		b[0] = 's'
	case m&fs.ModeCharDevice != 0:
		b[0] = 'c'
	case m&fs.ModeDevice != 0:
		b[0] = 'b'
	}
	for i := range 9 {
		if m&(1<<(8-i)) == 0 {
			b[i+1] = '-'
		}
	}
	special := func(bit fs.FileMode, at int, with, without byte) {
		if m&bit == 0 {
			return
		}
		if b[at] == '-' {
			b[at] = without
		} else {
			b[at] = with
		}
	}
	special(fs.ModeSetuid, 3, 's', 'S')
	special(fs.ModeSetgid, 6, 's', 'S')
	special(fs.ModeSticky, 9, 't', 'T')
	return string(b)
}

// Type names the type of a file.
func Type(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "symlink"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeCharDevice != 0:
		return "char_device"
	}
	return "block_device"
}

// Octal formats a mode as four octal digits.
func Octal(m fs.FileMode) string {
	bits := uint32(m.Perm())
	for bit, value := range specials {
		if m&bit != 0 {
			bits |= value
		}
	}
	return fmt.Sprintf("%04o", bits)
}

// Apply parses an octal mode, or applies a symbolic one as chmod does.
func Apply(text string, mode fs.FileMode) (fs.FileMode, error) {
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
			return 0, fmt.Errorf("invalid mode %q; send an octal mode such as 0644, or a symbolic mode such as u+x,go-w", text)
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
