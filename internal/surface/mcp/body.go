package mcp

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// pieceSize is the size of the buffers into which a body of unknown length is read.
const pieceSize = 64 << 10

// bodies reads request bodies. A slow body takes only the memory of the part that arrived,
// and the buffers of a rejected body are reused.
type bodies struct{ pool sync.Pool }

func (b *bodies) read(r io.Reader, length int64) ([]byte, error) {
	if length >= 0 && length <= pieceSize {
		body := make([]byte, length)
		_, err := io.ReadFull(r, body)
		return body, err
	}
	var pieces []*[pieceSize]byte
	defer func() {
		for _, p := range pieces {
			b.pool.Put(p)
		}
	}()
	for size := 0; ; {
		if size == len(pieces)*pieceSize {
			p, ok := b.pool.Get().(*[pieceSize]byte)
			if !ok {
				p = new([pieceSize]byte)
			}
			pieces = append(pieces, p)
		}
		n, err := r.Read(pieces[len(pieces)-1][size%pieceSize:])
		size += n
		switch {
		case errors.Is(err, io.EOF):
			return join(pieces, size), nil
		case err != nil: // also if the client disconnects before the end
			return nil, err
		}
	}
}

func join(pieces []*[pieceSize]byte, size int) []byte {
	body := make([]byte, 0, size)
	for _, p := range pieces {
		body = append(body, p[:min(pieceSize, size-len(body))]...)
	}
	return body
}

// refuseBody answers a request whose body could not be read.
func refuseBody(w http.ResponseWriter, err error) {
	if e, ok := op.AsError(err); ok {
		if e.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
		}
		refuse(w, e.Code.HTTPStatus(), -32000, e.Msg)
		return
	}
	http.Error(w, "the request body is too large or incomplete", http.StatusRequestEntityTooLarge)
}
