package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// grace is how long after its start a hub does not suspend sandboxes: clients that the restart
	// disconnected need time to reconnect.
	grace = 30 * time.Second
	// retryEvery is how long the clock waits after a failure.
	retryEvery = 30 * time.Second
	// queryTimeout is the timeout of short queries to a sandbox or its provider.
	queryTimeout = 5 * time.Second
)

// clock applies the timeout and idle timeout of sandboxes.
type clock struct {
	fleet   *Fleet
	changed chan struct{} // receives after a change

	mu    sync.Mutex
	began time.Time
	next  time.Time // next check of all sandboxes; zero: now, or never
}

func (c *clock) begin(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = now
}

func (c *clock) started() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began
}

// notifyFor notifies the clock if a sandbox is due before the next check. A check after each change would
// cost more with every sandbox.
func (c *clock) notifyFor(b *Box) {
	now := time.Now()
	c.mu.Lock()
	began, next := c.began, c.next
	c.mu.Unlock()
	b.mu.Lock()
	at, _ := b.due(b.sb, began, now)
	b.mu.Unlock()
	if !at.IsZero() && (next.IsZero() || at.Before(next)) {
		c.notify()
	}
}

// plan sets the time of the next check. It is zero during a check, so that no change is missed.
func (c *clock) plan(next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = next
}

// notify makes the clock check all sandboxes.
func (c *clock) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// run processes sandboxes that are due. Use of a sandbox only postpones its check, so it does not notify
// the clock.
func (c *clock) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.changed:
		}
		c.plan(time.Time{})
		next := c.tick(time.Now())
		c.plan(next)
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
	}
}

// tick starts to process all sandboxes that are due, and returns the time of the next check.
func (c *clock) tick(now time.Time) (next time.Time) {
	began := c.started()
	for _, b := range c.fleet.all() {
		b.mu.Lock()
		at, why := b.due(b.sb, began, now)
		act := !b.acting && !b.closed && !at.IsZero() && !at.After(now)
		if act {
			b.acting = true
		}
		acting := b.acting
		b.mu.Unlock()
		switch {
		case act:
			if !c.fleet.Tasks.Go(func(ctx context.Context) { c.act(ctx, b, why) }) {
				return time.Time{}
			}
		case !acting && !at.IsZero() && (next.IsZero() || at.Before(next)):
			next = at
		}
	}
	return next
}

// act deletes or suspends a sandbox, if it is still due.
func (c *clock) act(ctx context.Context, b *Box, why reason) {
	err := c.settle(ctx, b, why)
	b.mu.Lock()
	b.acting = false
	if err != nil {
		b.retry = time.Now().Add(retryEvery)
	}
	b.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		c.fleet.Log.Error("cannot end idle or expired sandbox; retrying later", "sandbox", b.id, "error", err)
	}
	c.notify()
}

// settle applies the policy that is due for one sandbox.
func (c *clock) settle(ctx context.Context, b *Box, why reason) error {
	f := c.fleet
	sb, err := f.Provider.Get(ctx, b.id)
	if errors.Is(err, sandbox.ErrNotFound) {
		f.Forget(b.id)
		return nil
	}
	if err != nil {
		return err
	}
	f.Observe(sb)
	switch why {
	case idle:
		return c.suspend(ctx, b, sb)
	case unused:
		return c.discard(ctx, b, sb)
	}
	if at, ok := Expiry(sb); !ok || at.After(time.Now()) {
		return nil // its timeout was extended
	}
	policy := sb.Spec.Lifetime.EndPolicy
	if policy == sandbox.IdlePause || policy == sandbox.IdleStop {
		if !b.blockAlways() {
			return nil
		}
		defer b.unblock()
		f.History.Add("expired", time.Now(), sb, "timeout reached: "+string(policy))
		return c.sleep(ctx, b, sb, policy)
	}
	f.History.Add("expired", time.Now(), sb, "timeout reached")
	return c.delete(ctx, b, expired)
}

// discard deletes a sandbox that was not used for a long time. Requests wait, and then do not find it.
func (c *clock) discard(ctx context.Context, b *Box, sb sandbox.Sandbox) error {
	if !b.block(sb, c.started(), time.Now(), unused) {
		return nil
	}
	defer b.unblock()
	return c.delete(ctx, b, unused)
}

func (c *clock) delete(ctx context.Context, b *Box, why reason) error {
	f := c.fleet
	sb := b.seen()
	f.SaveRecord(ctx, sb)
	past := f.History.Story(sb)
	err := f.Provider.Delete(ctx, b.id)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	f.counts.ended(1, [...]string{"idle", "expired", "unused"}[why])
	if err == nil {
		f.Observer.Acted("clock_delete", sb)
		f.Tombstones.Add(sb, time.Now(), why.text(sb.Spec.Lifetime), past)
	}
	f.Forget(b.id)
	return nil
}

// suspend applies the idle policy to a sandbox. New requests wait until it is done, then wake the
// sandbox.
func (c *clock) suspend(ctx context.Context, b *Box, sb sandbox.Sandbox) error {
	f := c.fleet
	if sb.State == sandbox.Running && IsNative(sb) && b.isBusy(ctx) {
		f.Touch(b.id)
		return nil
	}
	now := time.Now()
	if !b.block(sb, c.started(), now, idle) {
		return nil
	}
	defer b.unblock()
	policy := sb.Spec.Lifetime.IdlePolicy
	f.History.Add("idle", now, sb, "idle timeout reached: "+string(policy))
	if policy != sandbox.IdlePause && policy != sandbox.IdleStop {
		return c.delete(ctx, b, idle)
	}
	return c.sleep(ctx, b, sb, policy)
}

// sleep pauses or stops a sandbox, while requests wait.
func (c *clock) sleep(ctx context.Context, b *Box, sb sandbox.Sandbox, policy sandbox.IdlePolicy) (err error) {
	f := c.fleet
	f.SaveRecord(ctx, sb)
	if policy == sandbox.IdlePause {
		err = f.Provider.Pause(ctx, b.id)
	} else {
		err = f.Provider.Stop(ctx, b.id)
		b.transport.CloseIdleConnections()
	}
	if err != nil {
		return err
	}
	f.counts.ended(1, string(policy))
	f.Observer.Acted("clock_"+string(policy), sb)
	if sb, err = f.Provider.Get(ctx, b.id); err == nil {
		f.Observe(sb)
	}
	return nil
}

// block makes requests wait, if the clock still must act on the sandbox for the reason.
func (b *Box) block(sb sandbox.Sandbox, began, now time.Time, want reason) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, why := b.due(sb, began, now)
	if at.IsZero() || why != want || at.After(now) || b.hold != nil {
		return false
	}
	b.hold = make(chan struct{})
	return true
}

// blockAlways makes requests wait, even if the sandbox is in use; false if they already wait.
func (b *Box) blockAlways() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hold != nil {
		return false
	}
	b.hold = make(chan struct{})
	return true
}

// unblock lets requests continue.
func (b *Box) unblock() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.hold)
	b.hold = nil
}

// isBusy asks the sandbox's server whether a program runs in the background. If the server does not
// support the query, as in the public image, isBusy checks its sessions.
func (b *Box) isBusy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var now struct {
		Busy *bool `json:"busy"`
	}
	if b.query(ctx, "/v1/sandbox/activity?limit=0", &now) && now.Busy != nil {
		return *now.Busy
	}
	type session struct {
		Command *string `json:"current_command"`
		Status  string  `json:"status"`
	}
	var bash struct {
		Data []session `json:"data"`
	}
	var shell struct {
		Data struct {
			Sessions map[string]session `json:"sessions"`
		} `json:"data"`
	}
	if b.query(ctx, "/v1/bash/sessions", &bash) {
		for _, s := range bash.Data {
			if s.Command != nil {
				return true
			}
		}
	}
	if b.query(ctx, "/v1/shell/sessions", &shell) {
		for _, s := range shell.Data.Sessions {
			if s.Command != nil || s.Status == "active" {
				return true
			}
		}
	}
	return false
}

// maxAnswer is the maximum size of a response to a query of the hub.
const maxAnswer = 4 << 20

// query sends a query to the server inside; false if it fails.
func (b *Box) query(ctx context.Context, path string, answer any) bool {
	body, ok := b.fetch(ctx, path, maxAnswer)
	return ok && json.Unmarshal(body, answer) == nil
}

// fetch returns the response to a query, if it is not longer than limit.
func (b *Box) fetch(ctx context.Context, path string, limit int64) ([]byte, bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ServerHost+path, nil)
	if err != nil {
		return nil, false
	}
	res, err := b.transport.RoundTrip(req)
	if err != nil {
		return nil, false
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, res.Body, limit))
	return body, err == nil
}
