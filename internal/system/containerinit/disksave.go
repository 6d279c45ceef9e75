package containerinit

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// save writes the archive. It skips unreadable files of other users: without root, no process inside can
// have changed them. A file that changes meanwhile is archived in some state of it.
func (d *disk) save(w io.Writer) error {
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	s := &saver{disk: d, tar: tar.NewWriter(gz), seen: map[inode]string{}}
	top, err := os.Lstat(d.root)
	if err == nil {
		err = s.walk("/", top)
	}
	if err != nil {
		return fmt.Errorf("copy the disk: %w", err)
	}
	return errors.Join(s.tar.Close(), gz.Close())
}

type inode struct{ dev, ino uint64 }

type saver struct {
	disk *disk
	tar  *tar.Writer
	seen map[inode]string // first names of files with several names
}

// walk archives a folder and everything below it.
func (s *saver) walk(dir string, self fs.FileInfo) error {
	entries, undo, err := s.list(dir)
	if err != nil {
		return err
	}
	defer undo()
	var stayed []string
	var todo []fs.FileInfo
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		if s.disk.mounts[p] {
			continue
		}
		info, err := os.Lstat(path.Join(s.disk.root, p))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		} else if err != nil {
			return err
		}
		if info.IsDir() || !s.changed(p, info) { // a changed folder has an own list of names
			stayed = append(stayed, e.Name())
		}
		todo = append(todo, info)
	}
	if err := s.folder(dir, self, stayed); err != nil {
		return err
	}
	for _, info := range todo {
		p := path.Join(dir, info.Name())
		if info.IsDir() {
			err = s.walk(p, info)
		} else if s.changed(p, info) {
			err = s.file(p, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list reads a folder. It makes an own folder without read permission readable until undo.
func (s *saver) list(dir string) (entries []os.DirEntry, undo func(), err error) {
	real, undo := path.Join(s.disk.root, dir), func() {}
	entries, err = os.ReadDir(real)
	if errors.Is(err, fs.ErrPermission) {
		undo = lift(real, 0o700)
		entries, err = os.ReadDir(real)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return entries, undo, err
}

// lift adds to the permissions of a file of this process's user.
func lift(real string, more os.FileMode) (undo func()) {
	info, err := os.Lstat(real)
	if err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() || info.Mode()&os.ModeSymlink != 0 ||
		os.Chmod(real, info.Mode()|more) != nil {
		return func() {}
	}
	return func() { os.Chmod(real, info.Mode()) }
}

// changed reports whether an entry is archived. Without root, no process can have changed read-only files
// of other users.
func (s *saver) changed(p string, info fs.FileInfo) bool {
	st := info.Sys().(*syscall.Stat_t)
	if s.disk.isHome(p) {
		return true
	}
	if time.Unix(st.Ctim.Unix()).Before(s.disk.since) {
		return false
	}
	return int(st.Uid) == os.Geteuid() || unix.Faccessat(unix.AT_FDCWD, path.Join(s.disk.root, p), unix.W_OK,
		unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW) == nil
}

// folder archives the entry of a folder if the folder has changed.
func (s *saver) folder(dir string, info fs.FileInfo, stayed []string) error {
	if !s.changed(dir, info) {
		return nil
	}
	h, err := s.header(dir, info, "")
	if err != nil {
		return err
	}
	if names := strings.Join(stayed, "/"); len(names) > maxRecord {
		return fmt.Errorf("%s: too many files to list", dir)
	} else if names != "" {
		h.PAXRecords[recordStayed] = names
	}
	return s.tar.WriteHeader(h)
}

// header returns the tar header of an entry. Its name is relative to the root.
func (s *saver) header(p string, info fs.FileInfo, link string) (*tar.Header, error) {
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return nil, err
	}
	h.Name, h.Format = "."+p, tar.FormatPAX
	if info.IsDir() {
		h.Name = strings.TrimSuffix(h.Name, "/") + "/"
	}
	h.Uname, h.Gname, h.AccessTime, h.ChangeTime = "", "", time.Time{}, time.Time{}
	h.PAXRecords = readAttributes(path.Join(s.disk.root, p))
	return h, nil
}

// readAttributes reads the extended attributes that programs and users set.
func readAttributes(real string) map[string]string {
	out := map[string]string{}
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(real, buf)
	if err != nil {
		return out
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if !keptAttribute(name) {
			continue
		}
		value := make([]byte, 64<<10)
		if n, err := unix.Lgetxattr(real, name, value); err == nil && !strings.Contains(name, "=") {
			out[recordAttr+name] = string(value[:n])
		}
	}
	return out
}

func keptAttribute(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability"
}

// file archives an entry other than a folder.
func (s *saver) file(p string, info fs.FileInfo) error {
	real, st := path.Join(s.disk.root, p), info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := os.Readlink(real)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
			return nil // replaced meanwhile
		} else if err != nil {
			return err
		}
		return s.plain(p, info, link)
	case info.Mode()&fs.ModeNamedPipe != 0:
		return s.plain(p, info, "")
	case !info.Mode().IsRegular():
		return nil
	}
	if id := (inode{st.Dev, st.Ino}); st.Nlink > 1 {
		if first, ok := s.seen[id]; ok {
			return s.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "." + p, Linkname: "." + first, Format: tar.FormatPAX})
		}
		if len(s.seen) < maxLinks {
			s.seen[id] = p
		}
	}
	return s.content(p, real)
}

func (s *saver) plain(p string, info fs.FileInfo, link string) error {
	h, err := s.header(p, info, link)
	if err != nil {
		return err
	}
	return s.tar.WriteHeader(h)
}

// content archives the data of a file without its holes.
func (s *saver) content(p, real string) error {
	const flags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(real, flags, 0)
	if errors.Is(err, fs.ErrPermission) {
		undo := lift(real, 0o400)
		f, err = os.OpenFile(real, flags, 0)
		undo()
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil // of another user, or replaced meanwhile
	} else if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	h, err := s.header(p, info, "")
	if err != nil {
		return err
	}
	data := findData(f, info.Size())
	h.Size = 0
	for _, d := range data {
		h.Size += d.length
	}
	if h.Size < info.Size() {
		var text []string
		for _, d := range data {
			text = append(text, strconv.FormatInt(d.offset, 10), strconv.FormatInt(d.length, 10))
		}
		h.PAXRecords[recordSize], h.PAXRecords[recordData] = strconv.FormatInt(info.Size(), 10), strings.Join(text, ",")
		if len(data) == 0 {
			h.PAXRecords[recordData] = "0,0"
		}
	}
	if err := s.tar.WriteHeader(h); err != nil {
		return err
	}
	for _, d := range data {
		n, err := io.Copy(s.tar, io.NewSectionReader(f, d.offset, d.length))
		if err == nil { // the header has the size, so a file that became shorter is padded
			_, err = io.CopyN(s.tar, zeros{}, d.length-n)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type extent struct{ offset, length int64 }

// findData returns the extents of a file with data, or one extent of the whole file if that is unknown.
func findData(f *os.File, size int64) (all []extent) {
	whole := slices.DeleteFunc([]extent{{0, size}}, func(e extent) bool { return e.length == 0 })
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only a hole remains
			break
		}
		end, failed := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil || failed != nil || begin < at || end <= begin || len(all) == maxHoles {
			return whole
		}
		end = min(end, size)
		if begin < size {
			all = append(all, extent{begin, end - begin})
		}
		at = end
	}
	return all
}
