package auth

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

const sessionLife = 12 * time.Hour

// session is the origin of tickets, cookies and passes. They end with it: when it expires, or
// when its owner signs out.
type session struct {
	id  sessionID
	end time.Time
}

// sessionID is random. It is zero for callers that authenticate each request.
type sessionID [8]byte

// begun returns the session with an ID, which is assigned when it starts.
func (s session) begun() session {
	if s.id == (sessionID{}) {
		_, _ = rand.Read(s.id[:]) // never fails
	}
	return s
}

type sessionKey struct{}

// sessionOf returns the session of the caller in ctx. A caller without one gets a new one.
func sessionOf(ctx context.Context, now time.Time) (s session, found bool) {
	if s, ok := ctx.Value(sessionKey{}).(session); ok {
		return s, true
	}
	return session{end: now.Add(sessionLife)}, false
}

// maxEnded bounds the number of sessions that ended before they expired.
const maxEnded = 4096

// sessions knows the sessions that ended before they expired, and cancels their requests.
type sessions struct {
	mu    sync.Mutex
	ended map[sessionID]time.Time // when its credentials would expire
	open  map[sessionID]map[*context.CancelFunc]bool
}

// finish ends a session: its credentials are rejected, and its open requests are canceled.
func (s *sessions) finish(one session, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = map[sessionID]time.Time{}
	}
	for id, until := range s.ended {
		if !now.Before(until) {
			delete(s.ended, id)
		}
	}
	if len(s.ended) < maxEnded {
		s.ended[one.id] = one.end
	}
	for cancel := range s.open[one.id] {
		(*cancel)()
	}
}

// isOver reports whether a session was ended.
func (s *sessions) isOver(id sessionID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, over := s.ended[id]
	return over
}

// join returns a context that carries the session and ends with it. leave must be called.
func (s *sessions) join(ctx context.Context, one session, now time.Time) (_ context.Context, leave func()) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, sessionKey{}, one), one.end.Sub(now))
	if one.id == (sessionID{}) {
		return ctx, cancel
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, over := s.ended[one.id]; over {
		cancel()
		return ctx, cancel
	}
	if s.open == nil {
		s.open = map[sessionID]map[*context.CancelFunc]bool{}
	}
	if s.open[one.id] == nil {
		s.open[one.id] = map[*context.CancelFunc]bool{}
	}
	s.open[one.id][&cancel] = true
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open[one.id], &cancel)
		if len(s.open[one.id]) == 0 {
			delete(s.open, one.id)
		}
	}
}
