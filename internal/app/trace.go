package app

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// newTracer returns a tracer that sends spans to the collector through the upstream proxy; nil if
// tracing is off.
func newTracer(cfg config.Aio, version string, log *slog.Logger) *span.Tracer {
	if cfg.OTLPEndpoint == "" {
		return nil
	}
	return span.New(span.Config{
		Endpoint: cfg.OTLPEndpoint, Headers: cfg.OTLPHeaders, Service: "aio", Version: version, Log: log,
		Client: &http.Client{
			Transport:     &http.Transport{Proxy: selectProxy(cfg), MaxIdleConnsPerHost: 1},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
}

// front wraps the router: it adds the caller's trace to the context and serves previews by
// host name.
func (a *Aio) front(next http.Handler) http.Handler {
	next = findSite(routeOwnPorts(a.previews.Front(next), next))
	if a.tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(span.Extract(r.Context(), r.Header)))
	})
}

// outcome returns the status and attributes of a call's span.
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
