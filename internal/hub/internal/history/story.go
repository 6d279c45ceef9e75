package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Moment is something that happened to a sandbox, for people.
type Moment struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type" doc:"created, running, paused, stopped, failed, exceeded, idle, expired, changed, denied or deleted"`
	Message string    `json:"message"`
	Bad     bool      `json:"bad" doc:"Whether it is a problem"`
}

// Story returns what happened to a sandbox, newest first.
func (l *Log) Story(sb sandbox.Sandbox) []Moment {
	out := []Moment{{Time: sb.Created.UTC(), Type: string(sandbox.Created), Message: "from environment " + sb.Spec.Environment}}
	var before Event
	for _, e := range l.Of(sb.ID) {
		if m, ok := moment(before, e); ok {
			out = append(out, m)
		}
		before = e
	}
	if before.Seq == 0 && sb.Message != "" { // the event was before the start of this hub
		out = append(out, Moment{sb.Changed.UTC(), string(sb.State), sb.Message, sb.State == sandbox.Failed})
	}
	slices.Reverse(out) // keeps the order of events at the same time
	slices.SortStableFunc(out, func(a, b Moment) int { return b.Time.Compare(a.Time) })
	return out
}

// moment describes an event; false if it tells nothing new.
func moment(before, e Event) (Moment, bool) {
	m := Moment{Time: e.Time.UTC(), Type: e.Kind, Message: e.Message}
	switch sandbox.EventKind(e.Kind) {
	case sandbox.Created, sandbox.Existing, sandbox.Deleted:
		return m, false
	case sandbox.Exceeded, "denied":
		m.Bad = true
		return m, true
	case sandbox.Changed:
		if before.Seq != 0 && before.Sandbox.State == e.Sandbox.State && before.Sandbox.Message == e.Sandbox.Message {
			m.Message = cmp.Or(e.Message, "its settings were changed")
			return m, true
		}
		m.Type, m.Message = string(e.Sandbox.State), cmp.Or(e.Message, e.Sandbox.Message)
		m.Bad = e.Sandbox.State == sandbox.Failed
		// A limit that is exceeded is also the message of the sandbox.
		return m, before.Kind != string(sandbox.Exceeded) || before.Message != m.Message
	}
	return m, true
}
