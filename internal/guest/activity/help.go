package activity

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// helped are the operations that wait for a person, with what they wait for.
var helped = map[string]string{"browser_captcha_wait": "captcha", "display_handover": "takeover"}

// A request can say what a person should do.
type message interface{ HelpMessage() string }

// maxHelp limits the requests for help that are reported.
const maxHelp = 20

// Help is a call that waits for a person.
type Help struct {
	Kind    string    `json:"kind" doc:"What a person should do: captcha or takeover"`
	Message string    `json:"message,omitempty" doc:"What the agent asks for"`
	Since   time.Time `json:"since"`
}

// helps are the calls in progress that wait for a person.
type helps struct {
	mu   sync.Mutex
	last int64
	open map[int64]Help
}

// list returns the calls, the oldest first.
func (h *helps) list() []Help {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []Help{}
	for _, one := range h.open {
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Help) int { return a.Since.Compare(b.Since) })
	return out[:min(len(out), maxHelp)]
}

// wrap returns the operation so that its calls are reported while they wait.
func (h *helps) wrap(o op.Op) op.Op {
	kind, call := helped[o.Name], o.Call
	if kind == "" || call == nil {
		return o
	}
	o.Call = func(ctx context.Context, in any) (any, error) {
		h.mu.Lock()
		if h.open == nil {
			h.open = map[int64]Help{}
		}
		h.last++
		n := h.last
		one := Help{Kind: kind, Since: time.Now().UTC()}
		if m, ok := in.(message); ok {
			one.Message = m.HelpMessage()
		}
		h.open[n] = one
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.open, n)
		}()
		return call(ctx, in)
	}
	return o
}
