package span

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// run sends batches until Close, and then the rest of the queue, for no longer than Timeout.
func (t *Tracer) run() {
	defer close(t.end)
	if t.own {
		defer t.cfg.Client.CloseIdleConnections()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ended:
			return
		case <-t.stop:
		}
		late := time.NewTimer(t.cfg.Timeout)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C:
			cancel()
		}
	}()
	tick := time.NewTicker(t.cfg.Interval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-t.wake:
			if failing {
				continue // the ticker retries
			}
		case <-tick.C:
		case <-t.stop:
			t.drain(ctx, failing)
			t.mu.Lock()
			t.dropped.Add(uint64(len(t.queue)))
			t.queue = nil
			t.mu.Unlock()
			return
		}
		failing = t.drain(ctx, failing)
	}
}

// drain sends batches until the queue is empty or one fails. A batch that can be retried
// returns to the queue, as far as there is room.
func (t *Tracer) drain(ctx context.Context, failed bool) (failing bool) {
	for {
		t.mu.Lock()
		n := min(len(t.queue), t.cfg.Batch)
		batch := t.queue[:n:n]
		t.queue = t.queue[n:]
		t.mu.Unlock()
		if n == 0 {
			return failed
		}
		retry, err := t.send(ctx, batch)
		if err == nil {
			if failed {
				t.cfg.Log.Info("trace export has recovered", "dropped", t.dropped.Load())
			}
			failed = false
			continue
		}
		if !failed {
			t.cfg.Log.Warn("trace export fails", "error", err)
		}
		t.mu.Lock()
		keep := 0
		if retry {
			keep = min(n, t.cfg.Queue-len(t.queue))
			t.queue = append(batch[n-keep:], t.queue...)
		}
		t.mu.Unlock()
		t.dropped.Add(uint64(n - keep))
		return true
	}
}

// send exports a batch. If that fails, it reports whether to retry.
func (t *Tracer) send(ctx context.Context, batch []*Span) (retry bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	body, err := json.Marshal(t.request(batch))
	if err != nil {
		return false, fmt.Errorf("encode spans: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("invalid endpoint; use a URL such as http://127.0.0.1:4318")
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range t.cfg.Headers {
		req.Header.Set(name, value)
	}
	res, err := t.cfg.Client.Do(req)
	if err != nil {
		return true, fmt.Errorf("export spans: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be reused
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		retry = true
	}
	if res.StatusCode/100 != 2 {
		return retry, fmt.Errorf("export spans: the endpoint returned status %d", res.StatusCode)
	}
	return false, nil
}

// The messages of OTLP in JSON: IDs are hexadecimal, 64-bit numbers are strings.
type (
	exportRequest struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope      `json:"scope"`
		Spans []wireSpan `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	wireSpan struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		Parent     string      `json:"parentSpanId,omitempty"`
		State      string      `json:"traceState,omitempty"`
		Name       string      `json:"name"`
		Kind       int         `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []attribute `json:"attributes,omitempty"`
		Status     wireStatus  `json:"status"`
	}
	wireStatus struct {
		Code    int    `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String *string  `json:"stringValue,omitempty"`
		Int    *string  `json:"intValue,omitempty"`
		Double *float64 `json:"doubleValue,omitempty"`
		Bool   *bool    `json:"boolValue,omitempty"`
	}
)

const statusError = 2

func (t *Tracer) request(batch []*Span) exportRequest {
	spans := make([]wireSpan, len(batch))
	for i, s := range batch {
		spans[i] = s.wire()
	}
	about := []slog.Attr{slog.String("service.name", t.cfg.Service)}
	if t.cfg.Version != "" {
		about = append(about, slog.String("service.version", t.cfg.Version))
	}
	return exportRequest{[]resourceSpans{{
		Resource:   resource{attributes(about)},
		ScopeSpans: []scopeSpans{{Scope: scope{"cove", t.cfg.Version}, Spans: spans}},
	}}}
}

func (s *Span) wire() wireSpan {
	w := wireSpan{
		TraceID: hex.EncodeToString(s.at.trace[:]), SpanID: hex.EncodeToString(s.at.span[:]), State: s.at.state,
		Name: s.name, Kind: s.kind, Attributes: attributes(s.attrs),
		Start: strconv.FormatInt(s.start.UnixNano(), 10), End: strconv.FormatInt(s.stop.UnixNano(), 10),
	}
	if s.parent != [8]byte{} {
		w.Parent = hex.EncodeToString(s.parent[:])
	}
	if s.status != OK {
		w.Status = wireStatus{statusError, cut(string(s.status), maxText)}
	}
	return w
}

func attributes(attrs []slog.Attr) []attribute {
	out := make([]attribute, 0, len(attrs))
	for _, a := range attrs {
		out = append(out, attribute{cut(a.Key, maxName), wireValue(a.Value.Resolve())})
	}
	return out
}

func wireValue(v slog.Value) value {
	switch v.Kind() {
	case slog.KindInt64:
		n := strconv.FormatInt(v.Int64(), 10)
		return value{Int: &n}
	case slog.KindBool:
		b := v.Bool()
		return value{Bool: &b}
	case slog.KindFloat64:
		// JSON cannot express infinity and NaN; they are sent as text.
		if f := v.Float64(); f-f == 0 {
			return value{Double: &f}
		}
	}
	text := cut(v.String(), maxText)
	return value{String: &text}
}
