package hub

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/audit"
	"github.com/cove-sandbox/cove/internal/op"
)

// auditOps show what was written down.
func (h *Hub) auditOps() []op.Op {
	return []op.Op{
		op.Stream[TailIn, audit.Line](op.Spec{Name: "audit_tail", Route: "GET /api/v1/audit", Tag: "audit", Access: op.AccessAdmin, ReadOnly: true,
			Doc: "Read the end of the audit log, as server-sent events: who did what to which sandbox, when, with which result. With follow it goes on with what happens next."}, h.Tail),
		op.New(op.Spec{Name: "audit_verify", Route: "GET /api/v1/audit/verify", Tag: "audit", Access: op.AccessAdmin, ReadOnly: true, NoVerb: true,
			Doc: "Verify the audit log: name the first line that was changed, removed, moved or cut off, if any."}, h.Verify),
	}
}

// TailIn selects lines.
type TailIn struct {
	Sandbox string  `query:"sandbox" default:"" doc:"Only of this sandbox, by name or id"`
	User    string  `query:"user" default:"" doc:"Only of this tenant"`
	Minutes float64 `query:"minutes" default:"0" minimum:"0" doc:"Only of the last so many minutes; 0: all that is kept"`
	Lines   int     `query:"lines" default:"1000" minimum:"0" maximum:"100000" doc:"Only the last so many lines; 0: all"`
	Follow  bool    `query:"follow" default:"false" doc:"Go on with what happens next"`
}

func (h *Hub) auditDir() (string, error) {
	if h.cfg.AuditDir == "" {
		return "", op.Errorf(op.Invalid, "this hub keeps no audit log")
	}
	return h.cfg.AuditDir, nil
}

// Tail sends the lines.
func (h *Hub) Tail(ctx context.Context, in TailIn, send func(op.Event) error) error {
	dir, err := h.auditDir()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.life, cancel)()
	f := audit.Filter{Sandbox: in.Sandbox, Tenant: in.User, Follow: in.Follow}
	if in.Minutes > 0 {
		f.Since = time.Now().Add(-time.Duration(in.Minutes * float64(time.Minute)))
	}
	var last uint64 // that was sent
	give := func(l audit.Line) error {
		if l.Seq <= last {
			return nil
		}
		last = l.Seq
		return send(op.Event{ID: strconv.FormatUint(l.Seq, 10), Name: "line", Data: l})
	}
	if in.Lines > 0 {
		kept, err := end(ctx, dir, f, in.Lines)
		if err != nil {
			return err
		}
		for _, l := range kept {
			if err := give(l); err != nil {
				return err
			}
			f.Since = l.Time
		}
		if !in.Follow {
			return nil
		}
	}
	return audit.Tail(ctx, dir, f, give)
}

// end returns the last lines of a log that a filter wants.
func end(ctx context.Context, dir string, f audit.Filter, most int) ([]audit.Line, error) {
	f.Follow = false
	var kept []audit.Line
	err := audit.Tail(ctx, dir, f, func(l audit.Line) error {
		if kept = append(kept, l); len(kept) >= 2*most {
			kept = slices.Clone(kept[len(kept)-most:])
		}
		return nil
	})
	return kept[max(0, len(kept)-most):], err
}

// Verify checks the whole log.
func (h *Hub) Verify(ctx context.Context, _ None) (audit.Report, error) {
	dir, err := h.auditDir()
	if err != nil {
		return audit.Report{}, err
	}
	return audit.Verify(ctx, audit.Check{Dir: dir, Key: h.cfg.AuditKey})
}
