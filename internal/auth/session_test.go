package auth

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Signing out ends only the open requests of the session, such as a WebSocket.
func TestFinishEndsOpenRequests(t *testing.T) {
	t.Parallel()
	var all sessions
	now := time.Now()
	mine, other := session{end: now.Add(time.Hour)}.begun(), session{end: now.Add(time.Hour)}.begun()
	open, leave := all.join(t.Context(), mine, now)
	defer leave()
	next, leaveNext := all.join(t.Context(), other, now)
	defer leaveNext()
	all.finish(mine, now)
	if !errors.Is(open.Err(), context.Canceled) || next.Err() != nil {
		t.Errorf("got %v and %v, want only the first to end", open.Err(), next.Err())
	}
	if late, leave := all.join(t.Context(), mine, now); late.Err() == nil {
		leave()
		t.Error("got a request in an ended session, want it canceled")
	}
	if !all.isOver(mine.id) || all.isOver(other.id) {
		t.Error("want the first session to be over, and the second not")
	}
	leave()
	leaveNext()
	if len(all.open) != 0 {
		t.Errorf("got %d open sessions after the last request, want none", len(all.open))
	}
	// Ended sessions are removed when their credentials would have expired.
	all.finish(other, now.Add(2*time.Hour))
	if all.isOver(mine.id) {
		t.Error("want a session that would have expired to be removed")
	}
}
