package hub

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// sweepEvery is how often the time of last use is noted with the provider.
	sweepEvery = time.Minute
	// grace is how long after its start a hub puts nothing to sleep: who was cut
	// off by the restart needs time to come back.
	grace = 30 * time.Second
	// retryEvery is how long the clock waits after a failure.
	retryEvery = 30 * time.Second
	// askTimeout bounds the question whether something runs inside.
	askTimeout = 5 * time.Second
)

// expiry is when a sandbox's time is up; false: never.
func expiry(sb sandbox.Sandbox) (time.Time, bool) {
	if t := sb.Spec.Lifetime.Timeout; t > 0 {
		return sb.Created.Add(t), true
	}
	return time.Time{}, false
}

// sleeps tells whether being unused means anything to a sandbox in its state.
func sleeps(sb sandbox.Sandbox) bool {
	switch sb.State {
	case sandbox.Running:
		return sb.Spec.Lifetime.IdleTimeout > 0
	case sandbox.Failed:
		return sb.Spec.Lifetime.IdleTimeout > 0 && sb.Spec.Lifetime.IdlePolicy == sandbox.IdleDelete
	}
	return false
}

// due is when the clock must look at the sandbox next, and whether because its
// time is up; zero: never, as things stand. One in use is looked at again when
// it could have been unused for long enough. b.mu is held.
func (b *box) due(sb sandbox.Sandbox, began, now time.Time) (at time.Time, expired bool) {
	if sb.State == sandbox.Creating || sb.State == sandbox.Deleting {
		return time.Time{}, false
	}
	at, expired = expiry(sb)
	if sleeps(sb) {
		last := b.last
		if b.open > 0 {
			last = now
		}
		idle := last.Add(sb.Spec.Lifetime.IdleTimeout)
		if early := began.Add(grace); idle.Before(early) && sb.Created.Before(began) {
			idle = early
		}
		if !expired || idle.Before(at) {
			at, expired = idle, false
		}
	}
	if !at.IsZero() && at.Before(b.retry) {
		at = b.retry
	}
	return at, expired
}

// alarm makes the clock look again.
func (h *Hub) alarm() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// clock deals with sandboxes whose time or idle time is up. Use only puts an
// alarm off, so it need not be told of that.
func (h *Hub) clock(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-h.kick:
		}
		if next := h.tick(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
	}
}

// tick starts dealing with all that is due, and returns when to look again.
func (h *Hub) tick(now time.Time) (next time.Time) {
	h.mu.Lock()
	began := h.began
	h.mu.Unlock()
	for _, b := range h.all() {
		b.mu.Lock()
		at, expired := b.due(b.sb, began, now)
		act := !b.acting && !b.closed && !at.IsZero() && !at.After(now)
		if act {
			b.acting = true
		}
		acting := b.acting
		b.mu.Unlock()
		switch {
		case act:
			if !h.background(func(ctx context.Context) { h.deal(ctx, b, expired) }) {
				return time.Time{}
			}
		case !acting && !at.IsZero() && (next.IsZero() || at.Before(next)):
			next = at
		}
	}
	return next
}

// deal ends a sandbox or puts it to sleep, unless things have changed.
func (h *Hub) deal(ctx context.Context, b *box, expired bool) {
	err := h.settle(ctx, b, expired)
	b.mu.Lock()
	b.acting = false
	if err != nil {
		b.retry = time.Now().Add(retryEvery)
	}
	b.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		h.cfg.Log.Error("cannot end a sandbox or put it to sleep; trying again later", "sandbox", b.id, "error", err)
	}
	h.alarm()
}

// settle does what is due for one sandbox.
func (h *Hub) settle(ctx context.Context, b *box, expired bool) error {
	sb, err := h.cfg.Provider.Get(ctx, b.id)
	if errors.Is(err, sandbox.ErrNotFound) {
		h.drop(b.id)
		return nil
	}
	if err != nil {
		return err
	}
	h.see(sb)
	if !expired {
		return h.doze(ctx, b, sb)
	}
	if at, ok := expiry(sb); !ok || at.After(time.Now()) {
		return nil // it was given more time
	}
	h.past.add("expired", time.Now(), sb, "its time is up")
	return h.remove(ctx, b, "expired")
}

func (h *Hub) remove(ctx context.Context, b *box, why string) error {
	err := h.cfg.Provider.Delete(ctx, b.id)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	h.counts.ended(1, why)
	if err == nil {
		h.acted("clock_delete", b.seen())
	}
	h.drop(b.id)
	return nil
}

// doze puts an unused sandbox to sleep. While it does so, requests wait; they
// wake the sandbox afterwards.
func (h *Hub) doze(ctx context.Context, b *box, sb sandbox.Sandbox) error {
	if sb.State == sandbox.Running && h.working(ctx, b) {
		h.touch(b.id)
		return nil
	}
	began, now := h.started(), time.Now()
	b.mu.Lock()
	at, expired := b.due(sb, began, now)
	if at.IsZero() || expired || at.After(now) || b.hold != nil {
		b.mu.Unlock()
		return nil
	}
	hold := make(chan struct{})
	b.hold = hold
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.hold = nil
		b.mu.Unlock()
		close(hold)
	}()
	policy := sb.Spec.Lifetime.IdlePolicy
	h.past.add("idle", now, sb, "nobody uses it: "+string(policy))
	var err error
	switch policy {
	case sandbox.IdlePause:
		err = h.cfg.Provider.Pause(ctx, b.id)
	case sandbox.IdleStop:
		err = h.cfg.Provider.Stop(ctx, b.id)
		b.transport.CloseIdleConnections()
	default:
		return h.remove(ctx, b, "idle")
	}
	if err != nil {
		return err
	}
	h.counts.ended(1, string(policy))
	h.acted("clock_"+string(policy), sb)
	if sb, err = h.cfg.Provider.Get(ctx, b.id); err == nil {
		h.see(sb)
	}
	return nil
}

func (h *Hub) started() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.began
}

// working asks the sandbox's server whether something runs that nobody waits for.
// One that does not know the question, such as the public image's, is asked for
// its sessions.
func (h *Hub) working(ctx context.Context, b *box) bool {
	if !native(b.seen()) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var now struct {
		Busy *bool `json:"busy"`
	}
	if b.ask(ctx, "/v1/sandbox/activity", &now) && now.Busy != nil {
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
	if b.ask(ctx, "/v1/bash/sessions", &bash) {
		for _, s := range bash.Data {
			if s.Command != nil {
				return true
			}
		}
	}
	if b.ask(ctx, "/v1/shell/sessions", &shell) {
		for _, s := range shell.Data.Sessions {
			if s.Command != nil || s.Status == "active" {
				return true
			}
		}
	}
	return false
}

// maxAnswer bounds what the server inside may answer to our own questions.
const maxAnswer = 4 << 20

// ask asks the server inside; false when it has no answer.
func (b *box) ask(ctx context.Context, path string, answer any) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+serverHost+path, nil)
	if err != nil {
		return false
	}
	res, err := b.transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return false
	}
	return json.NewDecoder(http.MaxBytesReader(nil, res.Body, maxAnswer)).Decode(answer) == nil
}

// sweep notes now and then when sandboxes were last used, so that the next hub
// knows, and forgets those that are gone.
func (h *Hub) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.keepAll(ctx)
			h.prune(ctx)
			h.recount(ctx)
			h.tools.sweep()
			h.alarm()
		}
	}
}

// keepAll notes with the provider when each sandbox was last used.
func (h *Hub) keepAll(ctx context.Context) {
	for _, b := range h.all() {
		b.mu.Lock()
		if b.open > 0 {
			b.last = time.Now()
		}
		last, state := b.last, b.sb.State
		stale := last.Sub(b.kept) >= time.Second && state != sandbox.Creating && state != sandbox.Deleting
		b.mu.Unlock()
		if !stale || ctx.Err() != nil {
			continue
		}
		short, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := h.cfg.Provider.Update(short, b.id, func(s *sandbox.Spec) error {
			note(s, noteActive, strconv.FormatInt(last.Unix(), 10))
			return nil
		})
		cancel()
		if err != nil {
			continue // it is being changed; the next sweep will do
		}
		b.mu.Lock()
		b.kept = last
		b.mu.Unlock()
	}
}
