package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
)

// marks are the last lines of the audit logs, stored outside of the folders of the logs. They detect that
// a log was replaced by an older copy, whose hashes are valid.
type marks struct {
	Changes  auditlog.Mark `json:"changes"`
	Requests auditlog.Mark `json:"requests"`
}

// markEvery is the interval in which marks are stored.
const markEvery = 10 * time.Second

// checkMarks compares the logs with the stored marks. It records differences in the log, and so at its
// receivers.
func (s *stores) checkMarks(log *slog.Logger) error {
	b, err := os.ReadFile(s.marks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var known marks
	if err == nil {
		err = json.Unmarshal(b, &known)
	}
	if err != nil {
		log.Error("cannot read marks of audit logs", "path", s.marks, "error", err)
		return nil
	}
	for _, l := range []struct {
		name  string
		log   *auditlog.Log
		known auditlog.Mark
	}{{"changes", s.audit, known.Changes}, {"requests", s.requests, known.Requests}} {
		last := l.log.Last()
		if last.Seq > l.known.Seq || last == l.known {
			continue
		}
		log.Error("audit log is older than its mark: lines were removed, or it was replaced by an old copy",
			"log", l.name, "last", last.Seq, "known", l.known.Seq)
		if err := s.audit.Append(auditlog.Entry{Role: "hub", Op: "audit_replaced",
			Name: fmt.Sprintf("log of %s ends at line %d, but its mark is line %d with hash %s", l.name, last.Seq,
				l.known.Seq, l.known.Hash)}); err != nil {
			return err
		}
	}
	return nil
}

func (s *stores) saveMarks() error {
	b, err := json.Marshal(marks{s.audit.Last(), s.requests.Last()})
	if err != nil {
		return err
	}
	return atomicfile.Replace(s.marks, atomicfile.Options{}, func(f *os.File) error { _, err := f.Write(b); return err })
}

// keepMarks stores the marks periodically until ctx ends.
func (s *stores) keepMarks(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for {
		if err := s.saveMarks(); err != nil {
			log.Error("cannot store marks of audit logs", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
