package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// A sandbox continues the trace of its caller.
func TestTrace(t *testing.T) {
	t.Parallel()
	var got output
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(&got, r.Body)
		io.WriteString(w, "{}")
	}))
	defer collector.Close()
	s := serve(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer hidden")
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/bash/exec", strings.NewReader(`{"command":"env"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", "00-"+trace+"-"+parent+"-01")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := read(t, res); status != 200 || strings.Contains(body, "hidden") {
		t.Errorf("%d %s, want status 200, without \"hidden\"", status, body)
	}
	testenv.Poll(t, "the span arrives", func() bool {
		text := got.String()
		return strings.Contains(text, trace) && strings.Contains(text, parent) && strings.Contains(text, `"bash_exec"`)
	})
}
