package mcp

import (
	"context"
	"iter"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxEvents bounds the bytes of events that are kept so that clients can resume,
	// maxOwnEvents those of one session.
	maxEvents    = 16 << 20
	maxOwnEvents = 2 << 20
)

// events keeps the events that sessions have sent. A busy session drops its own oldest
// events. If all sessions together exceed the limit, the session with the most bytes loses
// its events.
type events struct {
	mu   sync.Mutex
	byID map[string]*kept
	sum  int
}

// kept are the events of one session.
type kept struct {
	*mcp.MemoryEventStore
	size int // upper bound of the bytes that are kept
}

func newEvents() *events { return &events{byID: map[string]*kept{}} }

// Open implements mcp.EventStore.
func (s *events) Open(ctx context.Context, session, stream string) error {
	s.mu.Lock()
	k := s.byID[session]
	if k == nil {
		k = &kept{MemoryEventStore: mcp.NewMemoryEventStore(nil)}
		k.SetMaxBytes(maxOwnEvents)
		s.byID[session] = k
	}
	s.mu.Unlock()
	return k.Open(ctx, session, stream)
}

// Append implements mcp.EventStore.
func (s *events) Append(ctx context.Context, session, stream string, data []byte) error {
	s.mu.Lock()
	k := s.byID[session]
	if k == nil {
		s.mu.Unlock()
		return nil // the session has ended
	}
	before := k.size
	k.size = min(maxOwnEvents, k.size+len(data))
	s.sum += k.size - before
	var largest *kept
	var id string
	if s.sum > maxEvents {
		for other, o := range s.byID {
			if largest == nil || o.size > largest.size {
				largest, id = o, other
			}
		}
		s.sum -= largest.size
		largest.size = 0
	}
	s.mu.Unlock()
	if largest != nil {
		if err := largest.SessionClosed(ctx, id); err != nil {
			return err
		}
	}
	return k.Append(ctx, session, stream, data)
}

// After implements mcp.EventStore.
func (s *events) After(ctx context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	s.mu.Lock()
	k := s.byID[session]
	s.mu.Unlock()
	if k == nil {
		k = &kept{MemoryEventStore: mcp.NewMemoryEventStore(nil)} // an empty store, which reports an unknown stream
	}
	return k.After(ctx, session, stream, index)
}

// SessionClosed implements mcp.EventStore.
func (s *events) SessionClosed(ctx context.Context, session string) error {
	s.mu.Lock()
	k := s.byID[session]
	if k != nil {
		delete(s.byID, session)
		s.sum -= k.size
	}
	s.mu.Unlock()
	if k == nil {
		return nil
	}
	return k.SessionClosed(ctx, session)
}
