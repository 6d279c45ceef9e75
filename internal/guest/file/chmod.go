package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// ChmodIn names a path and its new mode.
type ChmodIn struct {
	Path      string `json:"path" doc:"Path of a file or folder"`
	Mode      string `json:"mode" doc:"Octal mode such as 0644, or symbolic mode such as u+x,go-w"`
	Recursive bool   `json:"recursive" default:"false" doc:"Include everything in the folder"`
}

// ChmodOut reports the new mode.
type ChmodOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Mode    string `json:"mode" doc:"The new mode, octal"`
	Changed int    `json:"changed" doc:"Number of files and folders changed"`
}

// Chmod changes modes. It does not follow links below a folder.
func (s *Service) Chmod(ctx context.Context, in ChmodIn) (ChmodOut, error) {
	path, err := s.resolve("chmod", in.Path)
	if err != nil {
		return ChmodOut{}, err
	}
	out := ChmodOut{Path: pathname.Show(path)}
	one := func(p string, info fs.FileInfo) error {
		mode, err := applyMode(in.Mode, info.Mode())
		if err != nil {
			return refuse("chmod", path, "%w", err)
		}
		out.Changed++
		return os.Chmod(p, mode)
	}
	info, err := os.Stat(path)
	if err == nil {
		err = one(path, info)
	}
	if err == nil && in.Recursive && info.IsDir() {
		w := &walker{root: path}
		w.visit = func(rel string, d fs.DirEntry) error {
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return nil // deleted meanwhile, or a link
			}
			if err != nil {
				return err
			}
			return one(filepath.Join(path, rel), info)
		}
		err = w.run(ctx)
	}
	if err != nil {
		return ChmodOut{}, pyerr.From("chmod", failedPath(path, err), err)
	}
	if info, err = os.Stat(path); err == nil {
		out.Mode = octal(info.Mode())
	}
	return out, nil
}

// applyMode parses an octal mode, or applies a symbolic one as chmod does.
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
