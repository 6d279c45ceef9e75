package templatestore

import (
	"bufio"
	"encoding/json"
	"os"
	"time"
)

// Entry is a line of the log of a build. Its text is untrusted.
type Entry struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"`
	Step  string    `json:"step,omitempty"`
	Text  string    `json:"text"`
}

// The limits of a log.
const (
	maxEntries = 20_000
	maxText    = 8 << 10
	maxLog     = 4 << 20
)

// buildLog is the log of a running build.
type buildLog struct {
	file    *os.File
	entries []Entry
	size    int
	cut     bool
	changed chan struct{}
}

// BeginLog creates the log of a build, so that clients can wait for its first line.
func (s *Store) BeginLog(owner, build string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginLog(owner, build)
}

func (s *Store) beginLog(owner, build string) *buildLog {
	l := s.logs[build]
	if l != nil {
		return l
	}
	l = &buildLog{changed: make(chan struct{})}
	s.logs[build] = l
	f, err := os.OpenFile(s.path(owner, "b-"+build+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		s.log.Warn("the log of a build is kept only in memory", "build", build, "error", err)
		return l
	}
	l.file = f
	return l
}

// Append adds a line to the log of a build. At the limit, it adds one line that says so, and then nothing but errors.
func (s *Store) Append(owner, build string, e Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.beginLog(owner, build)
	if len(e.Text) > maxText {
		e.Text = e.Text[:maxText]
	}
	e.Time = time.Now().UTC()
	if len(l.entries) >= maxEntries || l.size > maxLog {
		if l.cut && e.Level != "error" || len(l.entries) > maxEntries+100 {
			return
		}
		if !l.cut {
			e.Text, e.Level, l.cut = "the output is truncated", "warn", true
		}
	}
	l.entries = append(l.entries, e)
	l.size += len(e.Text)
	if b, err := json.Marshal(e); err == nil && l.file != nil {
		if _, err := l.file.Write(append(b, '\n')); err != nil {
			s.log.Warn("the log of a build is kept only in memory", "build", build, "error", err)
			l.file.Close()
			l.file = nil
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (s *Store) closeLog(build string) {
	l := s.logs[build]
	if l == nil {
		return
	}
	if l.file != nil {
		l.file.Close()
	}
	close(l.changed)
	delete(s.logs, build)
}

// Entries returns lines of the log of a build from a number on, and a channel that is closed when there are more; nil
// after the last line.
func (s *Store) Entries(owner, build string, from, limit int) ([]Entry, <-chan struct{}) {
	s.mu.Lock()
	var all []Entry
	var changed <-chan struct{}
	l := s.logs[build]
	if l != nil {
		all, changed = l.entries, l.changed
	}
	path := s.path(owner, "b-"+build+".log")
	s.mu.Unlock()
	if l == nil {
		all = readLog(path)
	}
	from = min(max(from, 0), len(all))
	return all[from:min(from+limit, len(all))], changed
}

func readLog(path string) (all []Entry) {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 8*maxText)
	for lines.Scan() && len(all) < maxEntries+200 {
		var e Entry
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}
