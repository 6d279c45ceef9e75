package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"
)

// maxEvent is the maximum size of an event of a stream.
const maxEvent = 16 << 20

// sse is one server-sent event.
type sse struct{ id, name, data string }

// events reads a stream of server-sent events until its end, which is io.EOF.
func events(r io.Reader) iter.Seq2[sse, error] {
	return func(yield func(sse, error) bool) {
		in := bufio.NewReaderSize(r, 64<<10)
		var e sse
		var data strings.Builder
		filled := false
		for {
			line, err := readLine(in)
			if err != nil {
				yield(sse{}, err)
				return
			}
			if line == "" {
				if e.data = data.String(); filled && !yield(e, nil) {
					return
				}
				e, filled = sse{id: e.id}, false
				data.Reset()
				continue
			}
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimPrefix(value, " ")
			switch key {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				if filled {
					data.WriteByte('\n')
				}
				filled = true
				data.WriteString(value)
			}
			if data.Len() > maxEvent {
				yield(sse{}, errTooLong)
				return
			}
		}
	}
}

var errTooLong = fmt.Errorf("an event is larger than %d bytes", maxEvent)

func readLine(in *bufio.Reader) (string, error) {
	var b []byte
	for {
		part, err := in.ReadSlice('\n')
		b = append(b, part...)
		if len(b) > maxEvent {
			return "", errTooLong
		}
		if err == nil {
			return strings.TrimRight(string(b), "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
}

// Event is a change of a sandbox.
type Event struct {
	ID      string    `json:"-"`
	Type    string    `json:"type"` // existing, created, changed, deleted, exceeded, idle, expired, missed
	Time    time.Time `json:"time"`
	Sandbox *Sandbox  `json:"sandbox"`
	Message string    `json:"message"`
}

// Events follows a sandbox, or all sandboxes if the name is empty. It yields the current state first,
// then each event. With the ID of an earlier event, it resumes after that event. It reconnects when the
// connection breaks. The iteration ends with ctx, with an error, or when the sandbox is deleted.
func (c *Client) Events(ctx context.Context, name, after string) iter.Seq2[Event, error] {
	path := "/api/v1/events"
	if name != "" {
		path = at(name, "/events")
	}
	return func(yield func(Event, error) bool) {
		for pause := time.Duration(0); ; {
			got, err := c.follow(ctx, path, &after, yield)
			switch {
			case errors.Is(err, errStopped):
				return
			case ctx.Err() != nil:
				yield(Event{}, ctx.Err())
				return
			case refused(err):
				yield(Event{}, err)
				return
			case name != "" && got == "deleted":
				return
			case got != "":
				pause = 0
			}
			pause = min(max(2*pause, 100*time.Millisecond), 5*time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// errStopped means that the caller stopped the iteration.
var errStopped = errors.New("stopped")

// refused reports whether a retry would fail the same way.
func refused(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status < 500
}

// follow reads one connection to its end and returns the type of the last event.
func (c *Client) follow(ctx context.Context, path string, after *string, yield func(Event, error) bool) (last string, err error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if *after != "" {
		header.Set("Last-Event-ID", *after)
	}
	res, err := c.send(ctx, http.MethodGet, path, nil, header)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	for raw, err := range events(res.Body) {
		if err != nil {
			return last, err
		}
		e := Event{ID: raw.id}
		if json.Unmarshal([]byte(raw.data), &e) != nil {
			continue
		}
		*after, last = raw.id, e.Type
		if !yield(e, nil) {
			return last, errStopped
		}
	}
	return last, nil
}
