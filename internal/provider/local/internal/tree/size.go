package tree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Size is the disk usage of a tree.
type Size struct {
	Bytes, Files int64
	TooDeep      bool // nested beyond MaxDepth
}

// Plus returns the size of two trees together.
func (s Size) Plus(t Size) Size {
	return Size{s.Bytes + t.Bytes, s.Files + t.Files, s.TooDeep || t.TooDeep}
}

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// Measure returns the size of a tree, which may change concurrently. It stops when the tree exceeds maxBytes or maxFiles,
// because a sandbox can make the walk slow; 0 is no limit. A file with several names counts partially at each name.
func Measure(path string, maxBytes, maxFiles int64) (s Size, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer dir.Close()
	m := measurer{maxBytes: maxBytes, maxFiles: maxFiles}
	if err = m.add(dir, 0); errors.Is(err, errEnough) {
		err = nil
	}
	return m.Size, err
}

type measurer struct {
	Size
	maxBytes, maxFiles int64
}

func (m *measurer) add(dir *os.File, depth int) error {
	return Each(dir, func(e os.DirEntry) error {
		if m.maxBytes > 0 && m.Bytes > m.maxBytes || m.maxFiles > 0 && m.Files > m.maxFiles {
			return errEnough
		}
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		m.Files++
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			m.Bytes += st.Blocks * 512 / int64(max(1, st.Nlink))
			return nil
		}
		m.Bytes += st.Blocks * 512
		if depth == MaxDepth {
			m.TooDeep = true
			return nil
		}
		sub, err := openDir(int(dir.Fd()), e.Name())
		if vanished(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer sub.Close()
		return m.add(sub, depth+1)
	})
}
