package tenant

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
)

const (
	// lookEvery is the interval of checks for changes of a file.
	lookEvery = time.Second
	// settled is the age after which the modification time of a file identifies its content, because
	// clocks of file systems are coarse.
	settled = 2 * time.Second

	maxFile  = 8 << 20
	lockWait = 10 * time.Second
)

// mirror is a copy of a file in memory, at most a second old. Unreadable content does not change it; the
// error is logged once and kept.
type mirror[T any] struct {
	path  string                   // with resolved links in its folder
	parse func([]byte) (*T, error) // nil: no file
	// keepLost keeps the content when the file is deleted.
	keepLost bool
	log      *slog.Logger
	now      func() time.Time

	content atomic.Pointer[T]
	next    atomic.Int64 // time of the next check, in Unix nanoseconds

	writing sync.Mutex // held longer than mu, so that readers do not wait for other processes

	mu    sync.Mutex
	there bool  // the file exists
	seen  stamp // of the content that was read last, valid or not
	fault error
}

// stamp identifies the state of a file.
type stamp struct {
	dev, ino       uint64
	size           int64
	mtime, ctime   int64
	unsettled      bool // it was too new when it was read, or could not be read
	missing, fresh bool // fresh: not read yet
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.ctime = st.Dev, st.Ino, st.Ctim.Nano()
	}
	return s
}

// open reads the file for the first time, and fails if it is invalid. It resolves links in the folder,
// because all processes must use the same lock. The file itself can be a link, whose target can change.
func (m *mirror[T]) open(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	m.path = path
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen.fresh = true
	m.look()
	return m.fault
}

// get returns the content. With hurry it checks the file even right after a check.
func (m *mirror[T]) get(hurry bool) *T {
	now := m.now().UnixNano()
	next := m.next.Load()
	// A clock that was set back must not delay the next check.
	if hurry || now >= next || next-now > int64(lookEvery) {
		if hurry {
			m.mu.Lock()
		} else if !m.mu.TryLock() {
			return m.content.Load() // another goroutine is checking it
		}
		m.look()
		m.mu.Unlock()
	}
	return m.content.Load()
}

func (m *mirror[T]) problem() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

// change replaces the content of the file with the result of edit, under the lock; nil means no change. It
// does not overwrite an invalid file or recreate a deleted one.
func (m *mirror[T]) change(edit func(*T) ([]byte, error)) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return err
	}
	unlock, err := lock(m.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	content, err := m.reread()
	if err != nil {
		return fmt.Errorf("%w; nothing was changed; repair the file and retry", err)
	}
	text, err := edit(content)
	if err != nil || text == nil {
		return err
	}
	return m.write(text)
}

// reread reads the file even if it seems unchanged.
func (m *mirror[T]) reread() (*T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = stamp{fresh: true}
	m.look()
	return m.content.Load(), m.fault
}

// look reads the file if it changed. mu is held.
func (m *mirror[T]) look() {
	defer func() { m.next.Store(m.now().Add(lookEvery).UnixNano()) }()
	info, err := os.Stat(m.path)
	now := stamp{missing: true}
	if err == nil {
		now = stampOf(info)
	}
	if before := m.seen; !before.unsettled && before == now {
		return
	}
	was := m.fault
	now.unsettled = err == nil && time.Since(info.ModTime()) < settled
	m.seen = now
	if err = m.load(err); err == nil {
		m.fault = nil
		if was != nil {
			m.log.Info("file is valid again", "path", m.path)
		}
		return
	}
	m.fault = fmt.Errorf("read %s: %w", m.path, err)
	if was == nil || was.Error() != m.fault.Error() {
		m.log.Error("file is invalid; its last valid content stays in force", "path", m.path, "error", err)
	}
}

// load parses the file, given the result of its stat.
func (m *mirror[T]) load(err error) error {
	var text []byte
	if err == nil {
		text, err = readFile(m.path)
		// The reason can be temporary, such as too many open files.
		m.seen.unsettled = m.seen.unsettled || err != nil
	}
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && m.there && m.keepLost:
		return errors.New("the file was deleted; restore it")
	case missing:
		text = nil
	case err != nil:
		return err
	}
	parsed, err := m.parse(text)
	if err != nil {
		return err
	}
	m.content.Store(parsed)
	m.there = !missing
	return nil
}

func readFile(path string) ([]byte, error) {
	// A FIFO in its place must not block.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", atomicfile.Kind(info.Mode()))
	case info.Mode().Perm()&0o002 != 0:
		return nil, errors.New("all users can write to it; run chmod o-w on it")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile)) // truncated if it grew meanwhile, which makes it invalid
	if err == nil && len(text) == 0 {
		err = errors.New("the file is empty")
	}
	return text, err
}

// write replaces the file and the content.
func (m *mirror[T]) write(text []byte) error {
	parsed, err := m.parse(text)
	if err != nil {
		return err
	}
	path, err := atomicfile.Follow(m.path)
	if err != nil {
		return err
	}
	// Keep the mode, because an operator may have created the file.
	made := false
	if err := os.Chmod(path, 0o600); errors.Is(err, fs.ErrNotExist) {
		made = true
	} else if err != nil {
		return err
	}
	err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		if made {
			chownLike(f, filepath.Dir(path))
		}
		_, err := f.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.content.Store(parsed)
	m.there, m.fault = true, nil
	m.seen = stamp{fresh: true}
	m.next.Store(0)
	return nil
}

// chownLike sets the owner of a new file to that of its folder, so that a hub that runs as another user can
// read a file that root created on the command line.
func chownLike(f *os.File, dir string) {
	if os.Geteuid() != 0 {
		return
	}
	if info, err := os.Stat(dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(st.Uid), int(st.Gid)) // best effort: a hub that runs as root can read it anyway
		}
	}
}

// lock waits for an exclusive lock of the lock file. The file is never removed, because waiting processes
// would lock another one.
func lock(path string) (unlock func(), err error) {
	const flags = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW
	f, err := os.OpenFile(path, flags|os.O_EXCL, 0o600)
	if err == nil {
		chownLike(f, filepath.Dir(path))
	} else if f, err = os.OpenFile(path, flags, 0o600); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(2 * time.Millisecond) {
		switch err = lockfile.TryLock(f); {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, lockfile.ErrLocked):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case time.Now().After(deadline):
			f.Close()
			return nil, fmt.Errorf("lock %s: held by another process for %v; stop that process and retry", path, lockWait)
		}
	}
}
