package archive

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// link is a symbolic link to create at the end.
type link struct {
	name string
	entry
}

// linkLast creates the deferred links. It removes links that point outside, also through other links.
func (u *unpacker) linkLast() error {
	var made []link
	for _, l := range u.later {
		if !u.o.AnyLinks && climbs(l.link) {
			u.skip(l.entry.name, "link may point outside the folder: "+l.link)
			continue
		}
		if info, err := u.root.Lstat(l.name); err == nil && info.IsDir() {
			u.skip(l.entry.name, "a folder has the name of the link")
			continue
		}
		if u.o.AnyLinks && u.belowLink(l.name, false) {
			u.skip(l.entry.name, "below a link")
			continue
		}
		if dir := path.Dir(l.name); dir != "." {
			if err := u.root.MkdirAll(dir, 0o777); err != nil {
				return err
			}
		}
		before := u.report.Links
		if err := u.symlink(l.name, l.entry); err != nil {
			return err
		}
		if u.report.Links > before && !u.o.AnyLinks {
			made = append(made, l)
		}
	}
	for _, l := range made {
		if _, err := u.root.Stat(l.name); err == nil || errors.Is(err, fs.ErrNotExist) || !escapes(err) {
			continue
		}
		if err := u.root.Remove(l.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		u.report.Links--
		u.skip(l.entry.name, "link points outside the folder: "+l.link)
	}
	return nil
}

// anyLink creates a link that may point anywhere.
func (u *unpacker) anyLink(name string, e entry) error {
	if err := u.clear(name); err != nil {
		return err
	}
	u.report.Links++
	u.keep(name, e)
	return u.root.Symlink(e.link, name)
}

// made is an entry whose mode is set at the end: until then, files are created in folders.
type made struct {
	name     string
	mode     fs.FileMode
	uid, gid int
}

func (u *unpacker) keep(name string, e entry) {
	if u.o.Exact {
		u.made = append(u.made, made{name, e.mode, e.uid, e.gid})
	}
}

// setModes sets the exact modes, and the owners if this is root.
func (u *unpacker) setModes() error {
	for _, m := range slices.Backward(u.made) {
		info, err := u.root.Lstat(m.name)
		if err != nil || info.Mode().Type() != m.mode.Type() {
			continue // a later entry has replaced it
		}
		if os.Geteuid() == 0 {
			if err := u.root.Lchown(m.name, m.uid, m.gid); err != nil {
				return err
			}
		}
		if m.mode&fs.ModeSymlink != 0 {
			continue
		}
		if err := u.root.Chmod(m.name, m.mode.Perm()); err != nil {
			return err
		}
	}
	return nil
}

// climbs reports whether the target of a link goes up after it went down. Such a target depends on
// other links.
func climbs(target string) bool {
	parts := strings.Split(target, "/")
	down := slices.IndexFunc(parts, func(part string) bool { return part != ".." && part != "." && part != "" })
	return down >= 0 && slices.Contains(parts[down:], "..")
}

// belowLink reports whether a parent folder of a name, or the folder itself, exists and is a link.
func (u *unpacker) belowLink(name string, folder bool) bool {
	if !folder {
		name = path.Dir(name)
	}
	for ; name != "."; name = path.Dir(name) {
		if info, err := u.root.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return true
		}
	}
	return false
}
