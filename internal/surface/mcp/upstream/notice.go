package upstream

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// drainLimit bounds the wait for messages that arrived before a reply.
	drainLimit = time.Second
	// drainPause is the pause between two checks.
	drainPause = time.Millisecond
)

// notices counts the notifications of a server that belong to a call: logs and progress. The
// SDK handles them concurrently with replies, so a reply can overtake them. Before a reply is
// forwarded, drain waits for the notifications that arrived before it.
type notices struct{ received, handled atomic.Int64 }

// drain waits until all received notifications are handled.
func (n *notices) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	for want := n.received.Load(); n.handled.Load() < want; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(drainPause):
		}
	}
}

// middleware counts the handled notifications.
func (n *notices) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "notifications/message" || method == "notifications/progress" {
			defer n.handled.Add(1)
		}
		return next(ctx, method, req)
	}
}

// marks identify such notifications. Quotes in a text would be escaped.
var marks = [][]byte{[]byte(`"notifications/message"`), []byte(`"notifications/progress"`)}

// noticeReader counts the received notifications.
type noticeReader struct {
	io.ReadCloser
	n    *notices
	rest []byte // the end of the previous read: it may contain part of a mark
}

func (r *noticeReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	seen := append(r.rest, p[:n]...)
	last := 0
	for _, mark := range marks {
		for at := 0; ; {
			i := bytes.Index(seen[at:], mark)
			if i < 0 {
				break
			}
			at += i + len(mark)
			last = max(last, at)
			if start := at - len(mark); start == 0 || seen[start-1] != '\\' {
				r.n.received.Add(1)
			}
		}
	}
	seen = seen[last:]
	r.rest = append(r.rest[:0:0], seen[max(0, len(seen)-len(marks[1])):]...)
	return n, err
}

// noticeTransport counts the notifications in the responses of a server.
type noticeTransport struct {
	http.RoundTripper
	n *notices
}

func (t noticeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Body = &noticeReader{ReadCloser: res.Body, n: t.n}
	}
	return res, err
}
