package bench

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkToolCall: a small tool over MCP, compared with the same operation over REST and with a bare HTTP reply. The calls alternate,
// so that load on the machine affects all equally. MCP is measured with a bare request and with an SDK session, which adds overhead.
func BenchmarkToolCall(b *testing.B) {
	url := serve(b)
	c := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	s, err := c.Connect(b.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp",
		DisableStandaloneSSE: true}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const args = `{"path":"/etc/hostname"}`
	ways := map[string]func(){
		"health": func() {
			res, err := http.Get(url + "/healthz")
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		},
		"rest": func() { post(b, url+"/v1/file/stat", args) },
		"bare": func() {
			post(b, url+"/mcp", `{"method":"tools/call","params":{"name":"file_stat","arguments":`+args+`}}`)
		},
		"session": func() {
			r, err := http.NewRequest(http.MethodPost, url+"/mcp",
				strings.NewReader(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"file_stat","arguments":`+args+`}}`))
			if err != nil {
				b.Fatal(err)
			}
			r.Header = http.Header{"Mcp-Session-Id": {s.ID()}, "Mcp-Protocol-Version": {"2025-06-18"},
				"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				b.Fatal(err)
			}
			defer res.Body.Close()
			if out, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(out), `"result"`) {
				b.Fatalf("got %s, %v, want a result", out, err)
			}
		},
		"sdk": func() {
			if r, err := s.CallTool(b.Context(), &mcp.CallToolParams{Name: "file_stat", Arguments: json.RawMessage(args)}); err != nil || r.IsError {
				b.Fatalf("got %+v, %v, want a result", r, err)
			}
		},
	}
	took := map[string][]time.Duration{}
	for i := range 2200 {
		for name, call := range ways {
			begin := time.Now()
			call()
			if i >= 200 {
				took[name] = append(took[name], time.Since(begin))
			}
		}
	}
	p := func(name string) time.Duration { return percentile(took[name], 0.5).Round(time.Microsecond) }
	report(b, "p50 REST %v, health %v; over REST: %v bare, %v in a session (target 300µs), %v by the SDK's client with its own work",
		p("rest"), p("health"), p("bare")-p("rest"), p("session")-p("rest"), p("sdk")-p("rest"))
}
