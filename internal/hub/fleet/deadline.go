package fleet

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Expiry is the time at which the timeout of a sandbox is reached; false: never.
func Expiry(sb sandbox.Sandbox) (time.Time, bool) {
	l := sb.Spec.Lifetime
	if l.Timeout <= 0 {
		return time.Time{}, false
	}
	at := sb.Created.Add(l.Timeout)
	if l.Period == 0 {
		return at, true
	}
	if sb.State != sandbox.Running {
		return time.Time{}, false
	}
	if !sb.Changed.Before(at) {
		at = sb.Changed.Add(l.Period)
	}
	return at, true
}

// canIdle reports whether the idle policy applies to a sandbox in its state.
func canIdle(sb sandbox.Sandbox) bool {
	switch sb.State {
	case sandbox.Running:
		return sb.Spec.Lifetime.IdleTimeout > 0
	case sandbox.Failed:
		return sb.Spec.Lifetime.IdleTimeout > 0 && sb.Spec.Lifetime.IdlePolicy == sandbox.IdleDelete
	}
	return false
}

// reason is why the clock acts on a sandbox.
type reason int

const (
	idle    reason = iota
	expired        // its timeout is reached
	unused         // it is not running and was not used for a long time
)

// next is the next action on a sandbox that was last used at last; zero: none. It is not idle before
// earliest.
func next(sb sandbox.Sandbox, last, earliest time.Time) (at time.Time, why reason) {
	if sb.State == sandbox.Creating || sb.State == sandbox.Deleting {
		return time.Time{}, idle
	}
	at, _ = Expiry(sb)
	why = expired
	consider := func(t time.Time, r reason) {
		if at.IsZero() || t.Before(at) {
			at, why = t, r
		}
	}
	if canIdle(sb) {
		t := last.Add(sb.Spec.Lifetime.IdleTimeout)
		if t.Before(earliest) {
			t = earliest
		}
		consider(t, idle)
	}
	if keep := sb.Spec.Lifetime.Keep; keep > 0 && sb.State != sandbox.Running {
		if sb.Changed.After(last) {
			last = sb.Changed
		}
		consider(last.Add(keep), unused)
	}
	return at, why
}

// action is what the clock does with a sandbox for a reason.
func (r reason) action(l sandbox.Lifetime) sandbox.IdlePolicy {
	policy := sandbox.IdleDelete
	switch r {
	case idle:
		policy = l.IdlePolicy
	case expired:
		policy = l.EndPolicy
	}
	return cmp.Or(policy, sandbox.IdleDelete)
}

// text describes the reason for the deletion of a sandbox, and how to avoid it.
func (r reason) text(l sandbox.Lifetime) string {
	switch r {
	case idle:
		return fmt.Sprintf("it was not used for %v; set idle_policy to stop to keep idle sandboxes", inWords(l.IdleTimeout))
	case expired:
		return "its timeout was reached; set a longer timeout, or timeout_policy to stop to keep it"
	}
	return fmt.Sprintf("it was stopped and not used for %v", inWords(l.Keep))
}

func inWords(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day {
		return fmt.Sprintf("%d days", d/day)
	}
	return fmt.Sprintf("%.4g minutes", d.Minutes())
}

// Deadline is the time at which the clock acts on a sandbox that is not used meanwhile, and its action;
// false: never.
func Deadline(sb sandbox.Sandbox, lastUse time.Time) (at time.Time, action sandbox.IdlePolicy, ok bool) {
	at, why := next(sb, lastUse, time.Time{})
	return at, why.action(sb.Spec.Lifetime), !at.IsZero()
}

// due is the time at which the clock must check the sandbox next, and the reason; zero: never. A sandbox
// in use is checked when its idle timeout can be reached at the earliest. b.mu is held.
func (b *Box) due(sb sandbox.Sandbox, began, now time.Time) (at time.Time, why reason) {
	last, earliest := b.last, time.Time{}
	if b.open > 0 {
		last = now
	}
	if sb.Created.Before(began) {
		earliest = began.Add(grace)
	}
	at, why = next(sb, last, earliest)
	if !at.IsZero() && at.Before(b.retry) {
		at = b.retry
	}
	return at, why
}
