package layer

import (
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// metaPerFile is less than what btrfs, which does not count files, needs for one.
const metaPerFile = 256

// Usage is how much of the whole filesystem is used, which is cheap to know.
func (s *Store) Usage() tree.Size {
	if data, meta, ok := s.btrfsUsage(); ok {
		return tree.Size{Bytes: data + meta, Files: meta / metaPerFile}
	}
	var st unix.Statfs_t
	if unix.Statfs(s.dir, &st) != nil {
		return tree.Size{}
	}
	return tree.Size{Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Files: int64(st.Files - st.Ffree)}
}

// SyncAll writes the whole filesystem to the disk if it is our own; ok is false if
// it is not.
func (s *Store) SyncAll() (ok bool, err error) {
	if s.image == "" {
		return false, nil
	}
	return true, record.SyncFilesystem(s.dir)
}
