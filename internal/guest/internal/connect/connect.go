// Package connect implements the server side of the Connect protocol with JSON: unary calls, and streams in frames of a flag
// byte, a length and a message.
//
// It owns only the wire format. It supports neither binary messages nor compression: such requests are refused with the status
// that the protocol defines. All input is limited.
package connect

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"
)

const (
	unaryType  = "application/json"
	streamType = "application/connect+json"

	// maxMessage bounds a message of the client.
	maxMessage = 16 << 20

	flagCompressed = 1
	flagEnd        = 2
	headerBytes    = 5
)

// Caller contains the headers and the timeout of a request.
type Caller struct {
	Header http.Header
	// Timeout is the timeout of the client; 0 means none.
	Timeout time.Duration
}

// Unary returns the handler of a call with one request and one response message.
func Unary[In, Out any](call func(context.Context, Caller, In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := accept(w, r, unaryType)
		if !ok {
			return
		}
		ctx, cancel := c.bound(r.Context())
		defer cancel()
		var in In
		body, err := readAll(r.Body)
		if err == nil {
			err = decode(body, &in)
		}
		var out Out
		if err == nil {
			out, err = call(ctx, c, in)
		}
		if err != nil {
			e := AsError(err)
			reply(w, e.Code.HTTPStatus(), e)
			return
		}
		reply(w, http.StatusOK, out)
	})
}

// ServerStream returns the handler of a call with one request message and a stream of responses. If the request is canceled,
// the connection is aborted, so that the client detects an incomplete stream.
func ServerStream[In any](call func(context.Context, Caller, In, *Stream) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := accept(w, r, streamType)
		if !ok {
			return
		}
		ctx, cancel := c.bound(r.Context())
		defer cancel()
		s := newStream(w)
		var in In
		message, err := ReadMessage(r.Body)
		if errors.Is(err, io.EOF) {
			err = Errorf(InvalidArgument, "the request has no message")
		}
		if err == nil {
			err = decode(message, &in)
		}
		if err == nil {
			err = call(ctx, c, in, s)
		}
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		s.end(err)
	})
}

// ClientStream returns the handler of a call with a stream of request messages and one response. next returns io.EOF after the
// last message.
func ClientStream[In, Out any](call func(ctx context.Context, c Caller, next func() (In, error)) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := accept(w, r, streamType)
		if !ok {
			return
		}
		// The response may be sent before the request ends.
		_ = http.NewResponseController(w).EnableFullDuplex()
		ctx, cancel := c.bound(r.Context())
		defer cancel()
		out, err := call(ctx, c, func() (in In, err error) {
			message, err := ReadMessage(r.Body)
			if err == nil {
				err = decode(message, &in)
			}
			return in, err
		})
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		s := newStream(w)
		if err == nil {
			err = s.Send(out)
		}
		s.end(err)
	})
}

// accept validates a request. If it is invalid, accept sends the response and returns false.
func accept(w http.ResponseWriter, r *http.Request, want string) (Caller, bool) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		reply(w, http.StatusMethodNotAllowed, &Error{Unimplemented, "use POST"})
		return Caller{}, false
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if media != want {
		w.Header().Set("Accept-Post", want)
		reply(w, http.StatusUnsupportedMediaType, &Error{Unimplemented, "unsupported content type " + strconv.Quote(media) + "; use " + want})
		return Caller{}, false
	}
	for _, name := range []string{"Content-Encoding", "Connect-Content-Encoding"} {
		if e := r.Header.Get(name); e != "" && e != "identity" {
			reply(w, http.StatusNotImplemented, &Error{Unimplemented, "unsupported compression " + strconv.Quote(e) +
				"; send messages uncompressed"})
			return Caller{}, false
		}
	}
	c := Caller{Header: r.Header}
	if text := r.Header.Get("Connect-Timeout-Ms"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 || len(text) > 10 {
			reply(w, http.StatusBadRequest, &Error{InvalidArgument, "invalid Connect-Timeout-Ms " + strconv.Quote(text)})
			return Caller{}, false
		}
		c.Timeout = max(time.Duration(ms)*time.Millisecond, time.Millisecond)
	}
	return c, true
}

func (c Caller) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.Timeout)
}

func readAll(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err == nil && len(b) > maxMessage {
		return nil, tooLarge(uint64(len(b)))
	}
	return b, err
}

func tooLarge(n uint64) error {
	return Errorf(ResourceExhausted, "message of %d bytes exceeds the limit of %d; send it in parts", n, maxMessage)
}

func decode(message []byte, in any) error {
	if len(message) == 0 {
		return nil
	}
	if err := json.Unmarshal(message, in); err != nil {
		return Errorf(InvalidArgument, "decode the message: %v", err)
	}
	return nil
}

func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our types are always encodable
	}
	w.Header().Set("Content-Type", unaryType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // an error means that the client has disconnected
}

// ReadMessage reads the next message of a stream. It returns io.EOF after the last one.
func ReadMessage(r io.Reader) ([]byte, error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, Errorf(InvalidArgument, "the stream ends within the header of a frame")
		}
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	switch {
	case head[0]&flagCompressed != 0:
		return nil, Errorf(Unimplemented, "compressed frame; send frames uncompressed")
	case head[0]&^flagEnd != 0:
		return nil, Errorf(InvalidArgument, "invalid frame flags %#x", head[0])
	case n > maxMessage:
		return nil, tooLarge(uint64(n))
	}
	// Memory is allocated only for received bytes, independent of the length in the header.
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(b) < int(n) {
		err = Errorf(InvalidArgument, "the stream ends within a frame")
	}
	if err == nil && head[0]&flagEnd != 0 {
		return nil, io.EOF
	}
	return b, err
}

// Stream sends the messages of a response.
type Stream struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	started bool
	buf     []byte
}

func newStream(w http.ResponseWriter) *Stream {
	return &Stream{w: w, rc: http.NewResponseController(w)}
}

// Send sends a message and flushes it.
func (s *Stream) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.frame(0, b)
}

func (s *Stream) frame(flags byte, message []byte) error {
	if !s.started {
		s.started = true
		s.w.Header().Set("Content-Type", streamType)
		s.w.WriteHeader(http.StatusOK)
	}
	s.buf = append(s.buf[:0], flags)
	s.buf = binary.BigEndian.AppendUint32(s.buf, uint32(len(message)))
	s.buf = append(s.buf, message...)
	if _, err := s.w.Write(s.buf); err != nil {
		return err
	}
	return s.rc.Flush()
}

// end sends the last frame.
func (s *Stream) end(err error) {
	var last struct {
		Error *Error `json:"error,omitempty"`
	}
	if err != nil {
		last.Error = AsError(err)
	}
	b, err := json.Marshal(last)
	if err != nil {
		panic(err) // it is always encodable
	}
	_ = s.frame(flagEnd, b) // an error means that the client has disconnected
}
