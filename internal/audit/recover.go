package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/cove-sandbox/cove/internal/atomicfile"
)

// torn is what a crash left half written.
type torn struct {
	bytes uint64
	text  string
}

// recover takes the folder, finds the end of the log and takes out what a crash left
// half written behind it.
func (l *Log) recover() error {
	dir := l.cfg.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var err error
	if l.lock, err = takeLock(dir); err != nil {
		return err
	}
	if err = removeTemps(dir); err != nil {
		return err
	}
	if l.files, err = listFiles(dir); err != nil {
		return err
	}
	if err := l.openHead(); err != nil {
		return err
	}
	if err := l.removeGone(); err != nil {
		return err
	}
	l.at = l.head.now.place()
	l.synced = l.at
	if len(l.files) == 0 {
		if l.at.seq > 0 {
			return fmt.Errorf("%w: its files are gone, up to line %d; move the folder aside to begin anew", ErrDamaged, l.at.seq)
		}
		l.at.file, l.at.offset = l.at.seq+1, 0
		if l.file, err = createFile(dir, l.at.file); err != nil {
			return err
		}
		l.files = []uint64{l.at.file}
	} else if err := l.findEnd(); err != nil {
		return err
	}
	l.written, l.synced = l.at, l.at
	if err := syncData(l.file); err != nil {
		return err
	}
	l.writeHead(l.head.now.Gone, true)
	if l.torn != nil {
		l.cfg.Log.Warn("audit log was torn by a crash", "bytes", l.torn.bytes)
		poke(l.wake)
	}
	return nil
}

func (l *Log) openHead() error {
	name := filepath.Join(l.cfg.Dir, headName)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if len(l.files) > 0 {
			return fmt.Errorf("%w: its head file is gone; move the folder aside to begin anew", ErrDamaged)
		}
		if err := createHead(l.cfg.Dir, l.cfg.Key); err != nil {
			return err
		}
		f, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	if err != nil {
		return err
	}
	l.head = &headFile{f: f, chain: newChain(l.cfg.Key)}
	h, err := readHead(f, l.cfg.Key)
	switch {
	case errors.Is(err, ErrKey):
		return err
	case err != nil && h.Hash == "":
		return fmt.Errorf("%w: %w; see what verify says, and move the folder aside to begin anew", ErrDamaged, err)
	case err != nil:
		// A log that one record still vouches for goes on, and says so.
		l.torn = &torn{bytes: slot, text: "one of the two records of the head file"}
	}
	l.head.now = h
	return nil
}

// removeGone finishes giving away old files, and what was moved aside from them.
func (l *Log) removeGone() error {
	aside, err := filepath.Glob(filepath.Join(l.cfg.Dir, asidePrefix+"*"))
	if err != nil {
		return err
	}
	for _, name := range aside {
		if filepath.Base(name) <= asideName(l.head.now.Gone.Seq) {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	for len(l.files) > 1 && l.files[1] <= l.head.now.Gone.Seq+1 {
		if err := os.Remove(filepath.Join(l.cfg.Dir, fileName(l.files[0]))); err != nil {
			return err
		}
		l.files = l.files[1:]
	}
	return nil
}

// findEnd follows the chain from the line that the head vouches for to its last good
// line, which becomes the end of the log.
func (l *Log) findEnd() error {
	from := slices.Index(l.files, l.at.file)
	if l.at.file == 0 { // nothing was ever synced
		from = 0
	}
	if from < 0 {
		return fmt.Errorf("%w: %s is gone; move the folder aside to begin anew", ErrDamaged, fileName(l.at.file))
	}
	for i, first := range l.files[from:] {
		f, err := os.OpenFile(filepath.Join(l.cfg.Dir, fileName(first)), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if l.file != nil {
			l.file.Close()
		}
		l.file = f
		if i > 0 || l.at.file == 0 {
			if first != l.at.seq+1 {
				return fmt.Errorf("%w: %s does not follow line %d", ErrDamaged, fileName(first), l.at.seq)
			}
			l.at.file, l.at.offset = first, 0
		}
		if i == 0 {
			if err := l.checkHeadLine(); err != nil {
				return err
			}
		}
		left, err := l.follow()
		if err != nil {
			return err
		}
		if left == 0 {
			continue
		}
		if first != l.files[len(l.files)-1] {
			return fmt.Errorf("%w: %s was changed after line %d", ErrDamaged, fileName(first), l.at.seq)
		}
		if err := l.cutTorn(left); err != nil {
			return err
		}
	}
	return nil
}

// checkHeadLine compares the line that the head vouches for with the one in the file.
func (l *Log) checkHeadLine() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	name := filepath.Base(l.file.Name())
	if info.Size() < l.at.offset {
		return fmt.Errorf("%w: %s was cut below line %d", ErrDamaged, name, l.at.seq)
	}
	if l.at.offset == 0 {
		return nil
	}
	b := make([]byte, min(l.at.offset, maxLine))
	if _, err := l.file.ReadAt(b, l.at.offset-int64(len(b))); err != nil {
		return err
	}
	if b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
		b = b[bytes.LastIndexByte(b, '\n')+1:]
		if k, err := l.chain.open(b); err == nil && k.seq == l.at.seq && k.sum == l.at.hash {
			return nil
		}
	}
	return fmt.Errorf("%w: line %d in %s was changed", ErrDamaged, l.at.seq, name)
}

// follow takes the good lines of the current file and returns how many bytes are left
// behind them.
func (l *Log) follow() (left int64, err error) {
	s := newScanner(l.file, l.at.offset)
	for {
		line, whole, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		k, err := l.chain.open(line)
		if !whole || err != nil || k.seq != l.at.seq+1 || k.prev != l.at.hash {
			break
		}
		l.at.seq, l.at.hash, l.at.offset = k.seq, k.sum, s.offset
	}
	info, err := l.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size() - l.at.offset, nil
}

// asideName is that of a file for what was taken out before a line.
func asideName(seq uint64) string { return fmt.Sprintf("%s%020d", asidePrefix, seq) }

const asidePrefix = "torn-"

// cutTorn takes what is no line off the end of the log. The head never vouched for it,
// but it may be of use to somebody: what does not fit into a line is moved to a file.
func (l *Log) cutTorn(size int64) error {
	text := make([]byte, min(size, maxText))
	if _, err := l.file.ReadAt(text, l.at.offset); err != nil {
		return err
	}
	if size > maxText {
		name := filepath.Join(l.cfg.Dir, asideName(l.at.seq+1))
		err := atomicfile.Replace(name, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
			_, err := io.Copy(f, io.NewSectionReader(l.file, l.at.offset, size))
			return err
		})
		if err != nil {
			return fmt.Errorf("move a torn end aside: %w", err)
		}
	}
	if err := l.file.Truncate(l.at.offset); err != nil {
		return err
	}
	l.torn = &torn{bytes: uint64(size), text: string(text)}
	return nil
}
