package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/hub/audit"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/page"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// exchange is one request that is forwarded, and its response.
type exchange struct {
	target
	sandbox sandbox.Sandbox
	box     *fleet.Box
	base    *url.URL // the hub as the caller reaches it; never nil

	status int // of the sandbox's response
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// transport sends a request to the sandbox of its exchange.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return exchangeOf(r.Context()).box.RoundTrip(r)
}

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// forward sends a request to the sandbox and returns its response.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, d decision) {
	ctx := r.Context()
	box, leave, err := g.enter(ctx, d)
	if err != nil {
		g.fail(w, r, d.target, fleet.Unreachable(d.target.name, err))
		return
	}
	defer leave()
	if d.started { // so that the address of the page does not start the sandbox again
		origin.Redirect(w, pageURL(r, false), "")
		return
	}
	// Otherwise a response that begins before the request has ended would wait for its end.
	http.NewResponseController(w).EnableFullDuplex()
	x := &exchange{target: d.target, sandbox: d.sandbox, box: box, base: baseOf(r, op.CallOf(ctx))}
	ctx, done := g.WhileValid(ctx)
	defer done()
	ctx, s := g.Tracer.Start(ctx, OpName, slog.String("http.request.method", r.Method))
	g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, exchangeKey{}, x)))
	if s != nil {
		s.Set(append(audit.Attrs(op.CallOf(ctx)), slog.Int("http.response.status_code", x.status))...)
		s.End(span.Status(op.CallOf(ctx).Code))
	}
}

// enter opens the sandbox of a decision until leave is called.
func (g *Gateway) enter(ctx context.Context, d decision) (box *fleet.Box, leave func(), err error) {
	if !d.wake {
		box, err = g.Fleet.Visit(ctx, d.sandbox)
		return box, func() {}, err
	}
	if box, err = g.Fleet.Enter(ctx, d.sandbox, d.patience); err != nil {
		return nil, nil, err
	}
	return box, box.Leave, nil
}

// handleError replies to a request that the sandbox did not respond to.
func (g *Gateway) handleError(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	if r.Context().Err() != nil {
		w.WriteHeader(op.StatusCanceled) // The client has closed the connection.
		return
	}
	dial, unsent := errors.AsType[*fleet.DialError](err)
	switch {
	case unsent && dial.Port != 0:
		page.Write(w, r, http.StatusBadGateway, 0,
			fmt.Sprintf("nothing listens on port %d in sandbox %q: %v; start the service on that port",
				dial.Port, x.name, dial.Err))
		return
	case unsent:
		err = fleet.Unreachable(x.name, dial.Err)
	default:
		if sb, gone := g.Provider.Get(r.Context(), x.sandbox.ID); errors.Is(gone, sandbox.ErrNotFound) || sb.State == sandbox.Deleting {
			err = fault.NoSandbox(x.name)
		}
	}
	if e, ok := op.AsError(err); ok {
		g.fail(w, r, x.target, e)
		return
	}
	g.Log.Warn("request to sandbox failed", "sandbox", x.sandbox.ID, "error", err)
	if unsent {
		page.Write(w, r, http.StatusServiceUnavailable, fault.RetrySoon,
			fmt.Sprintf("the server of sandbox %q does not respond; read its logs, or stop and start it", x.name))
		return
	}
	what := "closed the connection"
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		what = "sent an invalid response: " + err.Error()
	}
	page.Write(w, r, http.StatusBadGateway, 0, fmt.Sprintf("the server of sandbox %q %s", x.name, what))
}
