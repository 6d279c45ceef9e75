package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/activity"
	"github.com/cove-sandbox/cove/internal/hub/inspect"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// active is a guest with three entries. One does not respond, and one sends garbage.
func active(sb sandbox.Sandbox) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		at := time.Now().Format(time.RFC3339Nano)
		entry := func(id int, input, more string) string {
			text, _ := json.Marshal(fmt.Sprintf(`{"command":%q}`, input))
			return fmt.Sprintf(`{"id":%d,"time":%q,"op":"bash_exec","input":%s,"output":"{}"%s}`, id, at, text, more)
		}
		switch sb.Spec.Name {
		case "silent":
			if r.URL.Query().Get("q") == "" { // when its record is saved
				fmt.Fprint(w, `{"entries":[]}`)
				return
			}
			<-r.Context().Done()
		case "garbage":
			fmt.Fprint(w, `{"entries":[{"id":"x"},`)
		default:
			fmt.Fprintf(w, `{"entries":[%s,%s,%s]}`, entry(1, `say "Hello" of `+sb.Spec.Name, ""),
				entry(2, "say hello, and fail", `,"failed":true`), entry(3, "read hello", `,"reads":true`))
		}
	}
}

// TestSearchOfActivity: a search finds entries of running, paused and deleted sandboxes of the caller only, does not
// wake a sandbox, and is not stopped by one that never responds or sends garbage.
func TestSearchOfActivity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPipeProvider(func(sb sandbox.Sandbox) http.Handler {
			return newGuest(sb, func(g *guestServer) { g.mux.HandleFunc("GET /v1/sandbox/activity", active(sb)) })
		})
		records := activity.New(activity.Config{Dir: t.TempDir() + "/records", Keep: 7 * 24 * time.Hour, Log: slog.New(slog.DiscardHandler)})
		h := build(Config{Provider: p, Metrics: metric.New()}, stores{records: records})
		h.Begin(context.Background())
		as := func(who string) context.Context { return op.WithCall(t.Context(), &op.Call{Subject: who}) }
		forever := lifecycle.CreateIn{Timeout: new(-1.0), IdleTimeout: new(-1.0)}
		for owner, names := range map[string][]string{"anna": {"alive", "paused", "gone", "silent", "garbage"}, "bert": {"other"}} {
			for _, name := range names {
				in := forever
				in.Name = name
				if _, err := h.lifecycle.Make(as(owner), in); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := h.lifecycle.Pause(as("anna"), lifecycle.PauseIn{Name: "paused"}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.lifecycle.Delete(as("anna"), lifecycle.NameIn{Name: "gone"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)

		search := func(who string, in inspect.SearchIn) (string, inspect.SearchOut) {
			t.Helper()
			in.Limit = 100
			out, err := h.inspect.Search(as(who), in)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range out.Entries {
				got = append(got, fmt.Sprintf("%s %s %d", f.Name, f.Status, f.Entry.ID))
			}
			return strings.Join(got, ", "), out
		}
		// Those of the running sandbox are the latest.
		got, out := search("anna", inspect.SearchIn{Text: `SAY "hello"`})
		if got != "alive running 1, gone deleted 1, paused paused 1" && got != "alive running 1, paused paused 1, gone deleted 1" ||
			out.Unanswered != 2 || out.Complete {
			t.Errorf("got %s with %d unanswered, want the entries of three sandboxes, and two unanswered", got, out.Unanswered)
		}
		if got, _ := search("anna", inspect.SearchIn{Text: "hello", Failed: true}); strings.Count(got, " 2") != 3 || strings.Contains(got, " 1") {
			t.Errorf("got %s, want the failures", got)
		}
		if got, _ := search("anna", inspect.SearchIn{Text: "read hello"}); got != "" {
			t.Errorf("got %s, want no reads", got)
		}
		if got, _ := search("anna", inspect.SearchIn{Text: "read hello", Reads: true}); strings.Count(got, " 3") != 3 {
			t.Errorf("got %s, want the reads", got)
		}
		if got, _ := search("bert", inspect.SearchIn{Text: "hello"}); strings.Contains(got, "alive") || !strings.Contains(got, "other") {
			t.Errorf("bert gets %s, want its own", got)
		}
		if _, err := h.inspect.Search(as("bert"), inspect.SearchIn{User: "anna", Limit: 1}); err == nil {
			t.Error("bert searches the sandboxes of anna")
		}
		shared := op.WithCall(t.Context(), &op.Call{Subject: "anna", Share: &op.Share{}})
		if _, err := h.inspect.Search(shared, inspect.SearchIn{Limit: 1}); err == nil {
			t.Error("a link searches other sandboxes")
		}
		if sb, err := h.fleet.Find(as("anna"), "paused"); err != nil || sb.State != sandbox.Paused {
			t.Errorf("got %v, %v, want it paused", sb.State, err)
		}
		time.Sleep(7 * 24 * time.Hour)
		if got, _ := search("anna", inspect.SearchIn{Text: "hello"}); strings.Contains(got, "gone") {
			t.Errorf("got %s, want no expired records", got)
		}
		h.Close()
		p.Close()
	})
}
