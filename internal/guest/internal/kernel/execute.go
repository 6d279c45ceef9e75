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
	// restTime is how long half of a cell's end may be missing before we look for
	// it; after an interrupt, which often is the reason, less.
	restTime            = 2 * time.Second
	restTimeInterrupted = 200 * time.Millisecond
	// shortestPause is the least between two interrupts of one cell.
	shortestPause = 100 * time.Millisecond
)

// Request is a cell to run.
type Request struct {
	Code string
	// Silent cells show no result and leave no trace in the history.
	Silent bool
	// NoHistory keeps the cell out of In, Out and the execution count.
	NoHistory bool
	// Grace is how long the cell may take to end after an interrupt: 5s when 0.
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
		// Nothing is queued behind a cell, and with true the kernel may take the
		// next one for such and refuse it.
		"stop_on_error": false,
	}
}

// Reply is how a cell ended.
type Reply struct {
	Status         string // "ok" or "error"; "aborted" if it ended without saying how; "" if it did not end
	ExecutionCount int
	EName, EValue  string
	Traceback      []string
	// Dropped is how many bytes of output are missing from what was emitted.
	Dropped int64
	// Exit says that the cell told the kernel to end, as exit() does. It will.
	Exit bool
	// MessageID is the protocol's name for the request.
	MessageID string

	expressions map[string]expression
}

// expression is what became of a Request's expression.
type expression struct {
	Status string `json:"status"`
	EName  string `json:"ename"`
	EValue string `json:"evalue"`
}

// Execute runs a cell and hands its outputs to emit, in order, from this
// goroutine; emit may be nil. Cells of one kernel wait for each other.
//
// When ctx ends, or emit fails, the cell is interrupted and gets some time to
// end: the kernel and its variables are kept, and the error wraps what ended it.
// The error is ErrUnresponsive if it did not end, a *DeathError if the kernel
// died, ErrClosed if it was closed. The reply holds what is known in any case. A
// cell that fails is no error: see Status.
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
	c := &execution{k: k, p: p, emit: emit, grace: req.Grace, over: make(chan struct{})}
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
	cut            atomic.Bool // interrupted because its caller left
	grace, pause   time.Duration

	over    chan struct{} // closed when nobody waits any more
	helpers sync.WaitGroup

	graceOver, again, missing <-chan time.Time // nil: not yet of interest
}

// wait returns when the cell is over: answered on shell and idle on iopub.
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
				c.interrupt()
				c.end(c.emitErr)
			}
		case m := <-c.p.reply:
			c.handleReply(m)
			c.expectRest()
		case <-idle:
			idle, c.idled = nil, true
			c.expectRest()
		case <-c.missing:
			c.missing, passed = nil, c.waitForOthers()
		case <-passed:
			passed = nil
			if c.collect(); !c.replied {
				c.replied, c.reply.Status = true, "aborted"
			}
			c.idled = true
		case <-done:
			done = nil
			c.end(context.Cause(ctx))
		case <-c.again:
			c.interrupt()
			c.pause = max(c.pause/2, shortestPause)
			c.again = time.After(c.pause)
		case <-c.graceOver:
			return fmt.Errorf("%w to an interrupt: %w", ErrUnresponsive, c.ended)
		case <-beat.C:
			if misses = c.k.heart.check(misses); misses > beatMisses {
				return fmt.Errorf("%w: its process is stopped or starved", ErrUnresponsive)
			}
		case <-c.k.dead:
			// After exit() the cell may be over: then death is the next one's concern.
			if c.collect(); !c.idled || !c.replied {
				return c.k.err
			}
		}
	}
	if c.ended == nil && c.cut.Load() { // its end came in before its caller's was looked at
		c.ended = context.Cause(ctx)
	}
	if c.ended != nil {
		return fmt.Errorf("the cell was interrupted: %w", c.ended)
	}
	return nil
}

// interruptWith interrupts the cell when ctx ends. It does not wait for emit,
// which may be slow, but for the kernel to take the cell up: before, it would
// ignore the signal.
func (c *execution) interruptWith(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.over:
		return
	}
	select {
	case <-c.p.began:
		c.cut.Store(true)
		c.interrupt()
	case <-c.over:
	}
}

func (c *execution) interrupt() {
	if err := c.k.Interrupt(); err != nil {
		c.k.log.Debug("interrupt failed", "error", err)
	}
}

// end begins the time that an interrupted cell has left. It is interrupted again
// when half of that is over, and then ever sooner: the first may have been lost,
// but to repeat it early would cut short what the cell does about it.
func (c *execution) end(why error) {
	if c.ended == nil {
		c.ended, c.pause = why, c.grace/2
		c.graceOver, c.again = time.After(c.grace), time.After(c.pause)
	}
}

// expectRest gives the other half of the cell's end some time to come. It may
// never: an interrupt between the lines of the kernel's own code makes it forget
// the reply, and a full queue makes it throw away the rest.
func (c *execution) expectRest() {
	c.missing = time.After(restTime)
	if c.ended != nil {
		c.missing = time.After(restTimeInterrupted)
	}
}

// waitForOthers sends other requests until one is answered in full. On each channel
// answers come in order, so what of ours has not come by then does not exist.
func (c *execution) waitForOthers() <-chan struct{} {
	passed := make(chan struct{})
	c.helpers.Go(func() {
		for !c.k.watchTurns(c.over) {
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

// watchTurns tells whether the kernel answers a request within restTime on both channels.
func (k *Kernel) watchTurns(stop <-chan struct{}) bool {
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

// collect takes in what has come of the cell's end.
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

// handleReply takes in the reply to the request.
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
			// What a notebook opens a pager for: help and the like.
			c.p.sink.add(Output{
				Type: DisplayData, Data: map[string]any{"text/plain": stripEscapes(text)}, Metadata: map[string]any{},
			}, int64(len(text)))
		}
	}
}
