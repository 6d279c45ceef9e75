package file

import (
	"context"
	"fmt"
	"io/fs"
	"mime"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// permissions formats a mode as ls does.
func permissions(m fs.FileMode) string {
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

// StatIn names a path.
type StatIn struct {
	Path   string `json:"path" doc:"Path of a file, folder, link or device"`
	Follow bool   `json:"follow" default:"true" doc:"Follow a link to its target"`
}

// StatOut describes a path.
type StatOut struct {
	Path         string  `json:"path" doc:"Absolute path"`
	Name         string  `json:"name"`
	Type         string  `json:"type" doc:"file, directory, symlink, fifo, socket, char_device or block_device"`
	IsDirectory  bool    `json:"is_directory"`
	Size         int64   `json:"size" doc:"Bytes"`
	Mode         string  `json:"mode" doc:"Octal, such as 0644"`
	Permissions  string  `json:"permissions" doc:"In the format of ls"`
	UID          uint32  `json:"uid"`
	GID          uint32  `json:"gid"`
	Owner        string  `json:"owner"`
	Group        string  `json:"group"`
	ModifiedTime string  `json:"modified_time"`
	AccessedTime string  `json:"accessed_time"`
	ChangedTime  string  `json:"changed_time"`
	Inode        uint64  `json:"inode"`
	Links        uint64  `json:"links" doc:"Hard links"`
	Target       *string `json:"target" doc:"Target of a symbolic link"`
	MediaType    *string `json:"media_type" doc:"Derived from the extension"`
}

// Stat describes a path.
func (s *Service) Stat(_ context.Context, in StatIn) (StatOut, error) {
	path, err := s.resolve("stat", in.Path)
	if err != nil {
		return StatOut{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return StatOut{}, pyerr.From("stat", path, err)
	}
	out := StatOut{Path: pathname.Show(path), Name: pathname.Show(filepath.Base(path))}
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err := os.Readlink(path); err == nil {
			out.Target = new(pathname.Show(link))
		}
		if in.Follow {
			if info, err = os.Stat(path); err != nil {
				return StatOut{}, pyerr.From("stat", path, fmt.Errorf("link to %s: %w", *out.Target, err))
			}
		}
	}
	out.Type, out.IsDirectory, out.Size = typeName(info.Mode()), info.IsDir(), info.Size()
	out.Mode, out.Permissions, out.ModifiedTime = octal(info.Mode()), permissions(info.Mode()), stamp(info.ModTime())
	if t := mime.TypeByExtension(strings.ToLower(filepath.Ext(path))); t != "" && info.Mode().IsRegular() {
		out.MediaType = &t
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		out.UID, out.GID, out.Inode, out.Links = st.Uid, st.Gid, st.Ino, uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
		out.AccessedTime, out.ChangedTime = stampUnix(st.Atim), stampUnix(st.Ctim)
		out.Owner, out.Group = owner(st.Uid), group(st.Gid)
	}
	return out, nil
}

func typeName(m fs.FileMode) string {
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

func octal(m fs.FileMode) string {
	bits := uint32(m.Perm())
	for bit, value := range specials {
		if m&bit != 0 {
			bits |= value
		}
	}
	return fmt.Sprintf("%04o", bits)
}

func owner(id uint32) string {
	text := strconv.FormatUint(uint64(id), 10)
	if u, err := user.LookupId(text); err == nil {
		return u.Username
	}
	return text
}

func group(id uint32) string {
	text := strconv.FormatUint(uint64(id), 10)
	if g, err := user.LookupGroupId(text); err == nil {
		return g.Name
	}
	return text
}

// stampUnix formats a time of the kernel.
func stampUnix(t syscall.Timespec) string { return stamp(time.Unix(t.Unix())) }

// stamp formats a time for a reply.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
