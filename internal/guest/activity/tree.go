package activity

import (
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/inotify"
)

// Limits of the known part of the workspace, so that commands stay fast in a large one. Changes
// beyond them are not shown.
const (
	maxFolders  = 256
	maxFiles    = 2000
	maxKnown    = 64 << 10 // bytes of a file whose content is known
	maxMemory   = 2 << 20  // of all of them
	maxChanges  = 20       // of one command
	maxShown    = 36 << 10 // bytes of all of them
	deadFolders = " node_modules __pycache__ site-packages target venv "

	treeMask = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
)

// tree caches the text files of the workspace to find how commands change them. The kernel
// reports which files changed; a command without changes costs one system call. The first command
// opens the tree.
type tree struct {
	root string
	skip string // the record itself
	log  *slog.Logger

	mu      sync.Mutex
	opened  bool
	watcher *inotify.Watcher // nil: not open, or unavailable
	folders map[int]string
	known   map[string]*version
	memory  int
}

func newTree(root, skip string, log *slog.Logger) *tree {
	return &tree{root: filepath.Clean(root), skip: skip, log: log, folders: map[int]string{}, known: map[string]*version{}}
}

// begin reads the workspace on the first call.
func (t *tree) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opened || t.root == "." || t.root == "/" {
		return
	}
	t.opened = true
	w, err := inotify.New()
	if err != nil {
		t.log.Debug("cannot record file changes of commands", "error", err)
		return
	}
	t.watcher = w
	t.scan(t.root, nil)
}

// scan watches a folder and its subfolders. It calls found for each file, or caches the files if
// found is nil. The lock is held.
func (t *tree) scan(dir string, found func(path string)) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // it was deleted, or is not readable
		case e.IsDir():
			if path != t.root && skipFolder(e.Name()) || path == t.skip || len(t.folders) >= maxFolders {
				return fs.SkipDir
			}
			wd, err := t.watcher.Add(path, treeMask)
			if err != nil {
				return fs.SkipDir
			}
			t.folders[wd] = path
		case !e.Type().IsRegular():
		case found != nil:
			found(path)
		case len(t.known) < maxFiles:
			t.keep(readKnown(path))
		}
		return nil
	})
}

func skipFolder(name string) bool {
	return strings.HasPrefix(name, ".") || strings.Contains(deadFolders, " "+name+" ")
}

// readKnown reads a file if it is small.
func readKnown(path string) *version {
	if info, err := os.Lstat(path); err == nil && (!info.Mode().IsRegular() || info.Size() > maxKnown) {
		return &version{path: path, exists: true}
	}
	return readVersion(path)
}

// keep caches a file. The lock is held.
func (t *tree) keep(v *version) {
	if old := t.known[v.path]; old != nil {
		t.memory -= len(old.data)
	}
	if !v.exists {
		delete(t.known, v.path)
		return
	}
	if t.memory+len(v.data) > maxMemory {
		v = &version{path: v.path, exists: true}
	}
	t.memory += len(v.data)
	t.known[v.path] = v
}

// note caches a file that an operation has changed, so that the change is not attributed to a command.
func (t *tree) note(v *version) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watcher != nil && (t.known[v.path] != nil || strings.HasPrefix(v.path, t.root+"/") && len(t.known) < maxFiles) {
		t.keep(readKnown(v.path))
	}
}

// changed returns the changes since the last call.
func (t *tree) changed() []Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watcher == nil || !t.watcher.Pending() {
		return nil
	}
	paths := map[string]bool{}
	for range 16 { // limits the time for a program that never stops writing
		events, err := t.watcher.Read(time.Time{}) // does not wait, since events are pending
		if err != nil {
			break
		}
		for _, e := range events {
			t.take(e, paths)
		}
		if !t.watcher.Pending() {
			break
		}
	}
	var out []Change
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		before := t.known[path]
		if before == nil {
			before = &version{path: path}
		}
		after := readKnown(path)
		if !before.exists && after.exists && len(t.known) >= maxFiles {
			continue
		}
		c := changeOf(before, after)
		t.keep(after)
		if c != nil && len(out) < maxChanges {
			out = append(out, *c)
		}
	}
	for i := range out { // the line of an entry has a limited length
		share := maxShown / len(out)
		out[i].Diff, out[i].Content = shortenTo(out[i].Diff, min(maxDiff, share*2/3)), shortenTo(out[i].Content, min(maxContent, share/3))
	}
	return out
}

// take adds the files of an event. The lock is held.
func (t *tree) take(e inotify.Event, paths map[string]bool) {
	add := func(path string) {
		if len(paths) < maxFiles {
			paths[path] = true
		}
	}
	switch dir, ok := t.folders[e.WD]; {
	case e.Mask&unix.IN_Q_OVERFLOW != 0: // anything may have changed
		for path := range t.known {
			add(path)
		}
		t.scan(t.root, add)
	case e.Mask&unix.IN_IGNORED != 0:
		delete(t.folders, e.WD)
	case !ok || e.Name == "":
	case e.Mask&unix.IN_ISDIR == 0:
		add(filepath.Join(dir, e.Name))
	case e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 && !skipFolder(e.Name):
		t.scan(filepath.Join(dir, e.Name), add)
	case e.Mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		below := filepath.Join(dir, e.Name) + "/"
		for path := range t.known {
			if strings.HasPrefix(path, below) {
				add(path)
			}
		}
	}
}

func (t *tree) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened = true
	if t.watcher != nil {
		t.watcher.Close()
		t.watcher = nil
	}
}
