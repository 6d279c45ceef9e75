package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// keeper is a fake of the store of records.
type keeper map[string]int

func (k keeper) Save(sb sandbox.Sandbox, entries []json.RawMessage, _ map[int64][]byte) {
	k[sb.Spec.Name] = len(entries)
}

// TestSlowSandboxKeepsItsRecord: the hub reads the record of a slow sandbox before it deletes the sandbox; a sandbox
// that never responds is deleted anyway.
func TestSlowSandboxKeepsItsRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPipeProvider(func(sb sandbox.Sandbox) http.Handler {
			return newGuest(sb, func(g *guestServer) {
				g.mux.HandleFunc("GET /v1/sandbox/activity", func(w http.ResponseWriter, r *http.Request) {
					wait := time.After(5 * time.Second)
					if sb.Spec.Name == "silent" {
						wait = nil
					}
					select {
					case <-wait:
						fmt.Fprint(w, `{"entries":[{"id":1}]}`)
					case <-r.Context().Done():
					}
				})
			})
		})
		h := build(Config{Provider: p, Metrics: metric.New()}, stores{})
		kept := keeper{}
		h.fleet.Records = kept
		h.Begin(context.Background())
		for _, name := range []string{"slow", "silent"} {
			if _, err := h.lifecycle.Make(t.Context(), lifecycle.CreateIn{Name: name}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := h.lifecycle.Delete(t.Context(), lifecycle.NameIn{Name: name}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("the deletion of %s took %v, want at most 15s", name, took)
			}
		}
		if _, silent := kept["silent"]; kept["slow"] != 1 || silent {
			t.Errorf("got the records %v, want only the record of slow", kept)
		}
		h.Close()
		p.Close()
	})
}
