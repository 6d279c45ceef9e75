package hub

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/audit"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// record is where all that is done is written down. What need not be on disk
// at once is handed over a little later, many lines together: a call then pays
// for little more than a copy.
type record struct {
	log   *audit.Log // nil: nowhere
	limit refusals

	mu     sync.Mutex
	closed bool
	notes  []audit.Entry
	timer  *time.Timer
}

const (
	// noteDelay is how long a note waits for others.
	noteDelay = 5 * time.Millisecond
	// maxNotes is how many do at most.
	maxNotes = 256
)

// gone ends a wait before it begins: the entry is queued, within the log's
// bounds, and nobody waits for the disk.
var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// note writes down what need not be on disk before the caller is answered. What
// is lost is counted and told by the log itself.
func (r *record) note(e audit.Entry) {
	if r.log == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, e)
	switch {
	case r.closed || len(r.notes) >= maxNotes:
		r.hand()
	case len(r.notes) > 1: // the first one has set the timer
	case r.timer == nil:
		r.timer = time.AfterFunc(noteDelay, r.flush)
	default:
		r.timer.Reset(noteDelay)
	}
}

// hand gives the log what waits; mu is held.
func (r *record) hand() {
	for _, e := range r.notes {
		_ = r.log.Append(gone, e)
	}
	r.notes = r.notes[:0]
}

func (r *record) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hand()
}

// close lets nothing wait any more.
func (r *record) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.hand()
}

// keep returns when an entry is in the file, where the end of the hub cannot lose
// it; the log brings it to the disk within its Sync. To wait for the disk would
// double the time that a sandbox takes to come.
func (r *record) keep(e audit.Entry) error {
	if r.log == nil {
		return nil
	}
	r.flush() // lines stand in the order in which things happened
	if err := r.log.Append(context.Background(), e); err != nil && !errors.Is(err, audit.ErrUnsure) {
		return err
	}
	return nil
}

// refusals bounds how many refused requests of strangers are written down: who
// is not let in must not be able to fill the log with it.
type refusals struct {
	now func() time.Time

	mu     sync.Mutex
	second int64
	n      int
}

// perSecond is how many are.
const perSecond = 20

func (r *refusals) take() bool {
	now := r.now().Unix()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now != r.second {
		r.second, r.n = now, 0
	}
	r.n++
	return r.n <= perSecond
}

func entryOf(call *op.Call, name string) audit.Entry {
	return audit.Entry{Tenant: call.Subject, KeyID: call.KeyID, Role: call.Role, Op: name, Sandbox: call.Target, Name: call.TargetName}
}

// codeOf is the kind of an error, and the status that it would have.
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
	return e.Code, statusOf(e.Code)
}

// unrecorded deals with what was done and could not be written down. A sandbox
// that nobody can know of must not stay.
func (h *Hub) unrecorded(name string, call *op.Call, err error) error {
	if (name == createOp || name == createTool) && call.Target != "" {
		if gone := h.cfg.Provider.Delete(h.life, call.Target); gone == nil {
			h.drop(call.Target)
		}
		return &op.Error{Code: op.Unavailable, RetryAfter: retryExhausted, Err: err,
			Msg: "the sandbox was deleted again, since it could not be written down in the audit log; tell the operator of this hub"}
	}
	return &op.Error{Code: op.Unavailable, RetryAfter: retryExhausted, Err: err,
		Msg: "this was done, but could not be written down in the audit log; tell the operator of this hub"}
}

// recorded makes an operation that changes something be written down before it
// is answered.
func (h *Hub) recorded(o op.Op) op.Op {
	if o.Call == nil || o.ReadOnly {
		return o
	}
	run := o.Call
	o.Call = func(ctx context.Context, in any) (any, error) {
		began := time.Now()
		out, err := run(ctx, in)
		call := op.CallOf(ctx)
		e := entryOf(call, o.Name)
		code, status := codeOf(err)
		e.Code, e.Status, e.Took = string(code), status, time.Since(began)
		call.Recorded = true
		if err != nil {
			h.audit.note(e) // nothing was changed
			return out, err
		}
		if lost := h.audit.keep(e); lost != nil {
			return nil, h.unrecorded(o.Name, call, lost)
		}
		return out, nil
	}
	return o
}

// toolDone writes down a call of a tool: a change of a sandbox's life before it
// is answered, a call into one afterwards. It returns the call's own error, if any.
func (h *Hub) toolDone(o op.Op, call *op.Call, in int64, began time.Time, err error) error {
	e := entryOf(call, "mcp:"+o.Name)
	e.Path = call.Detail
	code, status := codeOf(err)
	e.Code, e.Status, e.In, e.Took = string(code), status, in, time.Since(began)
	if o.ReadOnly || o.Name == executor || err != nil {
		h.audit.note(e)
		return err
	}
	if lost := h.audit.keep(e); lost != nil {
		return h.unrecorded(o.Name, call, lost)
	}
	return nil
}

// Visit is a request that is over, as the server saw it.
type Visit struct {
	Request *http.Request
	Call    *op.Call
	Op      string
	Status  int
	In, Out int64
	Took    time.Duration
}

// Served writes down a request that is not written down already.
func (h *Hub) Served(v Visit) {
	call := v.Call
	switch {
	case h.audit.log == nil || call.Recorded:
		return
	case v.Op == toolsOp && v.Status < 400:
		return // each tool is a call of its own
	case call.Role == "" && v.Status < 400:
		return // public, such as the question whether the hub lives
	case call.Role == "" && !h.audit.limit.take():
		h.counts.skipped(1)
		return
	}
	e := entryOf(call, v.Op)
	e.Status, e.Code, e.In, e.Out, e.Took = v.Status, string(call.Code), v.In, v.Out, v.Took
	if v.Op == proxyOp || v.Op == "" {
		e.Method, e.Path = v.Request.Method, v.Request.URL.Path
	}
	h.audit.note(e)
}

// acted writes down what the hub did by itself.
func (h *Hub) acted(what string, sb sandbox.Sandbox) {
	err := h.audit.keep(audit.Entry{Tenant: sb.Spec.Owner, Role: "hub", Op: what, Sandbox: sb.ID, Name: sb.Spec.Name, Status: http.StatusOK})
	if err != nil {
		h.cfg.Log.Error("cannot write down what the hub did", "what", what, "sandbox", sb.ID, "error", err)
	}
}
