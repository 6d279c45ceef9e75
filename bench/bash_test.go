package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// BenchmarkBashExec: true over HTTP, compared with spawning bash -c true. They take turns, so that load
// on the machine affects both equally.
func BenchmarkBashExec(b *testing.B) {
	url := serve(b)
	var ours, raw []time.Duration
	for range 300 {
		begin := time.Now()
		if err := exec.Command("bash", "-c", "true").Run(); err != nil {
			b.Fatal(err)
		}
		raw = append(raw, time.Since(begin))
		begin = time.Now()
		post(b, url+"/v1/bash/exec", `{"command":"true"}`)
		ours = append(ours, time.Since(begin))
	}
	o, r := percentile(ours, 0.5), percentile(raw, 0.5)
	report(b, "p50 %v over HTTP, %v raw spawn: %.2f × (target 1.5; envd 2.0–2.2, execd 2.0)",
		o.Round(10*time.Microsecond), r.Round(10*time.Microsecond), float64(o)/float64(r))
}

// BenchmarkBashOutput: 100 MB through /output, compared with a plain pipe.
func BenchmarkBashOutput(b *testing.B) {
	const size = 100 << 20
	command := fmt.Sprintf("head -c %d /dev/zero | tr '\\\\0' x", size)
	raw := pipe(b, strings.ReplaceAll(command, `\\`, `\`))
	url := serve(b)
	begin := time.Now()
	var started struct {
		Data struct {
			CommandID string `json:"command_id"`
			SessionID string `json:"session_id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(post(b, url+"/v1/bash/exec", fmt.Sprintf(`{"command":"%s","async_mode":true}`, command)), &started); err != nil {
		b.Fatal(err)
	}
	var offset, got int
	for {
		var reply struct {
			Data struct {
				Stdout string `json:"stdout"`
				Offset int    `json:"offset"`
				Status string `json:"status"`
			} `json:"data"`
		}
		body := fmt.Sprintf(`{"session_id":%q,"command_id":%q,"offset":%d,"wait":true}`, started.Data.SessionID, started.Data.CommandID, offset)
		if err := json.Unmarshal(post(b, url+"/v1/bash/output", body), &reply); err != nil {
			b.Fatal(err)
		}
		got += len(reply.Data.Stdout)
		offset = reply.Data.Offset
		if reply.Data.Status != "running" && reply.Data.Stdout == "" {
			break
		}
	}
	report(b, "%d MB of %d read at %.0f MB/s; plain pipe %.0f MB/s", got>>20, size>>20, float64(got)/time.Since(begin).Seconds()/1e6, raw)
}

func post(b *testing.B, url, body string) []byte {
	b.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(res.Body); err != nil {
		b.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		b.Fatalf("%s: %d %s, want status 200", url, res.StatusCode, out.String())
	}
	return out.Bytes()
}

// pipe returns the throughput of a command's output through a plain pipe, in MB/s.
func pipe(b *testing.B, command string) float64 {
	b.Helper()
	begin := time.Now()
	cmd := exec.Command("bash", "-c", command)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	n, _ := io.Copy(io.Discard, out)
	cmd.Wait()
	return float64(n) / time.Since(begin).Seconds() / 1e6
}
