package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
)

// BenchmarkAgainst compares this tree with an older one at the path AGAINST, which must be built. The
// hubs take turns, so that load on the machine affects both equally; a single figure means little on a
// busy machine.
func BenchmarkAgainst(b *testing.B) {
	older := os.Getenv("AGAINST")
	if older == "" {
		b.Skip("AGAINST, the path of an older tree, is not set")
	}
	var starts [2][]time.Duration
	for range 40 {
		for j, aio := range []string{filepath.Join(older, "bin", "aio"), program(b, "aio")} {
			took, _ := start(b, aio)
			starts[j] = append(starts[j], took)
		}
	}
	hubs := [2]*contender{newContender(b, filepath.Join(older, "bin", "cove")), newContender(b, program(b, "cove"))}
	for i := range 120 {
		for j := range hubs {
			hubs[(i+j)%2].create(b, fmt.Sprintf("n%d", i))
			idle(b, 60*time.Millisecond)
		}
	}
	for _, h := range hubs {
		if _, err := h.Create(context.Background(), client.CreateOptions{Name: "a"}); err != nil {
			b.Fatal(err)
		}
		defer remove(b, h.Client, "a")
	}
	for i := range 3000 {
		for j := range hubs {
			hubs[(i+j)%2].request(b, "a")
		}
	}
	for i := range 300 {
		for j := range hubs {
			hubs[(i+j)%2].exec(b, "a")
		}
	}
	was, is := hubs[0], hubs[1]
	for _, row := range []struct {
		what    string
		was, is []time.Duration
	}{
		{"start of a server", starts[0], starts[1]}, {"create", was.created, is.created}, {"create to first output", was.first, is.first},
		{"request through the hub", was.requests, is.requests}, {"exec through the hub", was.execs, is.execs},
	} {
		before, now := percentile(row.was, 0.5), percentile(row.is, 0.5)
		low, lowNow := percentile(row.was, 0.25), percentile(row.is, 0.25)
		report(b, "%-24s p50 %v, before %v: %.2f ×; p25 %v, before %v: %.2f ×", row.what,
			now.Round(time.Microsecond), before.Round(time.Microsecond), float64(now)/float64(before),
			lowNow.Round(time.Microsecond), low.Round(time.Microsecond), float64(lowNow)/float64(low))
	}
}

// contender is a hub with its measurements.
type contender struct {
	*client.Client
	url                             string
	created, first, requests, execs []time.Duration
}

func newContender(b *testing.B, cove string) *contender {
	b.Helper()
	c, url := startProgram(b, cove, b.TempDir())
	return &contender{Client: c, url: url}
}

// create measures a create and a command in the new sandbox.
func (h *contender) create(b *testing.B, name string) {
	b.Helper()
	begin := time.Now()
	if _, err := h.Create(context.Background(), client.CreateOptions{Name: name}); err != nil {
		b.Fatal(err)
	}
	h.created = append(h.created, time.Since(begin))
	h.run(b, name)
	h.first = append(h.first, time.Since(begin))
	remove(b, h.Client, name)
}

func (h *contender) run(b *testing.B, name string) {
	b.Helper()
	var out struct{ Stdout string }
	if err := h.Guest(name).Call(context.Background(), "POST", "/v1/bash/exec",
		map[string]any{"command": "echo hello"}, &out); err != nil || out.Stdout != "hello\n" {
		b.Fatalf("%+v, %v, want Stdout %q", out, err, "hello\n")
	}
}

func (h *contender) exec(b *testing.B, name string) {
	b.Helper()
	begin := time.Now()
	h.run(b, name)
	h.execs = append(h.execs, time.Since(begin))
}

func (h *contender) request(b *testing.B, name string) {
	b.Helper()
	begin := time.Now()
	res, err := http.Get(h.url + "/sandbox/" + name + "/healthz")
	if err != nil {
		b.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	h.requests = append(h.requests, time.Since(begin))
}
