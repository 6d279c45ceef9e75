package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/atomicfile"

	"golang.org/x/sys/unix"
)

const (
	lockName   = "lock"
	filePrefix = "audit-"
	fileSuffix = ".jsonl"
)

// fileName is made of the sequence number of the first line, so that names sort as
// lines do and the file after a line is known without looking.
func fileName(first uint64) string {
	return fmt.Sprintf("%s%020d%s", filePrefix, first, fileSuffix)
}

// listFiles returns the first sequence numbers of the files, in order.
func listFiles(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []uint64
	for _, e := range entries {
		number := strings.TrimSuffix(strings.TrimPrefix(e.Name(), filePrefix), fileSuffix)
		if first, err := strconv.ParseUint(number, 10, 64); err == nil && e.Name() == fileName(first) {
			files = append(files, first)
		}
	}
	slices.Sort(files)
	return files, nil
}

// takeLock makes this process the folder's writer. The lock ends with the file, and so
// with the process.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("lock: %w", err)
}

// isLocked tells whether a writer is at work. It only asks, so that it cannot be in
// the way of one that starts.
func isLocked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return false
	}
	defer f.Close()
	k := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &k) == nil && k.Type != unix.F_UNLCK
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// syncData makes a file's content, and the size it needs, survive a power cut.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// removeTemps takes away what a crash left of an atomic write.
func removeTemps(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if atomicfile.IsTemp(e.Name()) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanner reads lines and knows where it is. It takes memory for one line.
type scanner struct {
	r      io.ReaderAt
	buf    []byte
	have   []byte // read but not returned
	offset int64  // of have
}

func newScanner(r io.ReaderAt, offset int64) *scanner {
	return &scanner{r: r, buf: make([]byte, maxLine), offset: offset}
}

// next returns a line without its newline, valid until the following call, and whether
// it was whole. At the end of the file it returns io.EOF; after a part without newline
// at the end, or one longer than a line can be, the scanner has not moved.
func (s *scanner) next() (line []byte, whole bool, err error) {
	for {
		if i := bytes.IndexByte(s.have, '\n'); i >= 0 {
			line = s.have[:i]
			s.have = s.have[i+1:]
			s.offset += int64(i) + 1
			return line, true, nil
		}
		if len(s.have) == len(s.buf) {
			return s.part()
		}
		held := copy(s.buf, s.have)
		n, err := s.r.ReadAt(s.buf[held:], s.offset+int64(held))
		s.have = s.buf[:held+n]
		if n > 0 {
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, false, err
		}
		if held == 0 {
			return nil, false, io.EOF
		}
		return s.part()
	}
}

// part returns what is no whole line and forgets it: the next look reads it anew, since
// a writer may have taken it back.
func (s *scanner) part() ([]byte, bool, error) {
	part := s.have
	s.have = nil
	return part, false, nil
}
