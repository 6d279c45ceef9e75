package host

import (
	"fmt"
	"os"
	"sync"
)

// LogFile is a log with a size limit. A full file is renamed to FILE.1, the previous one to FILE.2,
// and the oldest is deleted. Only its owner can read it.
type LogFile struct {
	path  string
	limit int64
	keep  int // older files

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLogFile opens a log to append to it.
func OpenLogFile(path string, limit int64, keep int) (*LogFile, error) {
	l := &LogFile{path: path, limit: limit, keep: keep}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("cannot open the log: %w", err)
	}
	return l, nil
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write appends a record. If rotation fails, it continues in the same file.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.limit {
		l.rotate()
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

func (l *LogFile) rotate() {
	for i := l.keep; i > 1; i-- {
		os.Rename(l.name(i-1), l.name(i)) //nolint:errcheck // there may be fewer
	}
	var err error
	if l.keep > 0 {
		err = os.Rename(l.path, l.name(1))
	} else {
		err = os.Remove(l.path)
	}
	if err != nil {
		l.size = 0 // retried after the same number of bytes
		return
	}
	full := l.file
	if l.open() == nil {
		full.Close()
	}
}

func (l *LogFile) name(i int) string { return fmt.Sprintf("%s.%d", l.path, i) }

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
