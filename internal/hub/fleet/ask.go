package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const askTime = 10 * time.Second

// Ask sends a request of the hub to the server of a running sandbox and returns the data of the reply,
// which is untrusted. It does not wake the sandbox or keep it awake.
func Ask(ctx context.Context, f *Fleet, sb sandbox.Sandbox, method, path string, body []byte) ([]byte, error) {
	name := sb.Spec.Name
	switch {
	case sb.State != sandbox.Running:
		return nil, op.Errorf(op.Conflict, "sandbox %q is %s; resume or start it first", name, sb.State)
	case !IsNative(sb):
		return nil, op.Errorf(op.Invalid, "the server of sandbox %q is not Cove's; this is not available", name)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+ServerHost+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	op.CallOf(ctx).SendCaller(req.Header)
	res, err := f.box(sb).transport.RoundTrip(req)
	if err != nil {
		return nil, op.Errorf(op.Unavailable, "sandbox %q does not respond: %w", name, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(http.MaxBytesReader(nil, res.Body, maxAnswer))
	if err != nil {
		return nil, op.Errorf(op.Unavailable, "read the reply of sandbox %q: %w", name, err)
	}
	var reply struct {
		Data    json.RawMessage `json:"data"`
		Message string          `json:"message"`
		Detail  string          `json:"detail"`
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		return nil, op.Errorf(op.Unavailable, "sandbox %q sent an invalid reply", name)
	}
	if res.StatusCode >= 400 {
		return nil, op.Errorf(codeOf(res.StatusCode), "%.500s", reply.Message+reply.Detail)
	}
	if len(reply.Data) == 0 {
		return text, nil
	}
	return reply.Data, nil
}

// Send sends a request of the hub to the server of a sandbox, without waking it. The caller closes the body of the
// response, which is untrusted.
func (f *Fleet) Send(ctx context.Context, id string, r *http.Request) (*http.Response, error) {
	sb, err := f.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return f.box(sb).transport.RoundTrip(r)
}

// codeOf returns the code of an error of the server inside.
func codeOf(status int) op.Code {
	switch status {
	case http.StatusNotFound:
		return op.NotFound
	case http.StatusConflict:
		return op.Conflict
	case http.StatusForbidden:
		return op.Denied
	}
	if status < 500 {
		return op.Invalid
	}
	return op.Unavailable
}
