package rest

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net"
	"net/http"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// recorder records status and size of a response. It supports flushing, hijacking and sendfile,
// which proxies, WebSockets and downloads need.
type recorder struct {
	http.ResponseWriter
	op      string
	confine *op.Op // its class determines the headers; nil before the request is routed
	status  int
	bytes   int64
	wrote   bool
}

// begin completes the headers before they are sent.
func (r *recorder) begin() {
	if !r.wrote && r.confine != nil {
		confine(r.confine, r.Header())
	}
	r.wrote = true
}

func (r *recorder) WriteHeader(status int) {
	if !r.wrote && status >= 200 || status == http.StatusSwitchingProtocols {
		r.begin()
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.begin()
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	r.begin()
	n, err := io.Copy(r.ResponseWriter, src)
	r.bytes += n
	return n, err
}

func (r *recorder) Flush() {
	r.begin()
	if f, ok := r.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.status, r.wrote = http.StatusSwitchingProtocols, true
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

// requestID returns the caller's request ID if it is safe to log, otherwise a new one.
func requestID(given string) string {
	if len(given) > 0 && len(given) <= 64 {
		ok := true
		for _, c := range []byte(given) {
			ok = ok && (c == '-' || c == '_' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
		}
		if ok {
			return given
		}
	}
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
