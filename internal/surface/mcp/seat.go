package mcp

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// unusedAfter is the time after which another session may replace an unused one. Its
	// client opens a new session, as the protocol requires.
	unusedAfter = time.Minute
	// retrySession is the Retry-After of a refused session.
	retrySession = 10 * time.Second
)

// seats counts the open sessions of each owner. A session above the limit replaces the owner's
// least recently used one. If all are in use, it is refused.
type seats struct {
	total, owned int // limits

	mu      sync.Mutex
	byID    map[string]*seat
	opening map[string]int // by owner: sessions that have no ID yet
	sum     int            // of opening
}

// seat is an open session.
type seat struct {
	owner string
	used  time.Time
	busy  int // requests in flight
}

func newSeats(total, owned int) *seats {
	return &seats{total: total, owned: owned, byID: map[string]*seat{}, opening: map[string]int{}}
}

// open reserves a seat for a session. live lists the open sessions, end ends one of them.
// taken must be called with the ID of the new session, or with "" if it was not opened.
func (s *seats) open(owner string, live func() map[string]bool, end func(id string)) (taken func(id string), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full(owner) != "" {
		ids := live()
		for id := range s.byID {
			if !ids[id] {
				delete(s.byID, id)
			}
		}
	}
	for s.full(owner) != "" {
		id := s.unused(owner)
		if id == "" {
			return nil, &op.Error{Code: op.Exhausted, RetryAfter: retrySession, Msg: s.full(owner)}
		}
		delete(s.byID, id)
		end(id)
	}
	s.opening[owner]++
	s.sum++
	return func(id string) { s.take(owner, id) }, nil
}

// take replaces a reservation with the session that was opened.
func (s *seats) take(owner, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum--
	if s.opening[owner]--; s.opening[owner] == 0 {
		delete(s.opening, owner)
	}
	if id != "" {
		s.byID[id] = &seat{owner: owner, used: time.Now()}
	}
}

// full returns why an owner cannot open a session; empty: it can. mu is held.
func (s *seats) full(owner string) string {
	if len(s.byID)+s.sum >= s.total {
		return fmt.Sprintf("session limit of this server reached (%d); retry later, or close a session", s.total)
	}
	if owner == "" {
		return "" // the operator, or the only user
	}
	n := s.opening[owner]
	for _, seat := range s.byID {
		if seat.owner == owner {
			n++
		}
	}
	if n >= s.owned {
		return fmt.Sprintf("session limit reached (%d); close a session or reuse its Mcp-Session-Id", s.owned)
	}
	return ""
}

// unused returns the least recently used session of an owner. mu is held.
func (s *seats) unused(owner string) (id string) {
	for other, seat := range s.byID {
		if seat.owner != owner || seat.busy > 0 || time.Since(seat.used) < unusedAfter {
			continue
		}
		if id == "" || seat.used.Before(s.byID[id].used) {
			id = other
		}
	}
	return id
}

// use registers a request to a session; done ends it.
func (s *seats) use(id string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seat := s.byID[id]
	if seat == nil {
		return func() {}
	}
	seat.busy++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		seat.busy--
		seat.used = time.Now()
	}
}

// serveSession serves a request that opens a session or belongs to one.
func (h *Handler) serveSession(w http.ResponseWriter, r *http.Request, e *engine, opens bool, serve func()) {
	const header = "Mcp-Session-Id"
	if id := r.Header.Get(header); id != "" || !opens {
		defer h.seats.use(id)()
		serve()
		return
	}
	taken, err := h.seats.open(op.CallOf(r.Context()).Subject, e.live, e.end)
	if refused, ok := op.AsError(err); ok {
		w.Header().Set("Retry-After", fmt.Sprint(int(refused.RetryAfter.Seconds())))
		refuse(w, http.StatusTooManyRequests, -32000, refused.Msg)
		return
	}
	defer func() { taken(w.Header().Get(header)) }()
	serve()
}

// live lists the IDs of the open sessions.
func (e *engine) live() map[string]bool {
	ids := map[string]bool{}
	for s := range e.server.Sessions() {
		ids[s.ID()] = true
	}
	return ids
}

// end closes a session in the background, because its calls may end slowly.
func (e *engine) end(id string) {
	for s := range e.server.Sessions() {
		if s.ID() == id {
			e.h.work.Go(func() { s.Close() })
		}
	}
}
