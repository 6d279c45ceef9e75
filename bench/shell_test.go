package bench

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// BenchmarkShellExec: true in a session, compared with spawning bash -c true.
func BenchmarkShellExec(b *testing.B) {
	url := serve(b)
	post(b, url+"/v1/shell/exec", `{"id":"s","command":"true"}`)
	var ours, raw []time.Duration
	for range 300 {
		begin := time.Now()
		if err := exec.Command("bash", "-c", "true").Run(); err != nil {
			b.Fatal(err)
		}
		raw = append(raw, time.Since(begin))
		begin = time.Now()
		post(b, url+"/v1/shell/exec", `{"id":"s","command":"true"}`)
		ours = append(ours, time.Since(begin))
	}
	o, r := percentile(ours, 0.5), percentile(raw, 0.5)
	report(b, "p50 %v in a session, %v raw spawn: %v over it (target 5ms)", o.Round(10*time.Microsecond),
		r.Round(10*time.Microsecond), (o - r).Round(10*time.Microsecond))
}

// BenchmarkShellSocket: 100 MB through a terminal and its WebSocket, compared with a plain pipe.
func BenchmarkShellSocket(b *testing.B) {
	const command = `head -c 104857600 /dev/zero | tr '\0' x | fold -w 100`
	raw := pipe(b, command)
	url := serve(b)
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(url, "http")+"/v1/shell/ws", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(64 << 20)
	say := func(kind string, data any) {
		text, err := json.Marshal(map[string]any{"type": kind, "data": data})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Write(ctx, websocket.MessageText, text); err != nil {
			b.Fatal(err)
		}
	}
	var begin time.Time
	got := 0
	for {
		_, text, err := c.Read(ctx)
		if err != nil {
			b.Fatal(err)
		}
		var m struct {
			Type string          `json:"type"`
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			b.Fatal(err)
		}
		switch m.Type {
		case "ready":
			begin = time.Now()
			say("input", command+"; echo the-\"\"end\r")
		case "ping":
			say("pong", map[string]any{"timestamp": time.Now().Unix()})
		case "output":
			got += len(m.Data)
		}
		if m.Type == "output" && strings.Contains(string(m.Data), "the-end") {
			break
		}
	}
	took := time.Since(begin).Seconds()
	report(b, "100 MB of terminal output in %.1f s; %d MB reached the viewer at %.0f MB/s; plain pipe %.0f MB/s (a "+
		"viewer that cannot follow is resynchronised)", took, got>>20, float64(got)/took/1e6, raw)
}
