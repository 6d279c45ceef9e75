// Package audit records the operations of a hub in its audit log and as traces.
//
// A change is recorded before its caller gets a reply. A change that cannot be recorded is reported as
// failed; an unrecorded sandbox is deleted. Reads and rejections are recorded asynchronously.
package audit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// Config of a Recorder.
type Config struct {
	Log *auditlog.Log // of changes; nil: nothing is recorded
	Dir string        // of the log; empty: no log to read
	Key []byte
	// Requests is the log of requests that do not change the hub, mainly proxied ones, so that they
	// never push changes out of the log; nil: one log for both.
	Requests    *auditlog.Log
	RequestsDir string
	// Creates lists the operations that create one sandbox. Discard deletes it if the create cannot be
	// recorded.
	Creates []string
	Discard func(id string)
	// Separate is an operation whose calls are recorded individually, not by request.
	Separate string
	// Life ends with the hub, and ends all readers that follow the log.
	Life context.Context
	// Proxies is the operation whose requests are recorded with method and path.
	Proxies string

	Tracer  *span.Tracer // nil: no traces
	Metrics *metric.Registry
	Logger  *slog.Logger
}

// Recorder records operations.
type Recorder struct {
	Config
	refusals refusals
	requests shares
	changes  shares
	skipped  func(n float64, values ...string)
}

// New returns a recorder.
func New(cfg Config) *Recorder {
	r := &Recorder{Config: cfg, refusals: refusals{now: time.Now},
		requests: shares{rate: requestRate, burst: requestBurst, now: time.Now},
		changes:  shares{rate: changeRate, burst: changeBurst, now: time.Now}}
	r.skipped = cfg.Metrics.Counter("cove_audit_skipped_total",
		"Requests that were not recorded because of the limits for unauthenticated callers and tenants.")
	cfg.Metrics.Gauge("cove_audit_lost", "Entries lost by the audit log since the start.", "", func() map[string]float64 {
		if cfg.Log == nil {
			return map[string]float64{"": 0}
		}
		lost := cfg.Log.Lost()
		if cfg.Requests != nil {
			lost += cfg.Requests.Lost()
		}
		return map[string]float64{"": float64(lost)}
	})
	cfg.Metrics.Gauge("cove_spans_dropped", "Spans that could not be delivered since the start.", "", func() map[string]float64 {
		return map[string]float64{"": float64(cfg.Tracer.Dropped())}
	})
	return r
}

// note records an entry asynchronously. The log counts and reports lost entries.
func (r *Recorder) note(e auditlog.Entry) {
	if r.Log != nil {
		r.noteShare(e)
	}
}

// keep returns when an entry is written to the file, so that it survives a crash of the hub. The log
// syncs the file later: waiting for the disk would double the time to create a sandbox.
func (r *Recorder) keep(e auditlog.Entry) error {
	if r.Log == nil {
		return nil
	}
	if err := r.Log.Append(e); err != nil && !errors.Is(err, auditlog.ErrPending) {
		return err
	}
	return nil
}

// refusals limits how many rejected requests of unauthenticated callers are recorded, so that they
// cannot fill the log.
type refusals struct {
	now func() time.Time

	mu     sync.Mutex
	second int64
	n      int
}

// maxRefusals is the maximum number of them per second.
const maxRefusals = 20

func (r *refusals) take() bool {
	now := r.now().Unix()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now != r.second {
		r.second, r.n = now, 0
	}
	r.n++
	return r.n <= maxRefusals
}

func newEntry(call *op.Call, name string) auditlog.Entry {
	return auditlog.Entry{Tenant: call.Subject, KeyID: call.KeyID, Role: call.Role, Op: name, Sandbox: call.Target, Name: call.TargetName}
}

// codeOf returns the code of an error and the status of its reply.
func codeOf(err error) (code op.Code, status int) {
	if err == nil {
		return "", http.StatusOK
	}
	if _, ok := errors.AsType[op.Faults](err); ok {
		return op.Invalid, http.StatusUnprocessableEntity
	}
	e, ok := op.AsError(err)
	if !ok {
		return op.Internal, http.StatusInternalServerError
	}
	return e.Code, e.Code.HTTPStatus()
}

// unrecorded handles a change that succeeded but could not be recorded.
func (r *Recorder) unrecorded(name string, call *op.Call, err error) error {
	message := "the operation succeeded but could not be recorded in the audit log; contact the operator of this hub"
	for _, create := range r.Creates {
		if name == create && call.Target != "" {
			r.Discard(call.Target)
			message = "the sandbox was deleted because it could not be recorded in the audit log; contact the operator of this hub"
		}
	}
	return &op.Error{Code: op.Unavailable, RetryAfter: fault.RetryExhausted, Err: err, Msg: message}
}

// Record wraps a changing operation so that it is recorded before its caller gets a reply.
func (r *Recorder) Record(o op.Op) op.Op {
	if o.Call == nil || o.ReadOnly {
		return o
	}
	run := o.Call
	o.Call = func(ctx context.Context, in any) (any, error) {
		began := time.Now()
		call := op.CallOf(ctx)
		if err := r.MayChange(call.Subject); err != nil {
			return nil, err
		}
		out, err := run(ctx, in)
		e := newEntry(call, o.Name)
		code, status := codeOf(err)
		e.Code, e.Status, e.TookUS = string(code), status, time.Since(began).Microseconds()
		call.Recorded = true
		if err != nil {
			r.note(e) // nothing was changed
			return out, err
		}
		if lost := r.keep(e); lost != nil {
			return nil, r.unrecorded(o.Name, call, lost)
		}
		return out, nil
	}
	return o
}

// RecordTool records a call of a tool with size bytes of input. It records a change before the caller
// gets a reply, other calls asynchronously. It returns the error of the call, if any.
func (r *Recorder) RecordTool(o op.Op, changes bool, call *op.Call, size int64, began time.Time, err error) error {
	e := newEntry(call, "mcp:"+o.Name)
	e.Path = call.Detail
	code, status := codeOf(err)
	e.Code, e.Status, e.In, e.TookUS = string(code), status, size, time.Since(began).Microseconds()
	if !changes || err != nil {
		r.note(e)
		return err
	}
	if lost := r.keep(e); lost != nil {
		return r.unrecorded(o.Name, call, lost)
	}
	return nil
}

// Visit is a finished request, as the server saw it.
type Visit struct {
	Request *http.Request
	Call    *op.Call
	Op      string
	Status  int
	In, Out int64
	Took    time.Duration
}

// Served records a request, unless its operation is already recorded.
func (r *Recorder) Served(v Visit) {
	call := v.Call
	switch {
	case r.Log == nil || call.Recorded:
		return
	case v.Op == r.Separate && v.Status < 400:
		return
	case call.Role == "" && v.Status < 400:
		return // public, such as a health check
	case call.Role == "" && !r.refusals.take():
		r.skipped(1)
		return
	}
	e := newEntry(call, v.Op)
	e.Status, e.Code, e.In, e.Out, e.TookUS = v.Status, string(call.Code), v.In, v.Out, v.Took.Microseconds()
	if v.Op == r.Proxies || v.Op == "" {
		e.Method, e.Path = v.Request.Method, v.Request.URL.Path
	}
	r.note(e)
}

// Acted records an action that the hub initiated.
func (r *Recorder) Acted(name string, sb sandbox.Sandbox) {
	err := r.keep(auditlog.Entry{Tenant: sb.Spec.Owner, Role: "hub", Op: name, Sandbox: sb.ID, Name: sb.Spec.Name, Status: http.StatusOK})
	if err != nil {
		r.Logger.Error("cannot record an action of the hub", "op", name, "sandbox", sb.ID, "error", err)
	}
}
