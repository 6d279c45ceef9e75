package rest

import (
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// gzipFrom is the minimum size of a response that is compressed.
const gzipFrom = 2 << 10

var gzips = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err)
	}
	return w
}}

func writeJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	b, err := op.JSON(v)
	if err != nil {
		// An output that cannot be encoded is a bug; the panic is logged with the request ID.
		panic(err)
	}
	writeBytes(w, r, status, "application/json", b)
}

// writeBytes sends b, compressed if that is worthwhile.
func writeBytes(w http.ResponseWriter, r *http.Request, status int, media string, b []byte) {
	h := w.Header()
	h.Set("Content-Type", media)
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	if len(b) < gzipFrom || !acceptsGzip(r) {
		h.Set("Content-Length", strconv.Itoa(len(b)))
		w.WriteHeader(status)
		w.Write(b)
		return
	}
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	w.WriteHeader(status)
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(w)
	_, _ = z.Write(b)
	z.Close()
}

// writeBlob sends raw bytes, and serves ranges if the body can seek. If reading the body fails,
// it closes the connection, so that a partial download never appears complete.
func (s *Server) writeBlob(w http.ResponseWriter, r *http.Request, o op.Op, b *op.Blob) {
	if b.Body != nil {
		defer b.Body.Close()
	}
	h := w.Header()
	media := b.Type
	if media == "" {
		media = "application/octet-stream"
	}
	h.Set("Content-Type", media)
	for k, v := range b.Header {
		h.Set(k, v)
	}
	if b.ETag != "" {
		h.Set("ETag", b.ETag)
	}
	if b.Name != "" {
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": b.Name}))
	}
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", cacheControl(b.MaxCache))
	}
	if d, ok := b.Body.(buffered); ok {
		writeBytes(w, r, http.StatusOK, media, d.bytes)
		return
	}
	if seeker, ok := b.Body.(io.ReadSeeker); ok {
		http.ServeContent(w, r, "", b.ModTime, seeker)
		return
	}
	if b.Size >= 0 && b.Body != nil {
		h.Set("Content-Length", strconv.FormatInt(b.Size, 10))
	}
	w.WriteHeader(http.StatusOK)
	if b.Body == nil || r.Method == http.MethodHead {
		return
	}
	if _, err := io.Copy(w, b.Body); err != nil {
		s.Log.Warn("download failed", "id", op.CallOf(r.Context()).ID, "op", o.Name, "error", err)
		panic(http.ErrAbortHandler)
	}
}

func cacheControl(d time.Duration) string {
	if d <= 0 {
		return "no-cache"
	}
	return "private, max-age=" + strconv.Itoa(int(d.Seconds()))
}
