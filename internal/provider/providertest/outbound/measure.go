package outbound

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/cove-sandbox/cove/internal/network/egress"
)

// measuredBytes is the length of the connection that is measured.
const measuredBytes = 512 << 20

// measure prints how connections compare with direct ones. It fails only if they do.
func measure(o *outside) {
	o.Helper()
	o.listen(9, func(c net.Conn) {
		if n, _ := c.Read(make([]byte, 8)); n > 0 {
			_, _ = io.Copy(c, io.LimitReader(zeros{}, measuredBytes))
		}
	})
	o.serve(egress.Config{}, "*.ok.test:9")
	direct, err := o.Outside("measure", o.ports[9])
	if err != nil {
		o.Fatalf("%v: %s", err, direct)
	}
	var connect, rate, connectInside, rateInside int
	out := o.must("A=$(" + o.Probe + " lookup echo.ok.test); " + o.Probe + " measure $A:9")
	if _, err := fmt.Sscan(direct+out, &connect, &rate, &connectInside, &rateInside); err != nil {
		o.Fatalf("%v: %s%s", err, direct, out)
	}
	o.Logf("measured: connect p50 %d µs, direct %d µs; %d MB/s, direct %d MB/s: %d %%",
		connectInside, connect, rateInside, rate, 100*rateInside/max(rate, 1))
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// Request sends a command to the server that dial connects to, which runs it in its sandbox, and returns the output.
func Request(ctx context.Context, dial func(context.Context) (net.Conn, error), command string) (string, error) {
	tr := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/run", strings.NewReader(command))
	if err != nil {
		return "", err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return string(out), err
}
