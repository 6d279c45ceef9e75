package layer

import (
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// metaPerFile estimates the number of files on btrfs, which does not count them: a file uses more metadata than this.
const metaPerFile = 256

// Usage returns the used space of the whole filesystem. It is cheap.
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

// SyncAll synchronizes the filesystem of the layers; ok is false if the layers are on another filesystem.
func (s *Store) SyncAll() (ok bool, err error) {
	if s.image == "" {
		return false, nil
	}
	return true, record.SyncFilesystem(s.dir)
}
