package connect

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

func frame(flags byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
}

type word struct {
	Text string `json:"text"`
}

func send(t *testing.T, h http.Handler, media string, body []byte, header ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/x", bytes.NewReader(body))
	r.Header.Set("Content-Type", media)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// TestUnary: statuses and bodies follow the protocol.
func TestUnary(t *testing.T) {
	t.Parallel()
	var fail error
	h := Unary(func(_ context.Context, _ Caller, in word) (word, error) { return in, fail })
	if status, body := send(t, h, unaryType, []byte(`{"text":"a","unknown":1}`)); status != 200 || body != `{"text":"a"}` {
		t.Errorf("got %d %s, want 200 and the text", status, body)
	}
	for _, c := range []struct {
		err    error
		status int
		body   string
	}{
		{Errorf(NotFound, "gone"), 404, `{"code":"not_found","message":"gone"}`},
		{op.Errorf(op.Exhausted, "full"), 429, `{"code":"resource_exhausted","message":"full"}`},
		{context.DeadlineExceeded, 504, `{"code":"deadline_exceeded","message":"the timeout of the request has expired"}`},
		{errors.New("odd"), 500, `{"code":"internal","message":"odd"}`},
	} {
		fail = c.err
		if status, body := send(t, h, unaryType, []byte(`{}`)); status != c.status || body != c.body {
			t.Errorf("%v: got %d %s, want %d %s", c.err, status, body, c.status, c.body)
		}
	}
	for what, c := range map[string]struct {
		media, body string
		header      []string
		want        int
	}{
		"binary":          {"application/proto", "", nil, 415},
		"stream":          {streamType, "", nil, 415},
		"compressed":      {unaryType, "", []string{"Content-Encoding", "gzip"}, 501},
		"invalid timeout": {unaryType, "", []string{"Connect-Timeout-Ms", "-1"}, 400},
		"not JSON":        {unaryType, "{", nil, 400},
	} {
		if status, body := send(t, h, c.media, []byte(c.body), c.header...); status != c.want {
			t.Errorf("%s: got %d %s, want %d", what, status, body, c.want)
		}
	}
}

// TestStreams: messages are sent in frames, and the last frame contains the error.
func TestStreams(t *testing.T) {
	t.Parallel()
	server := ServerStream(func(_ context.Context, _ Caller, in word, out *Stream) error {
		if err := out.Send(in); err != nil {
			return err
		}
		return Errorf(Unavailable, "over")
	})
	want := string(frame(0, `{"text":"a"}`)) + string(frame(flagEnd, `{"error":{"code":"unavailable","message":"over"}}`))
	if status, body := send(t, server, streamType, frame(0, `{"text":"a"}`)); status != 200 || body != want {
		t.Errorf("got %d %q, want %q", status, body, want)
	}
	client := ClientStream(func(_ context.Context, _ Caller, next func() (word, error)) (out word, err error) {
		for {
			in, err := next()
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			if err != nil {
				return out, err
			}
			out.Text += in.Text
		}
	})
	want = string(frame(0, `{"text":"ab"}`)) + string(frame(flagEnd, `{}`))
	if _, body := send(t, client, streamType, append(frame(0, `{"text":"a"}`), frame(0, `{"text":"b"}`)...)); body != want {
		t.Errorf("got %q, want %q", body, want)
	}
	if _, body := send(t, client, streamType, frame(0, `{"text":"a"}`)[:9]); !strings.Contains(body, "ends within a frame") {
		t.Errorf("truncated frame: got %q, want an error", body)
	}
}

// FuzzReadMessage: a message is never longer than the limit or the input.
func FuzzReadMessage(f *testing.F) {
	f.Add(frame(0, "{}"))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Add(frame(flagEnd, "{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		message, err := ReadMessage(bytes.NewReader(b))
		if err == nil && len(message)+headerBytes > len(b) {
			t.Errorf("got %d bytes of %d", len(message), len(b))
		}
	})
}
