package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Filter says which lines Tail gives. Lines that the log writes about itself are given
// when neither a sandbox nor a tenant is asked for.
type Filter struct {
	Sandbox string    // id or name
	Tenant  string    // a tenant's own view must name it: names of sandboxes are not unique
	Since   time.Time // zero: from the first kept line
	Follow  bool      // wait for new lines until ctx is done
}

func (f Filter) wants(l Line) bool {
	switch {
	case l.Kind != "" && f.Sandbox+f.Tenant != "",
		f.Sandbox != "" && l.Sandbox != f.Sandbox && l.Name != f.Sandbox,
		f.Tenant != "" && l.Tenant != f.Tenant:
		return false
	}
	return !l.Time.Before(f.Since)
}

// poll is how often a follower looks for new lines.
const poll = 100 * time.Millisecond

// clockSlack is how far a clock may have been set back without lines being passed over.
const clockSlack = time.Hour

// Tail gives the lines of a log, which may be in use, to fn in their order, from file to
// file. It does not verify them. It ends with fn's error; when following, ctx ends it
// without one. A follower so slow that files were given away before it read them gets
// an error that says which lines it missed.
func Tail(ctx context.Context, dir string, filter Filter, fn func(Line) error) error {
	t := tail{dir: dir, filter: filter, fn: fn}
	defer t.close()
	if err := t.start(); err != nil {
		return fmt.Errorf("read the audit log in %s: %w", dir, err)
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := t.drain(ctx)
		switch {
		case err != nil && ctx.Err() != nil && filter.Follow:
			return nil
		case err != nil || !filter.Follow:
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

type tail struct {
	dir    string
	filter Filter
	fn     func(Line) error
	f      *os.File
	s      *scanner
	next   uint64 // sequence number of the line that comes
}

func (t *tail) close() {
	if t.f != nil {
		t.f.Close()
	}
}

// start opens the first file that can hold a wanted line. Files may be given away while
// it looks.
func (t *tail) start() error {
	for range 5 {
		if err := t.find(); err != nil {
			return err
		}
		f, err := os.Open(filepath.Join(t.dir, fileName(t.next)))
		if err == nil {
			t.f, t.s = f, newScanner(f, 0)
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (t *tail) find() error {
	files, err := listFiles(t.dir)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		if _, err := os.Stat(filepath.Join(t.dir, headName)); err != nil {
			return err
		}
		t.next = 1
		return nil
	}
	for len(files) > 1 && t.olderThanSince(files[1]) {
		files = files[1:]
	}
	t.next = files[0]
	return nil
}

// olderThanSince tells whether a file, and so all before it, begins before Since.
func (t *tail) olderThanSince(first uint64) bool {
	f, err := os.Open(filepath.Join(t.dir, fileName(first)))
	if err != nil {
		return false
	}
	defer f.Close()
	line, whole, err := newScanner(f, 0).next()
	if err != nil || !whole {
		return false
	}
	l, err := parse(line)
	return err == nil && l.Time.Before(t.filter.Since.Add(-clockSlack))
}

// drain gives every line there is.
func (t *tail) drain(ctx context.Context) error {
	for {
		if t.s == nil {
			if open, err := t.open(); err != nil || !open {
				return err
			}
		}
		if err := t.lines(ctx); err != nil {
			return err
		}
		// The next file is made only after this one is finished, but that may have
		// been between reading its end and looking for the next.
		if _, err := os.Lstat(filepath.Join(t.dir, fileName(t.next))); err != nil {
			return t.missed()
		}
		if err := t.lines(ctx); err != nil {
			return err
		}
		if filepath.Base(t.f.Name()) == fileName(t.next) {
			return nil // it is the same one, and empty
		}
		t.f.Close()
		t.f, t.s = nil, nil
	}
}

// open opens the file that begins with the next line, if it is there.
func (t *tail) open() (bool, error) {
	f, err := os.Open(filepath.Join(t.dir, fileName(t.next)))
	if errors.Is(err, os.ErrNotExist) {
		return false, t.missed()
	}
	if err != nil {
		return false, err
	}
	t.f, t.s = f, newScanner(f, 0)
	return true, nil
}

// missed tells whether there are files behind a gap.
func (t *tail) missed() error {
	files, err := listFiles(t.dir)
	if err != nil {
		return err
	}
	if len(files) == 0 || files[len(files)-1] < t.next || slices.Contains(files, t.next) {
		return nil
	}
	return fmt.Errorf("read the audit log: the file with line %d is gone: it was given away before it was read, or removed", t.next)
}

// lines gives the whole lines of the current file from where it was left.
func (t *tail) lines(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, whole, err := t.s.next()
		if errors.Is(err, io.EOF) || err == nil && !whole {
			return nil
		}
		if err != nil {
			return err
		}
		l, err := parse(line)
		if err != nil {
			return fmt.Errorf("%s before line %d: %w", filepath.Base(t.f.Name()), t.next, err)
		}
		t.next = l.Seq + 1
		if !t.filter.wants(l) {
			continue
		}
		if err := t.fn(l); err != nil {
			return err
		}
	}
}
