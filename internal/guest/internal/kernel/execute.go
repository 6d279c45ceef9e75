package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultGrace is how long an interrupted cell may take to end.
	defaultGrace = 5 * time.Second
	// restTime is how long to wait for the second half of a cell's end, the reply or the
	// idle status, before probing the kernel. After an interrupt it is often lost.
	restTime            = 2 * time.Second
	restTimeInterrupted = 200 * time.Millisecond
	// shortestPause is the minimum time between two interrupts of one cell.
	shortestPause = 100 * time.Millisecond
)

// Request is a cell to run.
type Request struct {
	Code string
	// Silent suppresses the result and the history entry.
	Silent bool
	// NoHistory keeps the cell out of In, Out and the execution count.
	NoHistory bool
	// Grace is how long the cell may take to end after an interrupt; 0: 5 s.
	Grace time.Duration

	expressions map[string]string // evaluated after the code
}

func (r Request) content() any {
	expressions := r.expressions
	if expressions == nil {
		expressions = map[string]string{}
	}
	return map[string]any{
		"code": r.Code, "silent": r.Silent, "store_history": !r.NoHistory && !r.Silent,
		"user_expressions": expressions, "allow_stdin": false,
		// With true the kernel might reject the next cell as queued behind a failed one.
		"stop_on_error": false,
	}
}

// Reply is the result of a cell.
type Reply struct {
	Status         string // "ok" or "error"; "aborted" if it ended without a reply; "" if it did not end
	ExecutionCount int
	EName, EValue  string
	Traceback      []string
	// Dropped is how many bytes of output are missing from what was emitted.
	Dropped int64
	// Exit says that the cell made the kernel exit, for example with exit().
	Exit bool
	// MessageID is the protocol's ID of the request.
	MessageID string

	expressions map[string]expression
}

// expression is the result of a Request's expression.
type expression struct {
	Status string `json:"status"`
	EName  string `json:"ename"`
	EValue string `json:"evalue"`
}

// Execute runs a cell and calls emit, which may be nil, for its outputs, in order and from
// this goroutine. Cells of one kernel run one after the other.
//
// If ctx ends or emit fails, the cell is interrupted and has some time to end. The kernel
// and its variables are kept, and the error wraps the cause. The error is ErrUnresponsive
// if the cell did not end, an *ExitError if the kernel died, ErrClosed if it was closed.
// The reply is filled as far as known. A failed cell is not an error: see Status.
func (k *Kernel) Execute(ctx context.Context, req Request, emit func(Output) error) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, fmt.Errorf("run a cell: %w", context.Cause(ctx))
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-k.dead:
		return Reply{}, k.err
	case <-ctx.Done():
		return Reply{}, fmt.Errorf("wait for the previous cell: %w", context.Cause(ctx))
	}
	p, forget := k.expect(newSink(k.cfg.OutputLimit), req.Silent)
	defer forget()
	c := &execution{k: k, p: p, emit: emit, grace: req.Grace,
		unread: make(chan struct{}), over: make(chan struct{})}
	c.reply.MessageID = p.id
	if c.grace <= 0 {
		c.grace = defaultGrace
	}
	err := k.send(k.shell, p, "execute_request", req.content())
	if err == nil {
		err = c.wait(ctx)
	}
	rest, dropped := p.sink.finish()
	c.reply.Dropped = dropped
	c.deliver(rest)
	if err == nil {
		err = c.emitErr
	}
	return c.reply, err
}

// execution is the run of one cell.
type execution struct {
	k       *Kernel
	p       *pending
	emit    func(Output) error
	emitErr error
	reply   Reply

	replied, idled bool
	ended          error       // why it was interrupted
	canceled       atomic.Bool // interrupted because ctx ended
	grace          time.Duration

	unread  chan struct{} // closed when emit fails
	over    chan struct{} // closed when wait returns
	helpers sync.WaitGroup

	graceOver, missing <-chan time.Time // nil: not armed
}

// wait returns when the cell has ended: with a reply on shell and idle on iopub.
func (c *execution) wait(ctx context.Context) error {
	defer c.helpers.Wait() // a late interrupt must not hit the next cell
	defer close(c.over)
	c.helpers.Go(func() { c.interruptWith(ctx) })
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	done, idle, misses := ctx.Done(), c.p.idle, 0
	var passed <-chan struct{}
	for !c.idled || !c.replied {
		select {
		case <-c.p.sink.ready:
			if c.deliver(c.p.sink.take()); c.emitErr != nil && c.ended == nil {
				close(c.unread)
				c.end(c.emitErr)
			}
		case m := <-c.p.reply:
			c.handleReply(m)
			c.expectRest()
		case <-idle:
			idle, c.idled = nil, true
			c.expectRest()
		case <-c.missing:
			c.missing, passed = nil, c.probe()
		case <-passed:
			passed = nil
			if c.collect(); !c.replied {
				c.replied, c.reply.Status = true, "aborted"
			}
			c.idled = true
		case <-done:
			done = nil
			c.end(context.Cause(ctx))
		case <-c.graceOver:
			return fmt.Errorf("%w to an interrupt: %w", ErrUnresponsive, c.ended)
		case <-beat.C:
			if c.k.info.Implementation != ipython { // others may respond only between cells, as R does
				continue
			}
			if misses = c.k.heart.check(misses); misses > beatMisses {
				return fmt.Errorf("%w: its process is stopped or starved", ErrUnresponsive)
			}
		case <-c.k.dead:
			// After exit() the cell may have ended; then the next cell reports the death.
			if c.collect(); !c.idled || !c.replied {
				return c.k.err
			}
		}
	}
	if c.ended == nil && c.canceled.Load() { // it ended before the end of ctx was handled
		c.ended = context.Cause(ctx)
	}
	if c.ended != nil {
		return fmt.Errorf("the cell was interrupted: %w", c.ended)
	}
	return nil
}

// interruptWith interrupts the cell when ctx ends or emit fails. It does not wait for emit, which may be
// slow, but until the kernel has started the cell: before that it ignores the signal.
//
// The interrupt is repeated after half of the grace period, and then more and more often: the first one
// may have been lost, but an early second one would disturb the cell's own cleanup.
func (c *execution) interruptWith(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.unread:
	case <-c.over:
		return
	}
	select {
	case <-c.p.began:
	case <-c.over:
		return
	}
	c.canceled.Store(ctx.Err() != nil)
	pause := c.grace / 2
	for again := time.NewTimer(pause); ; again.Reset(pause) {
		c.interrupt()
		select {
		case <-again.C:
			pause = max(pause/2, shortestPause)
		case <-c.p.idle:
			return
		case <-c.over:
			return
		}
	}
}

func (c *execution) interrupt() {
	if err := c.k.Interrupt(); err != nil {
		c.k.log.Debug("interrupt failed", "error", err)
	}
}

// end starts the grace period of an interrupted cell.
func (c *execution) end(why error) {
	if c.ended == nil {
		c.ended, c.graceOver = why, time.After(c.grace)
	}
}

// expectRest limits the wait for the other half of the cell's end. An interrupt in the
// kernel's own code may lose the reply, and a full queue the idle status.
func (c *execution) expectRest() {
	c.missing = time.After(restTime)
	if c.ended != nil {
		c.missing = time.After(restTimeInterrupted)
	}
}

// probe sends other requests until one has a complete reply, and then closes the channel.
// Messages of a channel are ordered, so a missing part of the cell's end was lost.
func (c *execution) probe() <-chan struct{} {
	passed := make(chan struct{})
	c.helpers.Go(func() {
		for !c.k.responds(c.over) {
			select {
			case <-c.over:
				return
			default:
			}
		}
		close(passed)
	})
	return passed
}

// responds reports whether the kernel replies to a request within restTime on both channels.
func (k *Kernel) responds(stop <-chan struct{}) bool {
	p, forget := k.expect(nil, true)
	defer forget()
	if k.send(k.shell, p, "kernel_info_request", struct{}{}) != nil {
		<-stop // the death of the kernel ends the cell
		return false
	}
	limit := time.NewTimer(restTime)
	defer limit.Stop()
	for reply, idle := p.reply, p.idle; reply != nil || idle != nil; {
		select {
		case <-reply:
			reply = nil
		case <-idle:
			idle = nil
		case <-limit.C:
			return false
		case <-stop:
			return false
		}
	}
	return true
}

// collect handles the parts of the cell's end that have arrived.
func (c *execution) collect() {
	select {
	case m := <-c.p.reply:
		c.handleReply(m)
	default:
	}
	select {
	case <-c.p.idle:
		c.idled = true
	default:
	}
}

func (c *execution) deliver(outputs []Output) {
	for _, o := range outputs {
		if c.emit == nil || c.emitErr != nil {
			return
		}
		c.emitErr = c.emit(o)
	}
}

// handleReply handles the reply to the request.
func (c *execution) handleReply(m *message) {
	var r struct {
		Status         string                `json:"status"`
		ExecutionCount int                   `json:"execution_count"`
		EName          string                `json:"ename"`
		EValue         string                `json:"evalue"`
		Traceback      []string              `json:"traceback"`
		Expressions    map[string]expression `json:"user_expressions"`
		Payload        []struct {
			Source     string         `json:"source"`
			Data       map[string]any `json:"data"`
			KeepKernel bool           `json:"keepkernel"`
		} `json:"payload"`
	}
	c.replied = true
	c.reply.Status = "error"
	if m.cut != nil || json.Unmarshal(m.content, &r) != nil {
		c.reply.EName, c.reply.EValue = "Error", "the kernel's reply of "+formatSize(m.size)+" is too long or not JSON"
		return
	}
	e := decodeError(r.EName, r.EValue, r.Traceback)
	c.reply.Status, c.reply.ExecutionCount, c.reply.expressions = r.Status, r.ExecutionCount, r.Expressions
	c.reply.EName, c.reply.EValue, c.reply.Traceback = e.EName, e.EValue, e.Traceback
	for _, p := range r.Payload {
		switch text, _ := p.Data["text/plain"].(string); {
		case p.Source == "ask_exit":
			c.reply.Exit = !p.KeepKernel
		case p.Source == "page" && text != "":
			// A notebook shows it in a pager, for example help.
			c.p.sink.add(Output{
				Type: DisplayData, Data: map[string]any{"text/plain": stripEscapes(text)}, Metadata: map[string]any{},
			}, int64(len(text)))
		}
	}
}
