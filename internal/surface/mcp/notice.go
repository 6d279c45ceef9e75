package mcp

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// drainLimit bounds the wait for messages that came before a reply.
const drainLimit = time.Second

// notices counts the messages of a server that belong to a call: logs and progress. The
// SDK handles them beside replies, so that a reply can overtake them; whoever has a reply
// waits until what came before it was passed on.
type notices struct{ received, handled atomic.Int64 }

// drain waits until everything that was received is handled.
func (n *notices) drain(ctx context.Context) {
	want := n.received.Load()
	for deadline := time.Now().Add(drainLimit); n.handled.Load() < want && time.Now().Before(deadline) && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// middleware counts what is handled.
func (n *notices) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "notifications/message" || method == "notifications/progress" {
			defer n.handled.Add(1)
		}
		return next(ctx, method, req)
	}
}

// marks are how such messages look. In a text a quote would be escaped.
var marks = [][]byte{[]byte(`"notifications/message"`), []byte(`"notifications/progress"`)}

// reader counts what passes.
type noticeReader struct {
	io.ReadCloser
	n    *notices
	rest []byte // the end of what was read: a mark may be cut
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

// noticeTransport counts in the replies of a server.
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
