package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"

	"golang.org/x/sys/unix"
)

const lockName = "lock"

// fileName contains the sequence number of the first line, so that names sort like lines, and the name of the
// next file is known.
func fileName(first uint64) string { return fmt.Sprintf("audit-%020d.jsonl", first) }

// tornName is the file of data that was removed before a line.
func tornName(seq uint64) string { return fmt.Sprintf("torn-%020d", seq) }

// numberOf returns the sequence number in the name of a file.
func numberOf(name string) uint64 {
	_, number, _ := strings.Cut(strings.TrimSuffix(name, ".jsonl"), "-")
	n, _ := strconv.ParseUint(number, 10, 64)
	return n
}

// listFiles returns the first sequence numbers of the files, in order.
func listFiles(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []uint64
	for _, e := range entries {
		if first := numberOf(e.Name()); e.Name() == fileName(first) {
			files = append(files, first)
		}
	}
	slices.Sort(files)
	return files, nil
}

// removeOld removes the files of pruned lines, and temporary files of a crash.
func removeOld(dir string, gone uint64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, n := e.Name(), numberOf(e.Name())
		if n <= gone && (name == fileName(n) || name == tornName(n)) || atomicfile.IsTemp(name) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// takeLock makes this process the directory's writer until the file is closed.
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

// isLocked reports whether a writer has the log open. It only queries the lock, so it never blocks a starting
// writer.
func isLocked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return false
	}
	defer f.Close()
	k := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &k) == nil && k.Type != unix.F_UNLCK
}

// syncData makes a file's content and size survive a power failure.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// eachLine calls fn with each complete line of a file from an offset on, without its newline, and with the
// offset after it. It returns the data after the last line, or the first maxLine bytes of a line that is too
// long.
func eachLine(dir string, first uint64, offset int64, fn func(line []byte, end int64) error) (rest []byte, err error) {
	f, err := os.Open(filepath.Join(dir, fileName(first)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(io.NewSectionReader(f, offset, math.MaxInt64-offset), maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull) {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
		offset += int64(len(line))
		if err := fn(line[:len(line)-1], offset); err != nil {
			return nil, err
		}
	}
}
