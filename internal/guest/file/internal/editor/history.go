package editor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// history keeps the content of files before each edit, and survives a restart: a folder
// per edited file, with one numbered file per edit. The oldest are evicted first.
type history struct {
	dir      string
	maxBytes int64

	mu      sync.Mutex
	loaded  bool // entries and bytes have been read from the disk
	entries []savedEdit
	bytes   int64
}

// savedEdit is one edit in the history.
type savedEdit struct {
	file string
	size int64
	when time.Time
}

const (
	maxUndo    = 50     // edits of one file
	maxEntries = 20_000 // edits of all files

	oldContent = ".old" // holds the old content
	wasAbsent  = ".new" // there was no file
)

// folder returns the folder of a file's history. Its name is a hash, since a path may exceed
// the length limit of a name.
func (h *history) folder(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(h.dir, hex.EncodeToString(sum[:16]))
}

// push saves the old content of a file. The returned function removes it again.
func (h *history) push(path string, content []byte, existed bool) (forget func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return nil, err
	}
	dir := h.folder(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	numbers, err := edits(dir)
	if err != nil {
		return nil, err
	}
	next, kind := 1, wasAbsent
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1].n + 1
	}
	if existed {
		kind = oldContent
	}
	entry := filepath.Join(dir, fmt.Sprintf("%010d%s", next, kind))
	err = atomicfile.Replace(entry, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
	if err != nil {
		return nil, err
	}
	h.add(savedEdit{entry, int64(len(content)), time.Now()})
	for i := 0; i <= len(numbers)-maxUndo; i++ {
		h.drop(filepath.Join(dir, numbers[i].name))
	}
	h.trim(entry)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(entry)
	}, nil
}

// last returns the newest edit of a file; forget removes it from the history.
func (h *history) last(path string) (content []byte, existed bool, forget func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return nil, false, nil, err
	}
	dir := h.folder(path)
	numbers, err := edits(dir)
	if err != nil {
		return nil, false, nil, err
	}
	if len(numbers) == 0 {
		return nil, false, nil, errNoEdit
	}
	entry := filepath.Join(dir, numbers[len(numbers)-1].name)
	if existed = strings.HasSuffix(entry, oldContent); existed {
		if content, err = os.ReadFile(entry); err != nil {
			return nil, false, nil, err
		}
	}
	return content, existed, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(entry)
		_ = os.Remove(dir) // succeeds only if it is empty
	}, nil
}

var errNoEdit = errors.New("no edit to undo")

type numbered struct {
	n    int
	name string
}

// edits lists a file's history, oldest first.
func edits(dir string) ([]numbered, error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []numbered
	for _, e := range names {
		name := e.Name()
		digits := strings.TrimSuffix(strings.TrimSuffix(name, oldContent), wasAbsent)
		if n, err := strconv.Atoi(digits); err == nil && digits != name {
			out = append(out, numbered{n, name})
		}
	}
	slices.SortFunc(out, func(a, b numbered) int { return a.n - b.n })
	return out, nil
}

// load reads the list of edits of earlier runs.
func (h *history) load() error {
	if h.loaded {
		return nil
	}
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if atomicfile.IsTemp(d.Name()) {
			return os.Remove(path) // left by a run that was killed
		}
		if info, err := d.Info(); err == nil {
			h.add(savedEdit{path, info.Size(), info.ModTime()})
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	slices.SortStableFunc(h.entries, func(a, b savedEdit) int { return a.when.Compare(b.when) })
	h.loaded = true
	return nil
}

func (h *history) add(e savedEdit) {
	h.entries = append(h.entries, e)
	h.bytes += e.size
}

func (h *history) drop(file string) {
	for i, e := range h.entries {
		if e.file == file {
			h.entries = slices.Delete(h.entries, i, i+1)
			h.bytes -= e.size
			break
		}
	}
	_ = os.Remove(file) // if this fails, the next run evicts it
}

// trim evicts the oldest edits of any file until the limits hold. It keeps the newest
// regardless of its size, so that the last edit can be undone.
func (h *history) trim(newest string) {
	for len(h.entries) > maxEntries || h.bytes > h.maxBytes && len(h.entries) > 1 {
		oldest := h.entries[0].file
		if oldest == newest {
			return
		}
		h.drop(oldest)
		_ = os.Remove(filepath.Dir(oldest)) // succeeds only if it is empty
	}
}
