package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Limits of the mode ask, for one sandbox.
const (
	askWait    = time.Minute      // for approval
	maxAsked   = 32               // waiting hosts
	maxWaiting = 64               // waiting connections
	askPause   = 2 * time.Second  // between new hosts, after maxAsked
	askGrant   = 5 * time.Minute  // of an approval without a rule
	askReject  = 10 * time.Minute // of a rejection
	maxAnswers = 1000             // approvals and rejections that are remembered
)

// Pending is a host that waits for approval.
type Pending struct {
	Host    string
	Port    int
	Program string // the first, by the name that it sent
	Since   time.Time
	Until   time.Time
	Waiting int // connections
}

// question is a host that waits for approval.
type question struct {
	Pending
	timer    *time.Timer
	answered chan struct{} // closed when err is set
	err      error         // nil: approved
}

// Approvals owns the hosts that wait for approval in the mode ask, and the answers.
type Approvals struct {
	asked   func(Pending) // called for each new host
	rejects func()        // called after a rejection
	wait    time.Duration

	mu       sync.Mutex
	closed   bool
	waiting  int
	open     map[target]*question
	granted  map[target]time.Time // until when new connections are allowed
	rejected map[target]time.Time
	full     time.Time // when as many new hosts as possible may be asked again
}

// askable reports whether a refused connection may wait for approval.
func (r *Rules) askable(host string, err error) bool {
	return r.mode == sandbox.NetworkAsk && isUnmatched(err) && isTarget(host)
}

// permit returns what allows connections to a host, like decide. In mode ask it waits for approval.
func (p *policy) permit(ctx context.Context, host string, port int, program string) (rule string, err error) {
	if rule, err = p.decide(host, port); err == nil || !p.rules.Load().askable(host, err) {
		return rule, err
	}
	if err = p.Approvals.ask(ctx, target{host, port}, program); err != nil {
		return "", err
	}
	// The rules may have changed meanwhile, and decide about what was approved.
	return p.decide(host, port)
}

// ask waits until a connection is approved.
func (a *Approvals) ask(ctx context.Context, to target, program string) error {
	q, isNew, err := a.join(to, program)
	if err != nil {
		return err
	}
	if isNew && a.asked != nil {
		a.asked(q.Pending)
	}
	select {
	case <-q.answered:
		err = q.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	q.Waiting--
	return err
}

// join adds a connection to those that wait for a host.
func (a *Approvals) join(to target, program string) (q *question, isNew bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if until := a.rejected[to]; until.After(now) {
		return nil, false, to.deny(fmt.Sprintf("its owner denied it; this is remembered until %s UTC", until.UTC().Format(time.TimeOnly)))
	}
	q = a.open[to]
	if a.full.Before(now) {
		a.full = now
	}
	switch {
	case a.closed:
		return nil, false, net.ErrClosed
	case a.waiting >= maxWaiting, q == nil && len(a.open) >= maxAsked, q == nil && a.full.Sub(now) > (maxAsked-1)*askPause:
		return nil, false, to.deny("no rule matches, and too many connections wait for approval")
	case q == nil:
		isNew = true
		a.full = a.full.Add(askPause)
		q = &question{Pending: Pending{Host: to.host, Port: to.port, Program: program, Since: now, Until: now.Add(a.wait)},
			answered: make(chan struct{})}
		q.timer = time.AfterFunc(a.wait, func() {
			a.answer(func(t target, open *question) error {
				if open != q {
					return errUnanswered
				}
				return to.deny(fmt.Sprintf("no rule matches, and its owner did not approve it within %v", a.wait))
			})
		})
		a.open[to] = q
	}
	a.waiting++
	q.Waiting++
	return q, isNew, nil
}

// deny explains why a connection is not approved.
func (t target) deny(why string) error {
	at := net.JoinHostPort(t.host, strconv.Itoa(t.port))
	return &deniedError{why: fmt.Sprintf("this sandbox must not connect to %s: %s", at, why),
		fix: "its owner can allow it with cove egress allow NAME " + at}
}

// errUnanswered leaves a question open.
var errUnanswered = fmt.Errorf("not answered")

// answer answers the questions for which decide does not return errUnanswered, and returns their number. A
// nil error approves.
func (a *Approvals) answer(decide func(target, *question) error) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for t, q := range a.open {
		err := decide(t, q)
		if errors.Is(err, errUnanswered) {
			continue
		}
		q.err = err
		q.timer.Stop()
		close(q.answered)
		delete(a.open, t)
		n++
	}
	return n
}

// List returns the hosts that wait for approval, the oldest first.
func (a *Approvals) List() []Pending {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []Pending{}
	for _, q := range a.open {
		out = append(out, q.Pending)
	}
	slices.SortFunc(out, func(x, y Pending) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Host, y.Host), x.Port-y.Port)
	})
	return out
}

// Approve allows new connections to a host and port for a few minutes, and those that wait. It returns
// until when.
func (a *Approvals) Approve(host string, port int) (until time.Time, err error) {
	until, err = a.remember(&a.granted, target{host, port}, askGrant)
	if err == nil {
		a.answer(func(t target, _ *question) error {
			if t != (target{host, port}) {
				return errUnanswered
			}
			return nil
		})
	}
	return until, err
}

// Reject refuses connections to a host and port, and those that wait, for a few minutes.
func (a *Approvals) Reject(host string, port int) error {
	to := target{host, port}
	until, err := a.remember(&a.rejected, to, askReject)
	if err != nil {
		return err
	}
	a.mu.Lock()
	delete(a.granted, to)
	a.mu.Unlock()
	a.answer(func(t target, _ *question) error {
		if t != to {
			return errUnanswered
		}
		return to.deny(fmt.Sprintf("its owner denied it; this is remembered until %s UTC", until.UTC().Format(time.TimeOnly)))
	})
	a.rejects()
	return nil
}

// remember stores an answer.
func (a *Approvals) remember(in *map[target]time.Time, to target, d time.Duration) (until time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if *in == nil {
		*in = map[target]time.Time{}
	}
	if len(*in) >= maxAnswers {
		for t, until := range *in {
			if until.Before(now) {
				delete(*in, t)
			}
		}
	}
	if len(*in) >= maxAnswers {
		return until, fmt.Errorf("limit of %d answers reached; add a rule instead", maxAnswers)
	}
	delete(a.rejected, to)
	until = now.Add(d)
	(*in)[to] = until
	return until, nil
}

// approved reports whether new connections to a host are approved.
func (a *Approvals) approved(host string, port int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.granted[target{host, port}].After(time.Now())
}

// wasApproved reports whether connections to a host were approved, even if new ones are not.
func (a *Approvals) wasApproved(host string, port int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.granted[target{host, port}]
	return ok
}

// reset applies new rules: questions that they decide are answered, and in another mode all answers are
// forgotten.
func (a *Approvals) reset(r *Rules) {
	if r.mode != sandbox.NetworkAsk {
		a.mu.Lock()
		a.granted, a.rejected = nil, nil
		a.mu.Unlock()
	}
	a.answer(func(t target, _ *question) error {
		if err := r.Allow(t.host, t.port); !r.askable(t.host, err) {
			return err
		}
		return errUnanswered
	})
}

// close refuses all connections that wait.
func (a *Approvals) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.answer(func(target, *question) error { return net.ErrClosed })
}
