package activity

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// matches reports whether an entry passes the filters.
func (in GetIn) matches(e Entry) bool {
	switch {
	case e.ID <= in.After, in.Kind != "" && e.Kind != in.Kind, in.Op != "" && e.Op != in.Op, in.Failed && !e.hasFailed():
		return false
	case in.Search == "":
		return true
	}
	text := strings.ToLower(e.Op + "\n" + e.Input + "\n" + e.Output + "\n" + e.Error)
	needle := strings.ToLower(in.Search)
	// Input and output are JSON.
	return strings.Contains(text, needle) || strings.Contains(text, strings.Trim(strconv.Quote(needle), `"`))
}

// wants applies the filters that do not require reading the entry.
func (in GetIn) wants(l line) bool {
	return l.id > in.After && (in.Kind == "" || l.kind == in.Kind) && (in.Op == "" || l.op == in.Op) && (!in.Failed || l.failed)
}

// entries returns the latest entries that match, oldest first. Callers with read-only access get
// none.
func (s *Service) entries(ctx context.Context, in GetIn) []Entry {
	if s.record == nil || op.CallOf(ctx).Reader {
		return nil
	}
	s.record.flush(ctx)
	var out []Entry
	s.record.store.last(in.wants, func(e Entry) bool {
		if in.matches(e) {
			out = append(out, e)
		}
		return len(out) < in.Limit && ctx.Err() == nil
	})
	slices.Reverse(out)
	return out
}

// Follow sends the latest entries that match, and then each new one.
func (s *Service) Follow(ctx context.Context, in GetIn, send func(op.Event) error) error {
	if s.record == nil {
		return op.Errorf(op.Unavailable, "the sandbox has no activity record; start the server with the setting activity")
	}
	if op.CallOf(ctx).Reader {
		return op.Errorf(op.Denied, "your access to this sandbox is read-only and does not include its activity "+
			"record; ask for a key with the role user, or a link with write access")
	}
	if last, err := strconv.ParseInt(op.CallOf(ctx).LastEventID, 10, 64); err == nil {
		in.After = max(in.After, last)
	}
	pass := func(e Entry) error {
		in.After = max(in.After, e.ID)
		return send(op.Event{ID: strconv.FormatInt(e.ID, 10), Name: "entry", Data: e})
	}
	for {
		// Subscribe before reading the store so that no entry is missed.
		fresh, stop := s.record.subscribe()
		if in.Limit > 0 {
			for _, e := range s.entries(ctx, in) {
				if err := pass(e); err != nil {
					stop()
					return err
				}
			}
		}
		err := s.relay(ctx, fresh, func(e Entry) error {
			if !in.matches(e) {
				return nil // it does not match, or the store already had it
			}
			return pass(e)
		})
		stop()
		if !errors.Is(err, errBehind) {
			return err
		}
		in.Limit = maxLimit // the reader was too slow; the missed entries are in the store
	}
}

var errBehind = errors.New("the stream is behind")

// relay forwards new entries until the stream ends or is behind.
func (s *Service) relay(ctx context.Context, fresh <-chan Entry, pass func(Entry) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.life.Done():
			return nil
		case e, ok := <-fresh:
			if !ok {
				return errBehind
			}
			if err := pass(e); err != nil {
				return err
			}
		}
	}
}
