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
	maxState    = 512 // the minimum that the specification requires to propagate
)

// spanContext identifies a span in a trace.
type spanContext struct {
	trace [16]byte
	span  [8]byte
	flags byte
	state string
	local *Span // nil if the span is the caller's
}

func (s spanContext) sampled() bool { return s.flags&flagSampled != 0 }

type key struct{}

func contextOf(ctx context.Context) (spanContext, bool) {
	s, ok := ctx.Value(key{}).(spanContext)
	return s, ok
}

// Extract returns a context in which spans continue the trace of a request. It ignores
// malformed headers, as the specification requires.
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

// Inject adds the span of ctx to the headers of an outgoing request. Without a span, it does
// not change the headers.
func Inject(ctx context.Context, h http.Header) {
	s, ok := contextOf(ctx)
	if !ok {
		return
	}
	h.Set(headerParent, s.String())
	h.Del(headerState)
	if s.state != "" {
		h.Set(headerState, s.state)
	}
	if s.local != nil {
		s.local.markClient()
	}
}

// markClient makes an internal span a client span.
func (s *Span) markClient() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.kind == kindInternal {
		s.kind = kindClient
	}
}

func (s spanContext) String() string {
	b := append(make([]byte, 0, parentLen), "00-"...)
	b = append(hex.AppendEncode(b, s.trace[:]), '-')
	b = append(hex.AppendEncode(b, s.span[:]), '-')
	return string(hex.AppendEncode(b, []byte{s.flags & flagSampled}))
}

// parentLen is the length of version 00. Later versions can only append to it.
const parentLen = 2 + 1 + 32 + 1 + 16 + 1 + 2

func parse(v string) (s spanContext, ok bool) {
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
