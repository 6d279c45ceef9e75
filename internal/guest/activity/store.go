package activity

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	segmentSize  = 4 << 20 // bytes of a segment; there are two
	segmentLines = 10_000
	maxLine      = 256 << 10
)

// store keeps the entries in two files, and the pictures next to them. A full new file replaces
// the old one. Only the position of each entry is in memory. The store is opened on first use, and
// reading creates nothing. Programs of the sandbox can change the files, so their content is
// untrusted and limited.
type store struct {
	dir string
	log *slog.Logger

	mu       sync.RWMutex
	opened   bool
	closed   bool
	next     int64
	segments [2]segment // old, new
	shots    []int64    // IDs that have a picture
}

// segment is one file. file is nil if it does not exist.
type segment struct {
	file  *os.File
	size  int64
	lines []line
}

// line is the position of an entry, and the fields that most filters need.
type line struct {
	id, at   int64
	size     int
	op, kind string
	failed   bool
}

var segmentNames = [2]string{"old.jsonl", "new.jsonl"}

func newStore(state string, log *slog.Logger) *store {
	return &store{dir: filepath.Join(state, "activity"), log: log}
}

// open reads the entries of an earlier server. The lock is held.
func (s *store) open() {
	if s.opened {
		return
	}
	s.opened = true
	names := map[string]string{} // operations and groups, each stored once
	for i, name := range segmentNames {
		g, err := openSegment(filepath.Join(s.dir, name), names)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("cannot read activity record", "file", name, "error", err)
		}
		s.segments[i] = g
		for _, l := range g.lines {
			s.next = max(s.next, l.id)
		}
	}
	pictures, _ := os.ReadDir(s.picturesDir()) // none: nothing to count
	for _, p := range pictures {
		if id, err := strconv.ParseInt(strings.TrimSuffix(p.Name(), ".jpg"), 10, 64); err == nil {
			s.shots = append(s.shots, id)
		}
	}
	slices.Sort(s.shots)
}

// openSegment opens a file and finds its entries. It skips partial and invalid lines.
func openSegment(path string, names map[string]string) (segment, error) {
	f, err := openRegular(path, os.O_RDWR|os.O_APPEND)
	if err != nil {
		return segment{}, err
	}
	g := segment{file: f}
	r := bufio.NewReaderSize(io.LimitReader(f, 2*segmentSize), maxLine)
	for {
		b, err := r.ReadSlice('\n')
		var e Entry
		if err == nil && json.Unmarshal(b, &e) == nil && e.ID > 0 && len(g.lines) < segmentLines {
			for _, s := range []*string{&e.Op, &e.Kind} {
				if names[*s] == "" {
					names[*s] = *s
				}
				*s = names[*s]
			}
			g.lines = append(g.lines, line{id: e.ID, at: g.size, size: len(b), op: e.Op, kind: e.Kind, failed: e.hasFailed()})
		}
		g.size += int64(len(b))
		if err == nil || errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(b) > 0 { // a partial line after a crash: the next entry starts on a new line
			n, _ := f.Write([]byte("\n"))
			g.size += int64(n)
		}
		return g, nil
	}
}

// openRegular opens a regular file. It fails for links and special files that a program has put in
// its place.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%q is not a regular file", path)
	}
	return f, nil
}

// reserve returns the ID of the next entry.
func (s *store) reserve() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	s.next++
	return s.next
}

// append writes an entry.
func (s *store) append(e Entry) {
	b, err := op.JSON(e)
	if err != nil {
		s.log.Debug("cannot encode activity entry", "error", err)
		return
	}
	b = append(b, '\n')
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.segments[1]
	if g.file == nil || g.size+int64(len(b)) > segmentSize || len(g.lines) >= segmentLines {
		if err := s.rotate(); err != nil {
			s.log.Debug("cannot write activity entry", "error", err)
			return
		}
	}
	n, err := g.file.Write(b)
	if err != nil {
		// A part may have been written to a full disk: the next entry starts on a new line.
		s.log.Debug("cannot write activity entry", "error", err)
		if n > 0 {
			m, _ := g.file.Write([]byte("\n"))
			n += m
		}
	} else {
		g.lines = append(g.lines, line{id: e.ID, at: g.size, size: n, op: e.Op, kind: e.Kind, failed: e.hasFailed()})
	}
	g.size += int64(n)
}

// rotate makes the new file the old one and starts another. The lock is held.
func (s *store) rotate() error {
	if s.closed {
		return fs.ErrClosed
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	if s.segments[1].file != nil {
		if err := os.Rename(s.path(1), s.path(0)); err != nil {
			return err
		}
		if f := s.segments[0].file; f != nil {
			f.Close()
		}
		s.segments[0], s.segments[1] = s.segments[1], segment{}
	}
	os.RemoveAll(s.path(1)) // an entry that could not be opened
	f, err := openRegular(s.path(1), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND)
	s.segments[1].file = f
	return err
}

func (s *store) makeDir() error {
	return os.MkdirAll(s.picturesDir(), 0o700)
}

func (s *store) path(i int) string   { return filepath.Join(s.dir, segmentNames[i]) }
func (s *store) picturesDir() string { return filepath.Join(s.dir, "pictures") }
func (s *store) picture(id int64) string {
	return filepath.Join(s.picturesDir(), strconv.FormatInt(id, 10)+".jpg")
}

// keepPicture stores the picture of an entry and removes the oldest ones.
func (s *store) keepPicture(id int64, b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.makeDir() != nil {
		return false
	}
	f, err := openRegular(s.picture(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY)
	if err != nil {
		return false
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(s.picture(id))
		return false
	}
	s.shots = append(s.shots, id)
	for len(s.shots) > maxPictures {
		os.Remove(s.picture(s.shots[0]))
		s.shots = s.shots[1:]
	}
	return true
}

// last calls take with the entries that match, newest first, until it returns false. wanted filters
// by line before the entry is read.
func (s *store) last(wanted func(line) bool, take func(Entry) bool) {
	s.mu.Lock()
	s.open()
	s.mu.Unlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, i := range []int{1, 0} {
		g := s.segments[i]
		for _, l := range slices.Backward(g.lines) {
			if !wanted(l) {
				continue
			}
			b := make([]byte, l.size)
			var e Entry
			if _, err := g.file.ReadAt(b, l.at); err != nil || json.Unmarshal(b, &e) != nil || e.ID != l.id {
				continue // a program has changed the file
			}
			if !take(e) {
				return
			}
		}
	}
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.opened = true, true
	for i := range s.segments {
		if f := s.segments[i].file; f != nil {
			f.Close()
		}
		s.segments[i] = segment{}
	}
}
