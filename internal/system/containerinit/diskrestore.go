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

// restore makes the disk equal to that of an archive. No other process may use the disk meanwhile. Without
// root, all files belong to the user of this process.
func (d *disk) restore(r io.Reader) error {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("read the copy of a disk: %w", err)
	}
	s := &restorer{disk: d, root: os.Geteuid() == 0}
	if err := s.empty(d.home, nil); err != nil {
		return fmt.Errorf("restore the disk: %w", err)
	}
	archive := tar.NewReader(gz)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the copy of a disk: %w", err)
		}
		if err := s.add(h, archive); err != nil {
			return fmt.Errorf("restore %.200q: %w", h.Name, err)
		}
	}
	// The checksum is verified at the end of the stream.
	if _, err := io.Copy(io.Discard, gz); err != nil {
		return fmt.Errorf("read the copy of a disk: %w", err)
	}
	for _, f := range slices.Backward(s.folders) { // last, because adding entries changes a folder's time
		if err := s.setMetadata(f.real, f.header); err != nil {
			return fmt.Errorf("restore %.200q: %w", f.header.Name, err)
		}
	}
	return nil
}

type restorer struct {
	disk    *disk
	root    bool
	folders []folder
}

type folder struct {
	real   string
	header *tar.Header
}

// place returns the path of an entry in the container and the real path on the disk. All parent folders
// must exist on the disk.
func (s *restorer) place(name string) (p, real string, err error) {
	rest, ok := strings.CutPrefix(name, "./")
	p = path.Join("/", rest)
	if !ok || strings.TrimSuffix(rest, "/") != strings.TrimPrefix(p, "/") || strings.ContainsRune(name, 0) {
		return "", "", errors.New("invalid name")
	}
	if s.disk.covered(p) {
		return "", "", errors.New("the path is on another mount")
	}
	at := s.disk.root
	for part := range strings.SplitSeq(strings.TrimPrefix(path.Dir(p), "/"), "/") {
		at = path.Join(at, part)
		info, err := os.Lstat(at)
		if err != nil {
			return "", "", err
		}
		if !info.IsDir() {
			return "", "", errors.New("its parent is not a folder")
		}
	}
	return p, path.Join(s.disk.root, p), nil
}

func (s *restorer) add(h *tar.Header, r io.Reader) error {
	p, real, err := s.place(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return s.addFolder(p, real, h)
	}
	if s.disk.holdsMount(p) {
		return errors.New("the path is a mount or contains one")
	}
	if err := s.remove(real); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		err = s.addFile(real, h, r)
	case tar.TypeSymlink:
		err = os.Symlink(h.Linkname, real)
	case tar.TypeFifo:
		err = unix.Mkfifo(real, 0o600)
	case tar.TypeLink:
		return s.addLink(real, h)
	default:
		return errors.New("unknown file type")
	}
	if err != nil {
		return err
	}
	return s.setMetadata(real, h)
}

func (s *restorer) addLink(real string, h *tar.Header) error {
	_, first, err := s.place(h.Linkname)
	if err != nil {
		return err
	}
	if info, err := os.Lstat(first); err != nil || !info.Mode().IsRegular() {
		return errors.Join(errors.New("the target of the link is not a file"), err)
	}
	return os.Link(first, real)
}

// addFolder creates a folder. In a folder of the image it removes the entries that were deleted or follow in the archive.
func (s *restorer) addFolder(p, real string, h *tar.Header) error {
	info, err := os.Lstat(real)
	switch {
	case err == nil && info.IsDir():
		if !s.disk.isHome(p) { // which is empty
			stayed := map[string]bool{}
			for name := range strings.SplitSeq(h.PAXRecords[recordStayed], "/") {
				stayed[name] = true
			}
			if err := s.empty(p, stayed); err != nil {
				return err
			}
		}
	case err == nil || errors.Is(err, fs.ErrNotExist):
		if err := s.remove(real); err != nil {
			return err
		}
		if err := os.Mkdir(real, 0o700); err != nil {
			return err
		}
	default:
		return err
	}
	s.folders = append(s.folders, folder{real, h})
	return nil
}

// empty removes the entries of a folder, except those in stayed and mounts.
func (s *restorer) empty(dir string, stayed map[string]bool) error {
	entries, err := os.ReadDir(path.Join(s.disk.root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		if stayed[e.Name()] || s.disk.holdsMount(p) {
			continue
		}
		if err := s.remove(path.Join(s.disk.root, p)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file or folder. It keeps lost+found folders of other users.
func (s *restorer) remove(real string) error {
	info, err := os.Lstat(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !s.owns(info) && info.IsDir() && info.Name() == "lost+found":
		return nil
	}
	if err := os.RemoveAll(real); !errors.Is(err, fs.ErrPermission) || !info.IsDir() {
		return err
	}
	// Add the missing permissions to own folders.
	err = fs.WalkDir(os.DirFS(real), ".", func(name string, e fs.DirEntry, err error) error {
		if e != nil && e.IsDir() {
			lift(path.Join(real, name), 0o700)
		}
		return nil
	})
	return errors.Join(err, os.RemoveAll(real))
}

func (s *restorer) owns(info fs.FileInfo) bool {
	return s.root || int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid()
}

// addFile writes a file, with its holes.
func (s *restorer) addFile(real string, h *tar.Header, r io.Reader) error {
	f, err := os.OpenFile(real, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if h.PAXRecords[recordSize] == "" {
		if _, err := io.Copy(f, r); err != nil {
			return err
		}
		return f.Close()
	}
	size, err := strconv.ParseInt(h.PAXRecords[recordSize], 10, 64)
	if err != nil || size < 0 {
		return errors.New("invalid size")
	}
	numbers := strings.Split(h.PAXRecords[recordData], ",")
	if len(numbers)%2 != 0 || len(numbers) > 2*maxHoles {
		return errors.New("invalid list of holes")
	}
	for i := 0; i < len(numbers); i += 2 {
		offset, err := strconv.ParseInt(numbers[i], 10, 64)
		length, failed := strconv.ParseInt(numbers[i+1], 10, 64)
		if err != nil || failed != nil || offset < 0 || length < 0 || offset > size || length > size-offset {
			return errors.New("invalid list of holes")
		}
		if _, err := io.CopyN(io.NewOffsetWriter(f, offset), r, length); err != nil {
			return err
		}
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Close()
}

// setMetadata sets the owner, permissions, attributes and time of a file. It does not change folders of other users.
func (s *restorer) setMetadata(real string, h *tar.Header) error {
	info, err := os.Lstat(real)
	if err != nil || !s.owns(info) || real == path.Join(s.disk.root, s.disk.home) {
		return err
	}
	if err := os.Lchown(real, h.Uid, h.Gid); err != nil && s.root {
		return err
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := unix.Chmod(real, uint32(h.Mode)&0o7777); err != nil {
			return err
		}
		for name, value := range h.PAXRecords {
			if attr, ok := strings.CutPrefix(name, recordAttr); ok && keptAttribute(attr) {
				// Not every filesystem has attributes, and some attributes require root.
				if err := unix.Lsetxattr(real, attr, []byte(value), 0); err != nil && s.root &&
					!errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
					return err
				}
			}
		}
	}
	when := unix.NsecToTimespec(boundTime(h.ModTime).UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, real, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW)
}

// boundTime replaces times that a kernel cannot represent.
func boundTime(t time.Time) time.Time {
	if t.Year() < 1902 || t.Year() > 2200 {
		return time.Unix(0, 0)
	}
	return t
}
