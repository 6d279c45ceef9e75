package activity

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// e2bTag is the group of the handlers for E2B clients, whose requests are not operations in a
// table.
const e2bTag = "e2b"

// maxSeen limits the bytes of a request or response that are read for the record.
const maxSeen = 16 << 10

// quietPaths are suffixes of paths that clients poll.
var quietPaths = []string{"/health", "/metrics", "/envs", "/Stat", "/ListDir", "/List", "/GetWatcherEvents",
	"/CreateWatcher", "/RemoveWatcher", "/WatchDir"}

// handler returns the handler of an operation so that its requests are recorded.
func (r *Record) handler(op string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		for _, end := range quietPaths {
			if strings.HasSuffix(q.URL.Path, end) {
				next.ServeHTTP(w, q)
				return
			}
		}
		r.work.begin()
		began := time.Now()
		in := &seen{}
		if q.Body != nil {
			q.Body = &seenBody{q.Body, in}
		}
		out := &seenResponse{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			_, name, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/e2b/"), "/")
			e := Entry{Op: op + ":" + shorten(name), Kind: e2bTag, Took: milliseconds(began), Input: inputOf(q, in), Output: outputOf(out)}
			if out.status >= 400 {
				e.Error, e.Output = shorten(http.StatusText(out.status)+" "+string(out.seen.b)), ""
			}
			e.Changes = r.work.changed()
			r.add(q.Context(), began, item{entry: e})
		}()
		next.ServeHTTP(out, q)
	})
}

// seen is the beginning of a body.
type seen struct{ b []byte }

func (s *seen) add(p []byte) { s.b = append(s.b, p[:min(len(p), maxSeen-len(s.b))]...) }

type seenBody struct {
	io.ReadCloser
	seen *seen
}

func (s *seenBody) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.seen.add(p[:n])
	return n, err
}

type seenResponse struct {
	http.ResponseWriter
	status int
	seen   seen
}

func (s *seenResponse) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *seenResponse) Write(p []byte) (int, error) {
	s.seen.add(p)
	return s.ResponseWriter.Write(p)
}

// Unwrap lets a stream flush.
func (s *seenResponse) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// inputOf summarizes a request. A process is shown as its command line.
func inputOf(q *http.Request, in *seen) string {
	all := map[string]any{}
	if path := q.URL.Query().Get("path"); path != "" {
		all["path"] = path
	}
	if strings.Contains(q.Header.Get("Content-Type"), "json") {
		for _, m := range messages(in.b, strings.Contains(q.Header.Get("Content-Type"), "connect+")) {
			for name, value := range m {
				all[name] = value
			}
		}
	}
	if p, ok := all["process"].(map[string]any); ok {
		words := []string{}
		for _, word := range append([]any{p["cmd"]}, list(p["args"])...) {
			if text, ok := word.(string); ok {
				words = append(words, text)
			}
		}
		all["command"] = strings.Join(words, " ")
		if n := len(words); n > 2 && words[n-2] == "-c" { // a line for the shell
			all["command"] = words[n-1]
		}
		delete(p, "args")
	}
	return summarize(all)
}

// outputOf summarizes a response: the output and exit code of a process, or else its text.
func outputOf(out *seenResponse) string {
	kind := out.Header().Get("Content-Type")
	if !strings.Contains(kind, "connect+json") {
		if strings.Contains(kind, "json") || strings.HasPrefix(kind, "text/") {
			return summarize(map[string]any{"output": string(out.seen.b)})
		}
		return ""
	}
	all := map[string]any{}
	for _, m := range messages(out.seen.b, true) {
		event, _ := m["event"].(map[string]any)
		for _, stream := range []string{"stdout", "stderr", "pty"} {
			data, _ := event["data"].(map[string]any)
			if text, ok := data[stream].(string); ok {
				b, _ := base64.StdEncoding.DecodeString(text)
				before, _ := all[stream].(string)
				all[stream] = before + strings.ToValidUTF8(string(b), "\uFFFD")
			}
		}
		if end, ok := event["end"].(map[string]any); ok {
			code, _ := end["exitCode"].(float64)
			all["exit_code"] = int(code)
		}
	}
	return summarize(all)
}

func list(v any) []any { l, _ := v.([]any); return l }

// messages decodes the JSON objects of a body that may be truncated: one object, or if framed is
// set, objects with a length before each.
func messages(b []byte, framed bool) (all []map[string]any) {
	const head = 5
	for {
		part := b
		if framed {
			if len(b) < head {
				return all
			}
			n := int(binary.BigEndian.Uint32(b[1:head]))
			if n < 0 || n > len(b)-head {
				return all
			}
			part, b = b[head:head+n], b[head+n:]
		}
		var m map[string]any
		if json.NewDecoder(bytes.NewReader(part)).Decode(&m) == nil {
			all = append(all, m)
		}
		if !framed {
			return all
		}
	}
}
