package hub

import "github.com/cove-sandbox/cove/internal/pool"

// Pools is which environments shall have sandboxes ready, and of what kind.
func (h *Hub) Pools() map[string]pool.Want {
	var all map[string]pool.Want
	for _, e := range h.catalog.now() {
		if e.Pool <= 0 {
			continue
		}
		s, err := e.spec(h.cfg.Defaults)
		if err != nil {
			continue // told by the create that meets it
		}
		if all == nil {
			all = map[string]pool.Want{}
		}
		all[e.Name] = pool.Want{Size: e.Pool, Spec: s}
	}
	return all
}
