package toolcatalog

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

const (
	// maxResults and maxResultBytes bound the stored results.
	maxResults     = 64
	maxResultBytes = 512 << 20
)

// Shelf stores the newest results that are too long for a model, as files.
type Shelf struct {
	dir string
	mu  sync.Mutex
}

// NewShelf returns a shelf in a folder, which is created on first use.
func NewShelf(dir string) *Shelf { return &Shelf{dir: dir} }

// Put stores a result and returns its path.
func (s *Shelf) Put(name string, r io.Reader) (path string, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", 0, fmt.Errorf("cannot store the result: %w", err)
	}
	name = strings.Trim(strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune(`/\*`, r) {
			return '-'
		}
		return r
	}, name), ". ")
	if name = cmp.Or(name, "result"); len(name) > 100 {
		name = name[len(name)-100:]
	}
	f, err := os.CreateTemp(s.dir, "*-"+name)
	if err != nil {
		return "", 0, fmt.Errorf("cannot store the result: %w", err)
	}
	size, err = io.Copy(f, io.LimitReader(r, maxResultBytes))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		os.Remove(f.Name())
		return "", 0, fmt.Errorf("cannot store the result: %w", err)
	}
	s.clear(f.Name())
	return f.Name(), size, nil
}

// clear removes the oldest results until the rest is within the limits.
func (s *Shelf) clear(keep string) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	var files []os.FileInfo
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files, total = append(files, info), total+info.Size()
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for i := 0; i < len(files) && (len(files)-i > maxResults || total > maxResultBytes); i++ {
		if path := filepath.Join(s.dir, files[i].Name()); path != keep && os.Remove(path) == nil {
			total -= files[i].Size()
		}
	}
}
