package op

import (
	"io"
	"time"
)

// Blob is a reply of raw bytes. The surface closes Body; if Body can seek, it serves
// ranges. If reading Body fails halfway, the connection is cut so that the caller notices.
type Blob struct {
	Type     string // media type; empty means application/octet-stream
	Name     string // file name for a download; empty means to show it inline
	Size     int64  // -1 if unknown
	ModTime  time.Time
	ETag     string
	Header   map[string]string
	Body     io.ReadCloser
	MaxCache time.Duration // 0 means that a cache must revalidate
}

// File is a file of a multipart request. It is streamed and can be read once.
type File struct {
	Name string
	Type string
	io.Reader
}

// Media returns the documented media type of a raw reply.
func (s Spec) Media() string {
	if s.Produces != "" {
		return s.Produces
	}
	return "application/octet-stream"
}
