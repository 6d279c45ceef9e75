package observe

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// Report is an exported report.
type Report struct {
	ReportID  string    `json:"report_id"`
	SessionID *string   `json:"session_id"`
	Reason    string    `json:"reason"`
	CreatedAt time.Time `json:"created_at"`
	Path      string    `json:"path"`
	Size      int64     `json:"size_bytes"`
}

const (
	reportSuffix = ".tar.gz"
	aboutSuffix  = ".json"
	maxReason    = 200
)

// reportName matches the names of reports. No other files are opened.
var reportName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^rep-[a-z0-9]{1,64}$`) })

// ExportIn selects what to export.
type ExportIn struct {
	Key       *string `json:"idempotency_key" maxLength:"128" doc:"A repeated request with the same key returns the same report"`
	SessionID *string `json:"session_id" doc:"Default: the running or last session"`
	Reason    string  `json:"reason" default:"manual" doc:"Reason to include in the report"`
}

// Export writes a report.
func (s *Service) Export(_ context.Context, in ExportIn) (Report, error) {
	if len(in.Reason) > maxReason {
		return Report{}, op.Errorf(op.Invalid, "reason exceeds %d bytes", maxReason)
	}
	s.mu.Lock()
	known, ok := s.keys["export "+op.Value(in.Key)].(Report)
	n := s.session
	s.mu.Unlock()
	if ok && in.Key != nil {
		return known, nil
	}
	if id := op.Value(in.SessionID); id != "" && (n == nil || n.id != id) {
		return Report{}, op.Errorf(op.NotFound, "no such session: %q; only the running or last session can be exported", id)
	}
	rep, err := s.makeReport(n, in.Reason)
	if err != nil {
		return Report{}, op.Errorf(op.Unavailable, "export report: %w", err)
	}
	s.mu.Lock()
	s.remember("export ", in.Key, rep)
	s.mu.Unlock()
	return rep, nil
}

func (s *Service) reportDir() string { return filepath.Join(s.dir(), "reports") }

// makeReport writes the report of a session, or of the current state if n is nil.
func (s *Service) makeReport(n *session, reason string) (Report, error) {
	s.export.Lock()
	defer s.export.Unlock()
	if err := os.MkdirAll(s.reportDir(), 0o700); err != nil {
		return Report{}, err
	}
	rep := Report{ReportID: "rep-" + strings.ToLower(rand.Text()[:16]), Reason: reason, CreatedAt: time.Now()}
	samples, happened := []Sample{s.measure(true)}, s.events.list()
	samples[0].Processes, _ = samples[0].top(maxSessionRows)
	if n != nil {
		rep.SessionID = &n.id
		recorded, noted, err := n.read()
		if err != nil {
			return Report{}, err
		}
		if len(recorded) > 0 {
			samples, happened = recorded, noted
		}
	}
	rep.Path = filepath.Join(s.reportDir(), rep.ReportID+reportSuffix)
	err := atomicfile.Replace(rep.Path, atomicfile.Options{Perm: 0o600},
		func(f *os.File) error { return writeReport(f, rep, samples, happened) })
	if err != nil {
		return Report{}, err
	}
	info, err := os.Stat(rep.Path)
	if err != nil {
		return Report{}, err
	}
	rep.Size = info.Size()
	about, err := json.Marshal(rep)
	if err != nil {
		return Report{}, err
	}
	err = atomicfile.Replace(strings.TrimSuffix(rep.Path, reportSuffix)+aboutSuffix, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
		_, err := f.Write(about)
		return err
	})
	if err != nil {
		os.Remove(rep.Path)
		return Report{}, err
	}
	for _, old := range s.reports()[min(s.cfg.MaxReports, len(s.reports())):] {
		s.remove(old)
	}
	return rep, nil
}

// read returns the samples and events that a session has written so far.
func (n *session) read() (samples []Sample, happened []Event, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, suffix := range []string{olderSuffix, ""} {
		if err := readLines(filepath.Join(n.dir, samplesFile+suffix), &samples); err != nil {
			return nil, nil, err
		}
		if err := readLines(filepath.Join(n.dir, eventsFile+suffix), &happened); err != nil {
			return nil, nil, err
		}
	}
	return samples, happened, nil
}

// readLines decodes the lines of a file, except a last line that is incomplete after a crash.
func readLines[T any](path string, out *[]T) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	dec := json.NewDecoder(bufio.NewReader(f))
	for {
		var v T
		switch err := dec.Decode(&v); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", path, err)
		}
		*out = append(*out, v)
	}
}

// writeReport writes the archive: samples and events as JSON lines, and an HTML page.
func writeReport(w io.Writer, rep Report, samples []Sample, happened []Event) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	add := func(name string, b []byte) error {
		err := t.WriteHeader(&tar.Header{Name: rep.ReportID + "/" + name, Mode: 0o644, Size: int64(len(b)), ModTime: rep.CreatedAt})
		if err == nil {
			_, err = t.Write(b)
		}
		return err
	}
	about, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		body []byte
	}{{"report.json", about}, {samplesFile, jsonLines(samples)}, {eventsFile, jsonLines(happened)},
		{"report.html", page(rep, samples, happened)}} {
		if err := add(f.name, f.body); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func jsonLines[T any](list []T) (out []byte) {
	for _, v := range list {
		if b, err := json.Marshal(v); err == nil {
			out = append(append(out, b...), '\n')
		}
	}
	return out
}

// reports lists the reports on disk, newest first.
func (s *Service) reports() (list []Report) {
	names, _ := filepath.Glob(filepath.Join(s.reportDir(), "rep-*"+aboutSuffix))
	for _, name := range names {
		id := strings.TrimSuffix(filepath.Base(name), aboutSuffix)
		b, err := os.ReadFile(name)
		var rep Report
		if err != nil || json.Unmarshal(b, &rep) != nil || rep.ReportID != id || !reportName().MatchString(id) {
			continue
		}
		rep.Path = filepath.Join(s.reportDir(), id+reportSuffix)
		list = append(list, rep)
	}
	slices.SortFunc(list, func(a, b Report) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return list
}

// Reports lists the reports.
func (s *Service) Reports(context.Context, op.None) ([]Report, error) { return s.reports(), nil }

// ReportIn names a report.
type ReportIn struct {
	ReportID string `path:"report_id" doc:"ID of the report"`
}

func (s *Service) find(id string) (Report, error) {
	for _, rep := range s.reports() {
		if rep.ReportID == id {
			return rep, nil
		}
	}
	return Report{}, op.Errorf(op.NotFound, "no such report: %.80q; list reports with GET /v1/sandbox/observe/reports", id)
}

// Download returns the archive of a report.
func (s *Service) Download(_ context.Context, in ReportIn) (*op.Blob, error) {
	rep, err := s.find(in.ReportID)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(rep.Path)
	if err != nil {
		return nil, op.Errorf(op.NotFound, "the file of report %q was deleted: %w", in.ReportID, err)
	}
	return &op.Blob{Type: "application/gzip", Name: rep.ReportID + reportSuffix, Size: rep.Size, ModTime: rep.CreatedAt, Body: f}, nil
}

// Delete deletes a report.
func (s *Service) Delete(_ context.Context, in ReportIn) (Report, error) {
	rep, err := s.find(in.ReportID)
	if err == nil {
		s.remove(rep)
	}
	return rep, err
}

func (s *Service) remove(rep Report) {
	base := filepath.Join(s.reportDir(), rep.ReportID)
	os.Remove(base + reportSuffix)
	os.Remove(base + aboutSuffix)
}
