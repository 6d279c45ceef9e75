package app

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/span"
)

// newTracer sends spans to the collector, by the way that everything goes out.
func newTracer(cfg config.Aio, version string, log *slog.Logger) *span.Tracer {
	if cfg.OTLPEndpoint == "" {
		return nil
	}
	return span.New(span.Config{
		Endpoint: cfg.OTLPEndpoint, Headers: cfg.OTLPHeaders, Service: "aio", Version: version, Log: log,
		Client: &http.Client{
			Transport:     &http.Transport{Proxy: outbound(cfg), MaxIdleConnsPerHost: 1},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
}

// front is what a request meets before any operation: the trace that it belongs
// to, and the services behind ports.
func (a *Aio) front(next http.Handler) http.Handler {
	next = a.previews.Front(next)
	if a.tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(span.Extract(r.Context(), r.Header)))
	})
}

// outcome tells how a call ended.
func outcome(ctx context.Context, err error) (span.Status, []slog.Attr) {
	status := span.OK
	if err != nil {
		status = span.Status("internal")
		if e, ok := op.AsError(err); ok {
			status = span.Status(e.Code)
		}
	}
	return status, []slog.Attr{slog.String("aio.request", op.CallOf(ctx).ID)}
}
