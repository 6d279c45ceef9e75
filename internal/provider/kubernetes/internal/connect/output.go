package connect

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
)

// maxLines bounds how much of the output is downloaded, which can be many times the requested size.
const maxLines = "10000"

// Output returns the end of the output of the current Pod.
func (c *Connector) Output(ctx context.Context, b *box.Box, limit int64) ([]byte, error) {
	c.WaitReported(ctx, b.Record.PodName())
	query := url.Values{"container": {cluster.Container}, "tailLines": {maxLines}}
	resp, err := b.API.Send(ctx, api.Call{Method: http.MethodGet,
		URL: b.API.Address(cluster.Pods, []string{b.Record.PodName(), "log"}, query), Accept: "*/*"})
	switch {
	case api.IsMissing(err), api.HasCode(err, http.StatusBadRequest): // the Pod has ended or has not started
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read logs: %w", err)
	}
	defer resp.Body.Close()
	var end []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(chunk)
		end = Tail(append(end, chunk[:n]...), limit)
		if err == io.EOF {
			return end, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read logs: %w", err)
		}
	}
}

// Tail returns the last bytes of an output.
func Tail(b []byte, limit int64) []byte {
	return b[max(0, int64(len(b))-max(limit, 0)):]
}

// lastOutput returns the last output of a program for an error message; empty if there is none.
func (c *Connector) lastOutput(ctx context.Context, b *box.Box) string {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	out, err := c.Output(call, b, 2<<10)
	if text := strings.TrimSpace(string(out)); err == nil && text != "" {
		return "; its last output: " + text
	}
	return ""
}
