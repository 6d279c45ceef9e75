package span

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
)

// The headers of the W3C trace context.
const (
	headerParent = "Traceparent"
	headerState  = "Tracestate"
)

const (
	flagSampled = 1
	maxState    = 512 // what the specification asks to carry on at least
)

// spot is a place in a trace.
type spot struct {
	trace [16]byte
	span  [8]byte
	flags byte
	state string
	local *Span // nil: it came from outside
}

func (s spot) sampled() bool { return s.flags&flagSampled != 0 }

type key struct{}

func spotOf(ctx context.Context) (spot, bool) {
	s, ok := ctx.Value(key{}).(spot)
	return s, ok
}

// Extract returns a context in which spans continue the trace of a request. Headers
// that are not well formed are passed over, as the specification asks.
func Extract(ctx context.Context, h http.Header) context.Context {
	values := h[headerParent]
	if len(values) != 1 {
		return ctx
	}
	s, ok := parse(values[0])
	if !ok {
		return ctx
	}
	if state := strings.Join(h[headerState], ","); len(state) <= maxState {
		s.state = state
	}
	return context.WithValue(ctx, key{}, s)
}

// Inject writes the place of ctx in its trace into the headers of a request that is
// about to be sent. A context without one leaves them alone.
func Inject(ctx context.Context, h http.Header) {
	s, ok := spotOf(ctx)
	if !ok {
		return
	}
	h.Set(headerParent, s.String())
	h.Del(headerState)
	if s.state != "" {
		h.Set(headerState, s.state)
	}
	if s.local != nil {
		s.local.sent()
	}
}

// sent turns a span that is no server's into a client's.
func (s *Span) sent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.kind == kindInternal {
		s.kind = kindClient
	}
}

func (s spot) String() string {
	b := append(make([]byte, 0, parentLen), "00-"...)
	b = append(hex.AppendEncode(b, s.trace[:]), '-')
	b = append(hex.AppendEncode(b, s.span[:]), '-')
	return string(hex.AppendEncode(b, []byte{s.flags & flagSampled}))
}

// parentLen is that of version 00. Later versions may only add to its end.
const parentLen = 2 + 1 + 32 + 1 + 16 + 1 + 2

func parse(v string) (s spot, ok bool) {
	if len(v) < parentLen || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return s, false
	}
	var version, flags [1]byte
	for _, part := range []struct {
		to   []byte
		text string
	}{{version[:], v[:2]}, {s.trace[:], v[3:35]}, {s.span[:], v[36:52]}, {flags[:], v[53:55]}} {
		if strings.Trim(part.text, "0123456789abcdef") != "" {
			return s, false
		}
		if _, err := hex.Decode(part.to, []byte(part.text)); err != nil {
			return s, false
		}
	}
	switch rest := v[parentLen:]; {
	case version[0] == 0xff, version[0] == 0 && rest != "", rest != "" && rest[0] != '-':
		return s, false
	}
	s.flags = flags[0] & flagSampled
	return s, s.trace != [16]byte{} && s.span != [8]byte{}
}
