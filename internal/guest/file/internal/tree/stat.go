package tree

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

	"github.com/cove-sandbox/cove/internal/guest/file/internal/mode"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

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
	path, err := s.files.Resolve("stat", in.Path)
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
	out.Type, out.IsDirectory, out.Size = mode.Type(info.Mode()), info.IsDir(), info.Size()
	out.Mode, out.Permissions, out.ModifiedTime = mode.Octal(info.Mode()), mode.Permissions(info.Mode()), stamp(info.ModTime())
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

// stampUnix formats a kernel time for a response.
func stampUnix(t syscall.Timespec) string { return stamp(time.Unix(t.Unix())) }

// stamp formats a time for a response.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
