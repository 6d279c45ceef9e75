package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// recover locks the directory, finds the end of the log and removes a partially written line after it.
func (l *Log) recover() error {
	dir := l.cfg.Dir
	err := os.MkdirAll(dir, 0o700)
	if err != nil {
		return err
	}
	if l.lock, err = takeLock(dir); err != nil {
		return err
	}
	files, err := listFiles(dir)
	if err != nil {
		return err
	}
	if err := l.openHead(len(files) == 0); err != nil {
		return err
	}
	h := l.head.now
	h.File = max(h.File, 1) // older logs start with 0
	if err := removeOld(dir, h.Gone.Seq); err != nil {
		return err
	}
	l.written = h.position
	if len(files) == 0 && h.Seq == 0 {
		l.file, err = createFile(dir, h.File)
	} else {
		err = l.findEnd(h, files)
	}
	if err != nil {
		return err
	}
	return l.sync()
}

// openHead opens the head file, or creates it for a new log.
func (l *Log) openHead(isNew bool) error {
	h, err := readHead(l.cfg.Dir, l.cfg.Key)
	isNew = isNew && h.Hash == ""
	switch {
	case err == nil:
	case errors.Is(err, ErrKey):
		return err
	case isNew:
		h = head{position: position{Mark: Mark{Hash: genesis}, File: 1}, Gone: Mark{Hash: genesis}, Keyed: len(l.cfg.Key) > 0}
	case h.Hash == "":
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	default: // one valid record is enough
		l.reportTorn(recordSize, "one of the two records of the head file")
	}
	l.head = headFile{key: l.cfg.Key, now: h}
	l.head.file, err = os.OpenFile(filepath.Join(l.cfg.Dir, headName), os.O_RDWR|os.O_CREATE, 0o600)
	for range 2 {
		if err == nil && isNew {
			err = l.head.write(h.position, h.Gone)
		}
	}
	return err
}

// reportTorn queues a line about data that a crash left.
func (l *Log) reportTorn(size int64, text string) {
	l.cfg.Log.Warn("audit log was torn by a crash", "bytes", size)
	_, _, _ = l.add(Line{Kind: KindTorn, Count: uint64(size), Text: text}, true)
}

// findEnd follows the chain from the line that the head names to the last good line,
// which becomes the end of the log.
func (l *Log) findEnd(h head, files []uint64) (err error) {
	i := slices.Index(files, h.File)
	if i < 0 {
		return fmt.Errorf("%w: %s is missing", ErrDamaged, fileName(h.File))
	}
	v := verifier{Check: Check{Dir: l.cfg.Dir, Key: l.cfg.Key}, head: h}
	switch v.at.File = h.File; {
	case h.Offset == 0:
		v.at = h.position
	case h.Start > 0:
		v.at.Seq, v.at.Offset = h.Seq-1, h.Start
	default:
		v.at.Seq = h.File - 1
	}
	if err := v.readFiles(context.Background(), files[i:]); err != nil {
		return err
	}
	v.checkEnd(nil)
	last := files[len(files)-1]
	if last == v.at.Seq+1 {
		v.at = position{Mark: v.at.Mark, File: last}
	}
	// A problem at the very end, after the line that the head names, is a torn write.
	if v.at.Seq < h.Seq || v.at.File != last {
		return fmt.Errorf("%w: %v", ErrDamaged, v.report.Problem)
	}
	l.written = v.at
	l.file, err = os.OpenFile(filepath.Join(l.cfg.Dir, fileName(last)), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return l.cutTorn()
}

// cutTorn removes an incomplete line from the end of the log. The head does not cover it, but it can help an
// investigation: if it does not fit into a line, it is moved to a file.
func (l *Log) cutTorn() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	start, size := l.written.Offset, info.Size()-l.written.Offset
	if size == 0 {
		return nil
	}
	text := make([]byte, min(size, maxText))
	if _, err := l.file.ReadAt(text, start); err != nil {
		return err
	}
	if size > maxText {
		name := filepath.Join(l.cfg.Dir, tornName(l.written.Seq+1))
		err := atomicfile.Replace(name, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
			_, err := io.Copy(f, io.NewSectionReader(l.file, start, size))
			return err
		})
		if err != nil {
			return fmt.Errorf("save the torn end of the log: %w", err)
		}
	}
	l.reportTorn(size, string(text))
	return l.file.Truncate(start)
}
