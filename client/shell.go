package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/coder/websocket"
)

// Size of a terminal, in characters.
type Size struct{ Cols, Rows int }

// ShellOptions are options of a terminal.
type ShellOptions struct {
	// Session attaches to an existing session and shows its latest output; empty: a
	// new one.
	Session string
	// In is the input, Out the output, both unprocessed, as for a terminal in raw mode.
	// A Read of In that blocks is abandoned at the end.
	In  io.Reader
	Out io.Writer
	// Size is the initial size of the terminal, Resized receives changes. Both are optional.
	Size    Size
	Resized <-chan Size
	// Attached is called with the name of the session, which allows a client to attach again.
	Attached func(session string)
}

// shellMessage is a message of the WebSocket protocol.
type shellMessage struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

// Shell attaches to a terminal until the shell in it ends, and returns its exit code.
// When ctx or In ends, it detaches; the session continues to run for a while.
func (g *Guest) Shell(ctx context.Context, o ShellOptions) (code int, err error) {
	address := g.base + "/v1/shell/ws"
	if o.Session != "" {
		address += "?session_id=" + url.QueryEscape(o.Session)
	}
	if err := g.awake(ctx); err != nil {
		return -1, err
	}
	c, err := g.upgrade(ctx, address)
	if err != nil {
		return -1, err
	}
	defer c.CloseNow()
	c.SetReadLimit(maxEvent)
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	s := &shell{c: c, o: o}
	wait.Go(func() { s.resize(ctx) })
	// Do not wait: a Read of a keyboard returns only when a key is pressed.
	go s.sendInput(ctx, cancel)
	return s.showOutput(ctx)
}

// upgrade opens a WebSocket. An error reply becomes an Error.
func (g *Guest) upgrade(ctx context.Context, address string) (*websocket.Conn, error) {
	c, res, err := websocket.Dial(ctx, address, &websocket.DialOptions{HTTPClient: g.http, HTTPHeader: g.head,
		CompressionMode: websocket.CompressionDisabled})
	if err == nil {
		return c, nil
	}
	if res == nil || res.Body == nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer res.Body.Close()
	return nil, failure(res)
}

type shell struct {
	c  *websocket.Conn
	o  ShellOptions
	mu sync.Mutex
}

func (s *shell) send(ctx context.Context, kind string, data any) error {
	b, err := json.Marshal(shellMessage{kind, data})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.c.Write(ctx, websocket.MessageText, b)
}

func (s *shell) resize(ctx context.Context) {
	size := s.o.Size
	for {
		if size.Cols > 0 && size.Rows > 0 {
			if s.send(ctx, "resize", map[string]int{"cols": size.Cols, "rows": size.Rows}) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case next, ok := <-s.o.Resized:
			if !ok {
				return
			}
			size = next
		}
	}
}

// sendInput sends the input; its end detaches from the session.
func (s *shell) sendInput(ctx context.Context, leave context.CancelFunc) {
	if s.o.In == nil {
		return
	}
	buf := make([]byte, 0, 4<<10)
	for {
		n, err := s.o.In.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if ctx.Err() != nil {
			return
		}
		whole := wholeRunes(buf)
		if err != nil {
			whole = len(buf)
		}
		if whole > 0 {
			keys := string(buf[:whole])
			if !utf8.ValidString(keys) {
				keys = strings.ToValidUTF8(keys, "\uFFFD")
			}
			if s.send(ctx, "input", keys) != nil {
				return
			}
			buf = append(buf[:0], buf[whole:]...)
		}
		if err != nil {
			leave()
			return
		}
	}
}

// showOutput writes the output of the terminal until the shell ends.
func (s *shell) showOutput(ctx context.Context) (int, error) {
	for {
		_, b, err := s.c.Read(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return -1, ctx.Err()
			}
			return -1, fmt.Errorf("the connection to the terminal broke: %w", err)
		}
		var m struct {
			Type string          `json:"type"`
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return -1, fmt.Errorf("invalid message from the terminal: %w", err)
		}
		var line string
		var exit struct {
			Code *int `json:"code"`
		}
		switch m.Type {
		case "output":
			if err := errors.Join(json.Unmarshal(m.Data, &line), write(s.o.Out, line)); err != nil {
				return -1, err
			}
		case "session_id":
			if json.Unmarshal(m.Data, &line) == nil && s.o.Attached != nil {
				s.o.Attached(line)
			}
		case "ping":
			if err := s.send(ctx, "pong", m.Data); err != nil {
				return -1, err
			}
		case "exit":
			if json.Unmarshal(m.Data, &exit) == nil && exit.Code != nil {
				return *exit.Code, nil
			}
			return -1, nil
		}
	}
}

func write(w io.Writer, s string) error {
	_, err := io.WriteString(orDiscard(w), s)
	return err
}
