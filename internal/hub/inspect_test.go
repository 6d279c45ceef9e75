package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/inspect"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestMetricsOverTime: samples are taken every 5 seconds since the first request, for an hour, and stop with the sandbox.
func TestMetricsOverTime(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Name: "a", Timeout: new(-1.0), IdleTimeout: new(-1.0)})
		metrics := func() inspect.MetricsOut {
			q.Helper()
			out, err := q.inspect.Metrics(q.Context(), lifecycle.NameIn{Name: "a"})
			if err != nil {
				q.Fatal(err)
			}
			return out
		}
		if got := metrics(); len(got.Samples) != 0 || got.Interval != 5 || got.Memory != 0 {
			q.Errorf("got %+v, want no samples yet", got)
		}
		q.after(time.Minute, sb)
		if n := len(metrics().Samples); n < 11 || n > 12 {
			q.Errorf("got %d samples after a minute", n)
		}
		all, err := q.inspect.AllMetrics(q.Context(), inspect.UserIn{})
		if err != nil || len(all) != 1 || all[0].ID != sb.ID || all[0].Memory != 42 || len(all[0].Trend) < 11 || all[0].BusySince != nil ||
			all[0].EndsAt != nil {
			q.Errorf("got %+v, %v, want the usage of the sandbox", all, err)
		}
		q.after(2*time.Hour, sb)
		if n := len(metrics().Samples); n != 720 {
			q.Errorf("got %d samples after two hours, want those of one hour", n)
		}
	})
}

// TestPastAndDeleted: the history shows changes of state, and the list of deleted sandboxes why they were deleted.
func TestPastAndDeleted(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Name: "a", Keep: true})
		q.make(lifecycle.CreateIn{Name: "b"})
		if _, err := q.lifecycle.Pause(q.Context(), lifecycle.PauseIn{Name: "a"}); err != nil {
			q.Fatal(err)
		}
		q.after(time.Second, sb)
		past, err := q.inspect.Past(q.Context(), lifecycle.NameIn{Name: "a"})
		if err != nil || len(past) < 2 || past[0].Type != "paused" || past[len(past)-1].Type != "created" {
			q.Errorf("got %+v, %v, want it created and paused", past, err)
		}
		q.history.Add(string(sandbox.Exceeded), time.Now(), sb, "out of memory: python3 was killed")
		for _, name := range []string{"a", "b"} {
			q.delete(name)
		}
		list, err := q.inspect.Deleted(q.Context(), inspect.UserIn{})
		if err != nil || len(list) != 2 || list[0].Name != "b" || list[0].Restore || !list[1].Restore ||
			!strings.Contains(list[1].Reason, "its owner requested it") {
			q.Errorf("got %+v, %v, want both with the reason, and a restorable", list, err)
		}
		if h := list[1].History; len(h) < 3 || !h[0].Bad || !strings.Contains(h[0].Message, "out of memory") || h[1].Type != "paused" {
			q.Errorf("got %+v, want that it ran out of memory after it was paused", h)
		}
		past, err = q.inspect.Past(q.Context(), lifecycle.NameIn{Name: "a"})
		if err != nil || len(past) != len(list[1].History)+1 || past[0].Type != "deleted" {
			q.Errorf("got %+v, %v, want the history of the deleted sandbox", past, err)
		}
		q.after(25*time.Hour, sb)
		if list, err := q.inspect.Deleted(q.Context(), inspect.UserIn{}); err != nil || len(list) != 0 {
			q.Errorf("got %+v, %v, want none after a day", list, err)
		}
	})
}

// TestActivityOfSandbox: the entries keep all fields, such as whether they failed, and do not wake the sandbox.
func TestActivityOfSandbox(t *testing.T) {
	t.Parallel()
	entry := `{"id":1,"time":"2024-01-02T03:04:05Z","op":"bash_exec","kind":"bash","via":"rest","caller":"anna","key":"k",` +
		`"input":"i","output":"o","error":"e","failed":true,"reads":true,"took_ms":1.5,"picture":true,"missed":2,` +
		`"change":{"path":"a"},"changes":[{"path":"b"}]}`
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("GET /v1/sandbox/activity", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"entries":[%s]}`, entry)
		})
	}})
	r.create(`{"name":"a"}`)
	a := r.do("GET", "/api/v1/sandbox/a/activity", "")
	var got, want any
	if err := errors.Join(json.Unmarshal(a.Data, &got), json.Unmarshal([]byte("["+entry+"]"), &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s, want %s", a.Data, entry)
	}
	r.do("POST", "/api/v1/sandbox/a/pause", "")
	if a := r.do("GET", "/api/v1/sandbox/a/activity", ""); a.Status != http.StatusConflict || r.status("a") != "paused" {
		t.Errorf("got %d, and the sandbox is %s; want 409 and paused", a.Status, r.status("a"))
	}
}
