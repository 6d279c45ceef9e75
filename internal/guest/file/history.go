package file

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

	"github.com/cove-sandbox/cove/internal/atomicfile"
)

// history keeps what files were before they were edited, so that it survives a
// restart: a folder per edited file, and in it one file per edit, numbered. The
// oldest go first when a bound is reached.
type history struct {
	dir      string
	maxBytes int64

	mu      sync.Mutex
	known   bool // the two below have been read from the disk
	entries []kept
	bytes   int64
}

// kept is one edit in the history.
type kept struct {
	file string
	size int64
	when time.Time
}

const (
	maxUndo    = 50     // edits of one file
	maxEntries = 20_000 // edits of all files

	oldContent = ".old" // what the file was
	wasAbsent  = ".new" // there was no file
)

// folder of a file's history. The name says nothing about the file, whose path
// may be longer than a name can be.
func (h *history) folder(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(h.dir, hex.EncodeToString(sum[:16]))
}

// push notes what a file was; nil content means that there was none. It returns
// the way to forget it again.
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
	h.add(kept{entry, int64(len(content)), time.Now()})
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

// last is the newest edit of a file; forget takes it out of the history.
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
		_ = os.Remove(dir) // only when it is empty
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

// load reads which edits there are from earlier runs.
func (h *history) load() error {
	if h.known {
		return nil
	}
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if atomicfile.IsTemp(d.Name()) {
			return os.Remove(path) // of a run that was killed
		}
		if info, err := d.Info(); err == nil {
			h.add(kept{path, info.Size(), info.ModTime()})
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	slices.SortStableFunc(h.entries, func(a, b kept) int { return a.when.Compare(b.when) })
	h.known = true
	return nil
}

func (h *history) add(k kept) {
	h.entries = append(h.entries, k)
	h.bytes += k.size
}

func (h *history) drop(file string) {
	for i, k := range h.entries {
		if k.file == file {
			h.entries = slices.Delete(h.entries, i, i+1)
			h.bytes -= k.size
			break
		}
	}
	_ = os.Remove(file) // one that stays is dropped with the next run's oldest
}

// trim drops the oldest edits of any file until the bounds hold. The newest is
// kept whatever its size: an edit that was just made can be undone.
func (h *history) trim(newest string) {
	for len(h.entries) > maxEntries || h.bytes > h.maxBytes && len(h.entries) > 1 {
		oldest := h.entries[0].file
		if oldest == newest {
			return
		}
		h.drop(oldest)
		_ = os.Remove(filepath.Dir(oldest)) // only when it is empty
	}
}
