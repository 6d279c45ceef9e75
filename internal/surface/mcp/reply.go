package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
)

// keepAlivePause is the longest silence of an event stream. Proxies and clients close silent
// connections, often after a minute.
const keepAlivePause = 15 * time.Second

// stream is a response that sends comments while it is silent.
type stream struct {
	http.ResponseWriter
	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

// keepAlive returns a writer that keeps an event stream open. It stops when the
// request ends.
func keepAlive(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	s := &stream{ResponseWriter: w}
	go func() {
		<-r.Context().Done() // the server cancels it when the handler returns
		s.end()
	}()
	return s
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ResponseWriter.WriteHeader(status)
	events := strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream")
	if status == http.StatusOK && events && s.timer == nil && !s.ended {
		s.timer = time.AfterFunc(keepAlivePause, s.beat)
	}
}

// primeEvent is the name that the SDK gives to an event with an ID and no data, with which a client
// can resume. The protocol does not define the name, and clients warn about it.
const primeEvent = "event: prime\n"

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unnamed := bytes.TrimPrefix(p, []byte(primeEvent))
	n, err := s.ResponseWriter.Write(unnamed)
	return n + len(p) - len(unnamed), err
}

// beat sends a comment, which clients ignore. Each event is one write, so a comment never
// interrupts one.
func (s *stream) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if _, err := s.ResponseWriter.Write([]byte(": keep-alive\n\n")); err == nil {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		s.timer.Reset(keepAlivePause)
	}
}

func (s *stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = http.NewResponseController(s.ResponseWriter).Flush()
}

func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// recorded is a response that is modified before it is sent.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header { return r.header }

func (r *recorded) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorded) Write(p []byte) (int, error) { return r.body.Write(p) }

func (r *recorded) Flush() {}

func record(w http.ResponseWriter, r *http.Request, h http.Handler) *recorded {
	rec := &recorded{header: w.Header()}
	h.ServeHTTP(rec, r)
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	return rec
}

func (r *recorded) send(w http.ResponseWriter, body []byte) {
	w.Header().Del("Content-Length")
	w.WriteHeader(r.status)
	w.Write(body)
}

// serveJSON answers a client of a session that accepts no event stream with the last
// message of the stream, which is the reply.
func serveJSON(w http.ResponseWriter, r *http.Request, h http.Handler) {
	rec := record(w, r, h)
	body := rec.body.Bytes()
	if strings.HasPrefix(rec.header.Get("Content-Type"), "text/event-stream") {
		body = nil
		for line := range bytes.Lines(rec.body.Bytes()) {
			if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok && bytes.Contains(data, []byte(`"id"`)) {
				body = data
			}
		}
		w.Header().Set("Content-Type", "application/json")
	}
	rec.send(w, body)
}

// repeatContent answers a bare request. Scripts that send one expect content, text and error
// at the top level.
func repeatContent(w http.ResponseWriter, r *http.Request, h http.Handler) {
	rec := record(w, r, h)
	body := rec.body.Bytes()
	var reply map[string]json.RawMessage
	if json.Unmarshal(body, &reply) == nil {
		addContent(reply)
		if b, err := json.Marshal(reply); err == nil {
			body = b
		}
	}
	rec.send(w, body)
}

// addContent adds the content of a result, and its first text, to the top level of a reply.
func addContent(reply map[string]json.RawMessage) {
	var result struct{ Content json.RawMessage }
	if json.Unmarshal(reply["result"], &result) != nil || result.Content == nil {
		return
	}
	reply["content"] = result.Content
	var items []struct{ Text string }
	if json.Unmarshal(result.Content, &items) != nil {
		return
	}
	for _, item := range items {
		if item.Text != "" {
			reply["text"], _ = json.Marshal(item.Text)
			return
		}
	}
}
