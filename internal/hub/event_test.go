package hub

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// stream reads server-sent events.
type stream struct {
	t   *testing.T
	in  *bufio.Reader
	res *http.Response
	id  string
}

func (r *rig) stream(path, after string, header ...string) *stream {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "GET", r.server.URL+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 {
		r.t.Fatalf("got %v, want status 200", res.Status)
	}
	return &stream{t: r.t, in: bufio.NewReader(res.Body), res: res}
}

// next returns the next event; false at the end.
func (s *stream) next() (lifecycle.Event, bool) {
	s.t.Helper()
	var e lifecycle.Event
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return e, false
		}
		line = strings.TrimSuffix(line, "\n")
		if v, ok := strings.CutPrefix(line, "id: "); ok {
			s.id = v
		}
		if v, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(v), &e); err != nil {
				s.t.Fatal(line)
			}
		}
		if line == "" && e.Type != "" {
			return e, true
		}
	}
}

// want reads up to an event of a kind.
func (s *stream) want(kind, status string) lifecycle.Event {
	s.t.Helper()
	for {
		e, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended before %s", kind)
		}
		if e.Type == kind && (status == "" || e.Sandbox.Status == status) {
			return e
		}
	}
}

func TestEventsResume(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	all := r.stream("/api/v1/events", "")
	r.create(`{"name":"a","env":{"SECRET":"x"}}`)
	all.want("created", "creating")
	if e := all.want("changed", "running"); e.Sandbox.Name != "a" || e.Sandbox.Env["SECRET"] != "" ||
		e.Sandbox.URL != r.server.URL+"/sandbox/a/" {
		t.Errorf(`got %+v, want name "a", no variable SECRET and URL %q`, e, r.server.URL+"/sandbox/a/")
	}
	one := r.stream("/api/v1/sandbox/a/events", "")
	one.want("existing", "running")
	r.create(`{"name":"b"}`)
	r.do("POST", "/api/v1/sandbox/a/pause", "")
	if e := one.want("changed", "paused"); e.Sandbox.Name != "a" {
		t.Errorf(`got %+v, want name "a"`, e)
	}
	one.res.Body.Close()
	// Annotations of the hub cause no events.
	if _, err := r.provider.Update(t.Context(), r.sandbox("a").ID, func(s *sandbox.Spec) error {
		naming.Annotate(s, naming.AnnotationLastActive, "1")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.do("POST", "/api/v1/sandbox/a/resume", "")
	r.do("POST", "/api/v1/sandbox/a/stop", "")
	all.want("changed", "stopped")
	again := r.stream("/api/v1/sandbox/a/events", one.id)
	for _, want := range []string{"running", "stopped"} {
		if e, ok := again.next(); !ok || e.Type != "changed" || e.Sandbox.Status != want {
			t.Errorf("got %v %+v, want a change to %q", ok, e, want)
		}
	}
	r.do("DELETE", "/api/v1/sandbox/a", "")
	again.want("deleted", "")
	if e, ok := again.next(); ok {
		t.Errorf("got %+v after the end, want no event", e)
	}
	// A client that reconnects after the deletion gets its event, once.
	late := r.stream("/api/v1/sandbox/a/events?after="+one.id, "")
	late.want("deleted", "")
	if a := r.do("GET", "/api/v1/sandbox/a/events", ""); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	// An unknown event ID: of another hub, or too old.
	for _, id := range []string{"elsewhere-5", "nonsense", r.hub.history.ID(1 << 40)} {
		s := r.stream("/api/v1/events", id)
		if e, ok := s.next(); !ok || e.Type != "missed" {
			t.Errorf(`%s: got %+v, want an event "missed"`, id, e)
		}
		if e, ok := s.next(); !ok || e.Type != "existing" || e.Sandbox.Name != "b" {
			t.Errorf(`%s: got %+v, want an event "existing" of "b"`, id, e)
		}
	}
}

func TestEventsBelongToOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	s := r.stream("/api/v1/events", "", "X-Test-Subject", "anna")
	r.create(`{"name":"x"}`, "X-Test-Subject", "bert")
	r.create(`{"name":"y"}`, "X-Test-Subject", "anna")
	if e, ok := s.next(); !ok || e.Sandbox.Name != "y" {
		t.Errorf(`got %+v, want an event of "y"`, e)
	}
}

// TestCloseEndsStreams: the shutdown of a hub does not wait for readers.
func TestCloseEndsStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	s := r.stream("/api/v1/sandbox/a/events", "")
	s.want("existing", "")
	r.hub.Close()
	// The creation may be reported after the state that it led to.
	for e, ok := s.next(); ok; e, ok = s.next() {
		if e.Type != "created" {
			t.Errorf("got %+v, want no event", e)
		}
	}
	r.hub.Close()
	if _, err := r.hub.lifecycle.Make(context.Background(), lifecycle.CreateIn{Name: "late"}); err != nil {
		t.Log(err) // the hub must not close the provider
	}
}
