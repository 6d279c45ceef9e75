package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killWait bounds the wait of Stop after KILL. A process that sleeps in
	// the kernel for longer cannot be ended.
	killWait = 10 * time.Second
	// pollPause is the longest pause between two checks whether a group has
	// ended, for which the kernel has no event.
	pollPause = 25 * time.Millisecond
)

// Exit is how a process ended.
type Exit struct {
	Code   int            // 128+n when signal n ended it
	Signal syscall.Signal // 0 when it exited by itself
}

// notEnded is the exit of a process that has not ended.
var notEnded = Exit{Code: -1}

func exitOf(status syscall.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	return Exit{Code: status.ExitStatus()}
}

func (e Exit) String() string {
	switch {
	case e.Signal != 0:
		name := unix.SignalName(e.Signal)
		if name == "" {
			name = fmt.Sprintf("signal %d", int(e.Signal))
		}
		return "ended by " + name
	case e.Code == 0:
		return "ended normally"
	case e.Code < 0:
		return "still running"
	}
	return fmt.Sprintf("ended with code %d", e.Code)
}

// Process is a started command and the process group it leads.
type Process struct {
	r            *Runner
	pid          int
	path         string
	started      time.Time
	grace        time.Duration
	session, tty bool
	slot         int // in the guard's table
	in           *input
	outs         []*output
	done         chan struct{}
	settled      chan struct{} // closed when the waiting goroutine has ended
	terminated   atomic.Bool   // Stop has sent TERM

	mu     sync.Mutex // held while signaling, so that the child is not reaped meanwhile
	exit   Exit
	reaped bool
	ended  bool   // reaped, and its group (session) has no living member
	limit  uint64 // boot ticks at which it was reaped
}

// PID is the process id of the child, and the id of its group.
func (p *Process) PID() int { return p.pid }

// Done is closed when the child was reaped and its output copied. Neither
// background processes nor a blocked writer delay it.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the child ended. Before Done its code is -1.
func (p *Process) Exit() Exit {
	select {
	case <-p.done:
		return p.exit
	default:
		return notEnded
	}
}

// Wait waits for Done. The context bounds the wait, not the process.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return notEnded, fmt.Errorf("wait for %s: %w", p.path, context.Cause(ctx))
	}
}

// begin starts the goroutines of the process.
func (p *Process) begin() {
	if p.in != nil {
		go p.in.copy()
	}
	for _, o := range p.outs {
		go func() {
			o.copy()
			select {
			case <-p.done:
				p.settle()
			default: // wait settles
			}
		}()
	}
	go p.wait()
}

// wait is the only code that waits for the child.
func (p *Process) wait() {
	defer close(p.settled)
	awaitExit(p.pid)
	p.mu.Lock()
	p.exit = collect(p.pid)
	p.reaped = true
	p.limit = bootTicks()
	p.ended = !p.session && groupEmpty(p.pid)
	ended, limit := p.ended, p.limit
	p.mu.Unlock()
	if p.r.guard != nil {
		p.r.guard.markReaped(p, ended, limit)
	}
	if p.in != nil {
		p.in.close()
	}
	drain(p.outs)
	close(p.done)
	p.settle()
}

// settle removes the process from the runner once its group has ended.
func (p *Process) settle() { p.settleIn(processes) }

func (p *Process) settleIn(read func() ([]entry, error)) {
	if !p.emptyIn(read) {
		return
	}
	for _, o := range p.outs {
		if !o.hasEnded() {
			return
		}
	}
	p.r.forget(p)
}

// state returns whether the child was reaped and whether its group is known to have ended.
func (p *Process) state() (reaped, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reaped, p.ended
}

// empty reports whether the child was reaped and its group has no process
// except zombies.
func (p *Process) empty() bool { return p.emptyIn(processes) }

// emptyIn is empty with a table that is read only if necessary, after the
// process was reaped.
func (p *Process) emptyIn(read func() ([]entry, error)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || !p.reaped {
		return p.ended
	}
	if !p.session && groupEmpty(p.pid) {
		p.ended = true
		return true
	}
	table, err := read()
	if err != nil {
		return false
	}
	living, anyone := p.claim().find(table)
	// Reading the table is not atomic: a process may be created meanwhile and
	// missed, so the group itself must be empty, too.
	p.ended = len(living) == 0 && (anyone || groupEmpty(p.pid))
	return p.ended
}

func (p *Process) claim() claim {
	return claim{number: p.pid, session: p.session, limit: p.limit}
}

// Signal signals the whole group. After the child was reaped it signals the rest
// of the group if that is provably the same group; otherwise it returns
// [os.ErrProcessDone].
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	err := p.signal(sig)
	p.mu.Unlock()
	if err == nil || errors.Is(err, syscall.EPERM) {
		p.signalPrivileged(sig)
		err = nil
	}
	return err
}

func (p *Process) signal(sig syscall.Signal) error {
	if p.reaped {
		group := claim{number: p.pid, limit: p.limit}
		table, err := processes()
		if p.ended || err != nil || len(group.members(table)) == 0 {
			return fmt.Errorf("signal %s: %w", p.path, os.ErrProcessDone)
		}
	}
	if err := syscall.Kill(-p.pid, sig); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			err = os.ErrProcessDone
		}
		return fmt.Errorf("signal %s: %w", p.path, err)
	}
	return nil
}

// SignalNewest signals the process group of the last process that the child has started, unless it
// was started before the given time or has no separate group. It returns the group, or 0.
func (p *Process) SignalNewest(sig syscall.Signal, since time.Time) (group int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := bootTicks()
	first -= min(first, uint64(max(0, time.Since(since))/tick)+1)
	table, err := processes()
	if p.reaped || err != nil {
		return 0
	}
	var newest entry
	for _, e := range table {
		if e.parent == p.pid && !e.zombie && e.group != p.pid && e.start >= max(first, newest.start) {
			newest = e
		}
	}
	for _, e := range table {
		if newest.group != 0 && e.group == newest.group {
			signalIfOwned(e, sig, func(now entry) bool { return now.group == newest.group })
		}
	}
	return newest.group
}

// signalAll signals the other groups of the session, too.
func (p *Process) signalAll(sigs ...syscall.Signal) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.signalOwn(sigs)
	}
	p.mu.Unlock()
	for _, sig := range sigs {
		if !ended {
			p.signalPrivileged(sig)
		}
	}
}

// signalOwn signals the processes that this process may signal.
func (p *Process) signalOwn(sigs []syscall.Signal) {
	var members []entry
	if p.session {
		if table, err := processes(); err == nil {
			members = p.claim().members(table)
		}
	}
	for _, sig := range sigs {
		// An error means that it has ended or has another user; the caller checks which processes remain.
		_ = p.signal(sig)
		for _, m := range members {
			if m.group != p.pid {
				signalIfOwned(m, sig, p.claim().covers)
			}
		}
	}
}

// Stop ends the group: TERM, then KILL after the grace. For a session that means
// all of its groups. It returns when the child was reaped, its group has ended and
// its output is copied, even if a daemon still holds the pipe. Concurrent calls
// are allowed. A process that KILL does not end within 10 s is logged; its
// code is then -1.
func (p *Process) Stop() Exit {
	if p.grace > 0 && !p.over() {
		if p.terminated.CompareAndSwap(false, true) {
			if p.tty {
				p.signalAll(syscall.SIGHUP) // interactive shells ignore TERM
			}
			p.signalAll(syscall.SIGTERM, syscall.SIGCONT) // a stopped process cannot handle TERM
		}
		p.await(p.grace)
	}
	return p.Kill()
}

// Kill is Stop without grace.
func (p *Process) Kill() Exit {
	for deadline := time.Now().Add(killWait); !p.over(); {
		if time.Now().After(deadline) {
			p.r.log.Error("process survived SIGKILL", "pid", p.pid, "path", p.path)
			break
		}
		// Repeatedly, because a group can grow while it is being killed.
		p.signalAll(syscall.SIGKILL)
		p.await(4 * pollPause)
	}
	finish(p.outs)
	p.settle()
	select {
	case <-p.done:
		<-p.settled
	default:
	}
	return p.Exit()
}

func (p *Process) over() bool {
	select {
	case <-p.done:
		return p.empty()
	default:
		return false
	}
}

// await waits until the process has ended, at most for limit.
func (p *Process) await(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return
	}
	for pause := time.Millisecond; !p.empty(); pause = min(2*pause, pollPause) {
		select {
		case <-time.After(pause):
		case <-timer.C:
			return
		}
	}
}
