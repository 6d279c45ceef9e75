package op

import (
	"io"
	"time"
)

// Blob is a reply of raw bytes. Body is closed by the surface; when it can seek,
// ranges are served. A body that fails in the middle cuts the connection, so that
// the caller notices.
type Blob struct {
	Type     string // media type; empty is application/octet-stream
	Name     string // file name offered to the caller; empty: shown inline
	Size     int64  // -1 when unknown
	ModTime  time.Time
	ETag     string
	Header   map[string]string
	Body     io.ReadCloser
	MaxCache time.Duration // 0: the caller must ask again
}

// File is a file of a multipart request, read once as it arrives.
type File struct {
	Name string
	Type string
	io.Reader
}

// Media is the type of a raw reply as the documentation names it.
func (s Spec) Media() string {
	if s.Produces != "" {
		return s.Produces
	}
	return "application/octet-stream"
}
