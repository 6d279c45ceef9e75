package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Filter selects lines. It includes lines about the log itself, unless a sandbox or a tenant is set.
type Filter struct {
	Sandbox string    // id or name
	Tenant  string    // required for a tenant's own view: sandbox names are not unique
	Since   time.Time // zero: from the first remaining line
	Text    string    // in any text of a line, case-insensitive
	Follow  bool      // wait for new lines until ctx is done
}

func (f Filter) matches(l Line) bool {
	switch {
	case l.Kind != "" && f.Sandbox+f.Tenant != "",
		f.Sandbox != "" && l.Sandbox != f.Sandbox && l.Name != f.Sandbox,
		f.Tenant != "" && l.Tenant != f.Tenant:
		return false
	}
	return !l.Time.Before(f.Since) && (f.Text == "" || l.contains(strings.ToLower(f.Text)))
}

// contains reports whether a text of the line contains one in lower case.
func (l Line) contains(text string) bool {
	for _, s := range []string{l.Op, l.Name, l.Sandbox, l.Tenant, l.KeyID, l.Role, l.Method, l.Path, l.Code, l.Kind,
		l.Text, strconv.Itoa(l.Status)} {
		if strings.Contains(strings.ToLower(s), text) {
			return true
		}
	}
	return false
}

const (
	// pollInterval is the interval in which a follower checks for new lines.
	pollInterval = 100 * time.Millisecond
	// clockSlack is how far the clock can be set back without skipped lines.
	clockSlack = time.Hour
)

// Tail calls fn with the matching lines of a log in order, without verification. The log can be open. It
// returns the error of fn; if following, it returns nil when ctx is done. If files are pruned before a
// follower has read them, it returns an error with the first missed line.
func Tail(ctx context.Context, dir string, filter Filter, fn func(Line) error) error {
	t := tail{dir: dir, filter: filter, fn: fn}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := t.drain(ctx)
		if filter.Follow && ctx.Err() != nil {
			return nil
		}
		if err != nil || !filter.Follow {
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
	file   uint64 // being read; 0: none yet
	offset int64
	next   uint64 // sequence number of the next line
}

// drain passes on all existing lines.
func (t *tail) drain(ctx context.Context) error {
	for {
		// Listed before reading: a file that has a successor by now is complete.
		files, err := listFiles(t.dir)
		if err == nil && len(files) == 0 {
			_, err = os.Stat(filepath.Join(t.dir, headName))
		}
		if err != nil {
			return fmt.Errorf("read the audit log in %q: %w", t.dir, err)
		}
		if t.next == 0 { // no line was read yet
			if len(files) == 0 {
				return nil
			}
			t.file = t.firstFile(files)
		}
		_, err = eachLine(t.dir, t.file, t.offset, func(b []byte, end int64) error {
			l, err := parse(b)
			if err != nil {
				return fmt.Errorf("%s after line %d: %w", fileName(t.file), t.next-1, err)
			}
			t.offset, t.next = end, l.Seq+1
			if t.filter.matches(l) {
				if err := t.fn(l); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
		if errors.Is(err, os.ErrNotExist) && t.next == 0 {
			continue // pruned after it was listed
		}
		if err != nil {
			return err
		}
		i, _ := slices.BinarySearch(files, t.file+1)
		if i == len(files) {
			return nil
		}
		if files[i] != t.next {
			return fmt.Errorf("read the audit log: line %d is missing: it was pruned before it was read, or removed", t.next)
		}
		t.file, t.offset = t.next, 0
	}
}

// firstFile returns the first file that can have lines after Since.
func (t *tail) firstFile(files []uint64) uint64 {
	for early := t.filter.Since.Add(-clockSlack); len(files) > 1; files = files[1:] {
		isEarly, stop := false, errors.New("only the first line counts")
		_, _ = eachLine(t.dir, files[1], 0, func(b []byte, _ int64) error {
			l, err := parse(b)
			isEarly = err == nil && l.Time.Before(early)
			return stop
		})
		if !isEarly {
			break
		}
	}
	return files[0]
}
