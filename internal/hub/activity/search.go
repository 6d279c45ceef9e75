package activity

import (
	"bytes"
	"context"
	"slices"

	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
)

// maxSearched is the maximum number of bytes that a search reads: the latest records.
const maxSearched = 128 << 20

// Found is an entry of a record that a search found.
type Found struct {
	Record Head
	Entry  []byte // JSON
}

// Search returns at most limit entries of each record of an owner that match, the latest first, and
// whether it read all records. match must be safe for content of sandboxes. A nil Store is empty.
func (s *Store) Search(ctx context.Context, who caller.Selection, limit int, match func(entry []byte) bool) (list []Found, all bool) {
	if s == nil {
		return nil, true
	}
	s.mu.Lock()
	heads := slices.DeleteFunc(s.heads(), func(h Head) bool { return !who.Has(h.User) || s.cfg.Now().Sub(h.Saved) > s.cfg.Keep })
	s.mu.Unlock()
	left := maxSearched
	for _, h := range heads {
		if ctx.Err() != nil || left <= 0 {
			return list, false
		}
		// Without the lock: files are replaced, and one that was deleted meanwhile has no entries.
		_, lines, err := s.read(h.ID)
		if err != nil {
			continue
		}
		n := 0
		for _, line := range slices.Backward(lines) {
			left -= len(line)
			if n < limit && match(line) {
				list = append(list, Found{h, bytes.Clone(line)})
				n++
			}
		}
	}
	return list, true
}
