package op

import (
	"io"
	"time"
)

// Blob is a response of raw bytes. The surface closes Body, and serves ranges if Body can seek. If
// reading Body fails, it closes the connection, so that the caller detects the error.
type Blob struct {
	Type     string // media type; empty means application/octet-stream
	Name     string // file name of a download; empty means inline display
	Size     int64  // -1 if unknown
	ModTime  time.Time
	ETag     string
	Header   map[string]string
	Body     io.ReadCloser
	MaxCache time.Duration // 0 means that caches must revalidate
}

// File is a file of a multipart request. It is streamed and can be read once.
type File struct {
	Name string
	Type string
	io.Reader
}

// Media returns the documented media type of a raw response.
func (s Spec) Media() string {
	if s.Produces != "" {
		return s.Produces
	}
	return "application/octet-stream"
}
