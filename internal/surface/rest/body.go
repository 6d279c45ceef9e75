package rest

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// boundBody bounds the size, memory and arrival time of a request body. done must be called
// after the request.
func (s *Server) boundBody(w http.ResponseWriter, r *http.Request, o op.Op) (done func()) {
	done = func() {}
	limit := s.limit(o)
	if limit > 0 {
		r.Body = http.MaxBytesReader(w, r.Body, limit)
	}
	if s.BodyTimeout > 0 && r.Body != http.NoBody {
		r.Body = &timedBody{ReadCloser: r.Body, conn: http.NewResponseController(w), limit: s.BodyTimeout, streams: limit <= 0}
	}
	if limit > 0 && s.Buffer != nil && r.Body != http.NoBody {
		b := s.Buffer(r.Context())
		r.Body = &countedBody{r.Body, b}
		done = b.Free
	}
	return done
}

// timedBody fails if it does not arrive in time. The timeout starts at the first read. For a
// streamed body it starts at every read.
type timedBody struct {
	io.ReadCloser
	conn    *http.ResponseController
	limit   time.Duration
	streams bool
	began   bool
}

func (b *timedBody) Read(p []byte) (int, error) {
	if !b.began || b.streams {
		b.began = true
		b.conn.SetReadDeadline(time.Now().Add(b.limit))
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		// The server continues to read only to detect that the client disconnects.
		b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

// countedBody counts the memory that its reader uses.
type countedBody struct {
	io.ReadCloser
	buffer Buffer
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if refused := b.buffer.Grow(n); refused != nil {
			return 0, refused
		}
	}
	return n, err
}
