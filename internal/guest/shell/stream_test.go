package shell

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
)

// streamed has the names of a stream's events, the text of the output events joined at their
// offsets, and the last event.
type streamed struct {
	names []string
	text  []rune
	last  StreamEvent
}

func (r *streamed) add(e op.Event) error {
	if n := len(r.names); n == 0 || r.names[n-1] != e.Name {
		r.names = append(r.names, e.Name)
	}
	r.last = e.Data.(StreamEvent)
	if e.Name == "output" {
		r.text = append(r.text[:*r.last.Offset], []rune(r.last.Data)...)
	}
	return nil
}

func (r *streamed) want(t *testing.T, names, text, status string) {
	t.Helper()
	if got := strings.Join(r.names, " "); got != names || strings.TrimRight(string(r.text), "\n") != text || r.last.Status != status {
		t.Errorf("got events %s, text %q, status %s; want %s, %q, %s", got, clip(string(r.text), 300), r.last.Status,
			names, clip(text, 300), status)
	}
}

func stream(t *testing.T, s *Service, in ExecIn, each ...func(op.Event)) *streamed {
	t.Helper()
	r := &streamed{}
	err := s.ExecStream(t.Context(), in, func(e op.Event) error {
		for _, f := range each {
			f(e)
		}
		return r.add(e)
	})
	if err != nil {
		t.Fatalf("%s: %v", clip(in.Command, 200), err)
	}
	return r
}

func TestExecStream(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := "a"
	r := stream(t, s, ExecIn{ID: &id, Command: "echo one; read x; echo got $x; exit_code() { return 3; }; exit_code",
		Truncate: true}, func(e op.Event) {
		if e.Name == "output" && strings.Contains(e.Data.(StreamEvent).Data, "one") {
			write(t, s, id, "two", true) // the event was sent before the end of the command
		}
	})
	r.want(t, "start output exit", "one\ntwo\ngot two", completed)
	if r.last.ExitCode == nil || *r.last.ExitCode != 3 || r.last.SessionID != id {
		t.Errorf("got exit %v in session %q, want 3 in %q", r.last.ExitCode, r.last.SessionID, id)
	}
	stream(t, s, ExecIn{ID: &id, Command: "printf 'wait 1%%'; sleep 0.1; printf '\\rall ok!\\n'; printf " +
		"'ö%.0s' {1..5}"}).want(t, "start output exit", "all ok!\nööööö", completed)
	stream(t, s, ExecIn{ID: &id, Command: "true"}).want(t, "start exit", "", completed)
	big := strings.TrimSuffix(strings.Repeat("0123456789\n", 20_000), "\n")
	stream(t, s, ExecIn{ID: &id, Command: "yes 0123456789 | head -n 20000", Truncate: true}).want(t, "start output exit", big, completed)
	r = stream(t, s, ExecIn{ID: &id, Command: "echo before; sleep 1000", Timeout: new(0.3)})
	r.want(t, "start output timeout", "before", running)
}

func TestExecStreamFailsAsExecDoes(t *testing.T) {
	t.Parallel()
	s := newService(t)
	none := func(op.Event) error { t.Error("got an event, want none"); return nil }
	wantError(t, s.ExecStream(t.Context(), ExecIn{Command: "a\x00b"}, none), op.Invalid, "zero byte")
	wantError(t, s.ViewStream(t.Context(), ViewIn{ID: "nope"}, none), op.NotFound, "Session not found")
}

func TestCanceledStream(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := "a"
	ctx, cancel := context.WithCancel(t.Context())
	err := s.ExecStream(ctx, ExecIn{ID: &id, Command: "echo one; read x; echo $x"}, func(e op.Event) error {
		if e.Name == "output" {
			cancel()
		}
		return nil
	})
	wantError(t, err, op.Canceled, "canceled")
	if v := view(t, s, id); v.Status != running {
		t.Errorf("got %s, want the command to continue", v.Status)
	}
	write(t, s, id, "on", true)
	wantEnd(t, wait(t, s, id), "one\non\non", 0)
}

func TestViewStreamFollowsTheRunningCommand(t *testing.T) {
	t.Parallel()
	s := newService(t)
	background(t, s, "a", "echo one; read x; echo $x")
	waitForOutput(t, s, "a", "one")
	for _, want := range []string{"start output exit", "start output exit"} { // it runs, then it has ended
		r := &streamed{}
		err := s.ViewStream(t.Context(), ViewIn{ID: "a"}, func(e op.Event) error {
			if e.Name == "output" && view(t, s, "a").Status == running {
				write(t, s, "a", "on", true)
			}
			return r.add(e)
		})
		if err != nil {
			t.Fatal(err)
		}
		r.want(t, want, "one\non\non", completed)
	}
}

// TestDroppedOutputIsCounted: a slow reader gets the end of the output and the number of missing
// characters.
func TestDroppedOutputIsCounted(t *testing.T) {
	t.Parallel()
	f := &follower{}
	if e := f.advance(vt.Text{Head: "ab\nc"}); e.Data != "ab\nc" || *e.Offset != 0 {
		t.Errorf("got %q at %d, want all at 0", e.Data, *e.Offset)
	}
	if e := f.advance(vt.Text{Head: "ab\ncd"}); e.Data != "d" || *e.Offset != 4 {
		t.Errorf("got %q at %d, want d at 4", e.Data, *e.Offset)
	}
	if e := f.advance(vt.Text{Head: "ab\nx"}); e.Data != "x" || *e.Offset != 3 {
		t.Errorf("got %q at %d, want the rewritten line at 3", e.Data, *e.Offset)
	}
	if e := f.advance(vt.Text{Head: "ab\n", Dropped: 10, Tail: "end\n"}); e.Data != "end\n" || *e.Offset != 13 || e.Dropped != 9 {
		t.Errorf("got %q at %d after %d dropped, want the end at 13 after 9", e.Data, *e.Offset, e.Dropped)
	}
	if e := f.advance(vt.Text{Head: "ab\n", Dropped: 10, Tail: "end\n"}); e.Data != "" {
		t.Errorf("got %q again, want nothing", e.Data)
	}
}
