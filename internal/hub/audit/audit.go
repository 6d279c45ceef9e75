package audit

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
)

// Ops lists the operations.
func (r *Recorder) Ops() []op.Op {
	return []op.Op{
		op.Stream[TailIn, auditlog.Line](op.Spec{Name: "audit_tail", Route: "GET /api/v1/audit", Tag: "audit",
			Access: op.AccessAdmin, ReadOnly: true,
			Doc: "Stream the latest lines of the audit log as server-sent events: caller, operation, sandbox, " +
				"time and result. With follow, the stream continues with new lines."}, r.Tail),
		op.New(op.Spec{Name: "audit_verify", Tool: "verifyAudit", Route: "GET /api/v1/audit/verify", Tag: "audit",
			Access: op.AccessAdmin, ReadOnly: true, NoVerb: true,
			Doc: "Verify the audit log and report the first line that was changed, removed, moved or truncated, if any."}, r.Verify),
	}
}

// TailIn selects lines.
type TailIn struct {
	Sandbox string  `query:"sandbox" default:"" doc:"Only lines about this sandbox, by name or ID"`
	Log     string  `query:"log" default:"all" enum:"all,changes,requests" doc:"Log of changes to the hub, log of other requests, or both"`
	User    string  `query:"user" default:"" doc:"Only lines of this tenant"`
	Search  string  `query:"q" default:"" doc:"Only lines that contain this text, such as an operation or a status"`
	Minutes float64 `query:"minutes" default:"0" minimum:"0" doc:"Only lines of the last minutes; 0: all"`
	Lines   int     `query:"lines" default:"1000" minimum:"0" maximum:"100000" doc:"Maximum number of latest lines; 0: all"`
	Follow  bool    `query:"follow" default:"false" doc:"Continue with new lines as they are written"`
}

// dirs returns the directories of the logs that a request selects.
func (r *Recorder) dirs(log string) ([]string, error) {
	if r.Dir == "" {
		return nil, op.Errorf(op.Invalid, "the audit log of this hub is disabled; enable it with the setting audit")
	}
	switch {
	case r.RequestsDir == "" || log == "changes":
		return []string{r.Dir}, nil
	case log == "requests":
		return []string{r.RequestsDir}, nil
	}
	return []string{r.Dir, r.RequestsDir}, nil
}

// Tail sends the lines of both logs, ordered by time.
func (r *Recorder) Tail(ctx context.Context, in TailIn, send func(op.Event) error) error {
	dirs, err := r.dirs(in.Log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.Life, cancel)()
	f := auditlog.Filter{Sandbox: in.Sandbox, Tenant: in.User, Text: in.Search}
	if in.Minutes > 0 {
		f.Since = time.Now().Add(-time.Duration(in.Minutes * float64(time.Minute)))
	}
	type at struct {
		dir  int
		line auditlog.Line
	}
	var kept []at
	for i, dir := range dirs {
		lines, err := lastLines(ctx, dir, f, in.Lines)
		if err != nil {
			return err
		}
		for _, l := range lines {
			kept = append(kept, at{i, l})
		}
	}
	slices.SortStableFunc(kept, func(a, b at) int { return a.line.Time.Compare(b.line.Time) })
	if in.Lines > 0 {
		kept = kept[max(0, len(kept)-in.Lines):]
	}
	var mu sync.Mutex
	last := make([]uint64, len(dirs)) // sequence number of the last line sent
	pass := func(i int, l auditlog.Line) error {
		mu.Lock()
		defer mu.Unlock()
		if l.Seq <= last[i] {
			return nil
		}
		last[i] = l.Seq
		return send(op.Event{ID: strconv.FormatUint(l.Seq, 10), Name: "line", Data: l})
	}
	since := make([]time.Time, len(dirs))
	for i := range since {
		since[i] = f.Since
	}
	for _, k := range kept {
		if err := pass(k.dir, k.line); err != nil {
			return err
		}
		since[k.dir] = k.line.Time
	}
	if !in.Follow {
		return nil
	}
	results := make(chan error, len(dirs))
	for i, dir := range dirs {
		own := f
		own.Follow, own.Since = true, since[i]
		go func() { results <- auditlog.Tail(ctx, dir, own, func(l auditlog.Line) error { return pass(i, l) }) }()
	}
	for range dirs {
		if one := <-results; one != nil && err == nil {
			err = one
			cancel()
		}
	}
	return err
}

// lastLines returns the last lines of a log that match a filter; 0: all.
func lastLines(ctx context.Context, dir string, f auditlog.Filter, most int) ([]auditlog.Line, error) {
	f.Follow = false
	var kept []auditlog.Line
	err := auditlog.Tail(ctx, dir, f, func(l auditlog.Line) error {
		if kept = append(kept, l); most > 0 && len(kept) >= 2*most {
			kept = slices.Clone(kept[len(kept)-most:])
		}
		return nil
	})
	if most > 0 {
		kept = kept[max(0, len(kept)-most):]
	}
	return kept, err
}

// Verify checks both logs completely, and that they contain the last line that this hub has written:
// an older copy of a log has valid hashes.
func (r *Recorder) Verify(ctx context.Context, _ op.None) (auditlog.Report, error) {
	dirs, err := r.dirs("all")
	if err != nil {
		return auditlog.Report{}, err
	}
	var first auditlog.Report
	for i, log := range []*auditlog.Log{r.Log, r.Requests}[:len(dirs)] {
		check := auditlog.Check{Dir: dirs[i], Key: r.Key}
		if log != nil {
			check.Known = log.Last()
		}
		report, err := auditlog.Verify(ctx, check)
		if err != nil {
			return auditlog.Report{}, err
		}
		if i == 0 {
			first = report
		}
		if report.Problem != nil {
			return report, nil
		}
	}
	return first, nil
}
