package file

import (
	"context"
	"errors"
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

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// StatIn is a path.
type StatIn struct {
	Path   string `json:"path" doc:"Path of anything"`
	Follow bool   `json:"follow" default:"true" doc:"Tell about what a link points to, not the link"`
}

// StatOut is what a path is.
type StatOut struct {
	Path         string  `json:"path" doc:"Absolute path"`
	Name         string  `json:"name"`
	Type         string  `json:"type" doc:"file, directory, symlink, fifo, socket, char_device or block_device"`
	IsDirectory  bool    `json:"is_directory"`
	Size         int64   `json:"size" doc:"Bytes"`
	Mode         string  `json:"mode" doc:"Octal, such as 0644"`
	Permissions  string  `json:"permissions" doc:"As ls writes them"`
	UID          uint32  `json:"uid"`
	GID          uint32  `json:"gid"`
	Owner        string  `json:"owner"`
	Group        string  `json:"group"`
	ModifiedTime string  `json:"modified_time"`
	AccessedTime string  `json:"accessed_time"`
	ChangedTime  string  `json:"changed_time"`
	Inode        uint64  `json:"inode"`
	Links        uint64  `json:"links" doc:"Hard links"`
	Target       *string `json:"target" doc:"Where a symbolic link points"`
	MediaType    *string `json:"media_type" doc:"By the name's extension"`
}

// Stat tells what a path is.
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
				return StatOut{}, pyerr.From("stat", path, fmt.Errorf("the link points to %s: %w", *out.Target, err))
			}
		}
	}
	out.Type, out.IsDirectory, out.Size = typeName(info.Mode()), info.IsDir(), info.Size()
	out.Mode, out.Permissions, out.ModifiedTime = octal(info.Mode()), permissions(info.Mode()), stamp(info.ModTime())
	if t := mime.TypeByExtension(strings.ToLower(filepath.Ext(path))); t != "" && info.Mode().IsRegular() {
		out.MediaType = &t
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		out.UID, out.GID, out.Inode, out.Links = st.Uid, st.Gid, st.Ino, st.Nlink
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

// MkdirIn is a folder to make.
type MkdirIn struct {
	Path    string  `json:"path" doc:"Path of the folder"`
	Parents bool    `json:"parents" default:"true" doc:"Make folders on the way, and do not mind if it exists"`
	Mode    *string `json:"mode" doc:"Octal mode of the new folder, such as 0755"`
}

// MkdirOut tells whether it was made.
type MkdirOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Created bool   `json:"created" doc:"False when it was there already"`
}

// Mkdir makes a folder.
func (s *Service) Mkdir(ctx context.Context, in MkdirIn) (MkdirOut, error) {
	path, err := s.resolve("mkdir", in.Path)
	if err != nil {
		return MkdirOut{}, err
	}
	var mode fs.FileMode
	if in.Mode != nil {
		if mode, err = applyMode(*in.Mode, 0o777|fs.ModeDir); err != nil {
			return MkdirOut{}, refuse("mkdir", path, "%w", err)
		}
	}
	out := MkdirOut{Path: pathname.Show(path), Created: true}
	if info, err := os.Stat(path); err == nil && info.IsDir() && in.Parents {
		out.Created = false
		op.Say(ctx, "%s was there already", path)
		return out, nil
	}
	if in.Parents {
		err = os.MkdirAll(path, 0o777)
	} else {
		err = os.Mkdir(path, 0o777)
	}
	if err == nil && in.Mode != nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		return MkdirOut{}, pyerr.From("mkdir", path, err)
	}
	return out, nil
}

// DeleteIn is what to delete.
type DeleteIn struct {
	Path      string `json:"path" doc:"Path of a file, link or folder"`
	Recursive bool   `json:"recursive" default:"false" doc:"Delete a folder with everything in it"`
	MissingOK bool   `json:"missing_ok" default:"false" doc:"Do not mind if there is nothing"`
}

// DeleteOut tells whether something was deleted.
type DeleteOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Deleted bool   `json:"deleted" doc:"False when there was nothing"`
}

// Delete deletes a file or folder.
func (s *Service) Delete(ctx context.Context, in DeleteIn) (DeleteOut, error) {
	path, err := s.resolve("delete", in.Path)
	if err != nil {
		return DeleteOut{}, err
	}
	if err := s.spare("delete", path); err != nil {
		return DeleteOut{}, err
	}
	out := DeleteOut{Path: pathname.Show(path), Deleted: true}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) && in.MissingOK {
		out.Deleted = false
		return out, nil
	}
	if err != nil {
		return DeleteOut{}, pyerr.From("delete", path, err)
	}
	release, err := s.locks.take(ctx, path)
	if err != nil {
		return DeleteOut{}, pyerr.From("delete", path, err)
	}
	defer release()
	if info.IsDir() && in.Recursive {
		err = os.RemoveAll(path)
	} else {
		err = os.Remove(path)
	}
	if errors.Is(err, syscall.ENOTEMPTY) {
		return DeleteOut{}, pyerr.New("delete", path, pyerr.Spec{Kind: pyerr.Target, Errno: syscall.ENOTEMPTY}, "delete %s: the folder is not empty; set recursive to delete everything in it", path)
	}
	if err != nil {
		return DeleteOut{}, pyerr.From("delete", unreadable(path, err), err)
	}
	return out, nil
}

// spare keeps the folders without which the sandbox cannot work.
func (s *Service) spare(operation, path string) error {
	for _, root := range []string{"/", s.cfg.Home, s.cfg.Workspace} {
		if root != "" && path == filepath.Clean(root) {
			return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Denied}, "%s %s: refused, the sandbox needs this folder; name what is in it", operation, path)
		}
	}
	return nil
}

// ChmodIn is a new mode.
type ChmodIn struct {
	Path      string `json:"path" doc:"Path of a file or folder"`
	Mode      string `json:"mode" doc:"Octal such as 0644, or symbolic such as u+x,go-w"`
	Recursive bool   `json:"recursive" default:"false" doc:"Also everything in the folder"`
}

// ChmodOut tells how it ended.
type ChmodOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Mode    string `json:"mode" doc:"The new mode, octal"`
	Changed int    `json:"changed" doc:"How many files and folders"`
}

// Chmod changes modes. Links below a folder are not followed.
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
				return nil // gone meanwhile, or not to be followed
			}
			if err != nil {
				return err
			}
			return one(filepath.Join(path, rel), info)
		}
		err = w.run(ctx)
	}
	if err != nil {
		return ChmodOut{}, pyerr.From("chmod", unreadable(path, err), err)
	}
	if info, err = os.Stat(path); err == nil {
		out.Mode = octal(info.Mode())
	}
	return out, nil
}

// stampUnix writes a time of the kernel.
func stampUnix(t syscall.Timespec) string { return stamp(time.Unix(t.Unix())) }
