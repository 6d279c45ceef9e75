package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// maxLine is the maximum length of a message on standard input.
const maxLine = 64 << 20

// Bridge connects a pair of streams to a server that is reached over HTTP, for programs that
// start MCP servers as processes. It supports every version of the protocol.
type Bridge struct {
	// Do sends a request to the server: POST, GET or DELETE to its address.
	Do  func(*http.Request) (*http.Response, error)
	URL string
	In  io.Reader
	Out io.Writer

	mu      sync.Mutex // guards Out and the fields below
	session string
	version string
	cancels map[string]context.CancelFunc // running requests by ID
	work    sync.WaitGroup
}

// envelope is the part of a message that the bridge reads.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		URI       string          `json:"uri"`
		RequestID json.RawMessage `json:"requestId"`
		Meta      struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
	Result struct {
		Version string `json:"protocolVersion"`
	} `json:"result"`
}

// Run forwards messages until the input ends.
func (b *Bridge) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer b.work.Wait()
	defer cancel()
	b.cancels = map[string]context.CancelFunc{}
	lines := bufio.NewScanner(b.In)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		body := bytes.Clone(line)
		var e envelope
		_ = json.Unmarshal(body, &e) // the server reports errors
		switch e.Method {
		case "initialize":
			b.forward(ctx, e, body) // later messages need its session
			b.listen(ctx)
		case "notifications/cancelled":
			if !b.cancelRequest(e) {
				b.forward(ctx, e, body)
			}
		default:
			b.work.Go(func() { b.forward(ctx, e, body) })
		}
	}
	b.mu.Lock()
	session := b.session
	b.mu.Unlock()
	if session != "" {
		if req, err := b.request(context.WithoutCancel(ctx), http.MethodDelete, envelope{}, nil); err == nil {
			if res, err := b.Do(req); err == nil {
				res.Body.Close()
			}
		}
	}
	return lines.Err()
}

// cancelRequest closes the connection of a request, which cancels it in the newest version of
// the protocol. It reports false for older versions, which send a message.
func (b *Bridge) cancelRequest(e envelope) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session != "" {
		return false
	}
	if cancel, ok := b.cancels[string(e.Params.RequestID)]; ok {
		cancel()
	}
	return true
}

func (b *Bridge) request(ctx context.Context, method string, e envelope, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	version, session := b.version, b.session
	b.mu.Unlock()
	if e.Params.Meta.Version != "" {
		version = e.Params.Meta.Version
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range map[string]string{"Mcp-Protocol-Version": version, "Mcp-Session-Id": session} {
		if value != "" && e.Method != "initialize" {
			req.Header.Set(name, value)
		}
	}
	if e.Method != "" {
		req.Header.Set("Mcp-Method", e.Method)
		if name := e.Params.Name + e.Params.URI; name != "" {
			req.Header.Set("Mcp-Name", name)
		}
	}
	return req, nil
}

// forward sends a message and writes the response.
func (b *Bridge) forward(ctx context.Context, e envelope, body []byte) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if id := string(e.ID); id != "" {
		b.mu.Lock()
		b.cancels[id] = cancel
		b.mu.Unlock()
		defer func() {
			b.mu.Lock()
			delete(b.cancels, id)
			b.mu.Unlock()
		}()
	}
	err := b.exchange(ctx, e, body)
	if err != nil && ctx.Err() == nil && len(e.ID) > 0 {
		reply, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": e.ID, "error": map[string]any{"code": -32000, "message": err.Error()}})
		b.write(reply)
	}
}

func (b *Bridge) exchange(ctx context.Context, e envelope, body []byte) error {
	req, err := b.request(ctx, http.MethodPost, e, body)
	if err != nil {
		return err
	}
	res, err := b.Do(req)
	if err != nil {
		return fmt.Errorf("cannot reach the server: %w", err)
	}
	defer res.Body.Close()
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		b.mu.Lock()
		b.session = id
		b.mu.Unlock()
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return b.copyEvents(res.Body)
	}
	reply, err := io.ReadAll(io.LimitReader(res.Body, maxLine))
	switch reply = bytes.TrimSpace(reply); {
	case err != nil:
		return err
	case len(reply) == 0 && res.StatusCode < 300:
		return nil
	case !json.Valid(reply):
		return errors.New(res.Status + ": " + string(reply))
	}
	b.write(reply)
	return nil
}

func (b *Bridge) copyEvents(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:")); ok && len(bytes.TrimSpace(data)) > 0 {
			b.write(bytes.TrimSpace(data))
		}
	}
	return lines.Err()
}

// write writes one message as a line.
func (b *Bridge) write(message []byte) {
	var e envelope
	if json.Unmarshal(message, &e) == nil && e.Result.Version != "" {
		b.mu.Lock()
		b.version = e.Result.Version
		b.mu.Unlock()
	}
	var line bytes.Buffer
	if json.Compact(&line, message) != nil {
		return
	}
	line.WriteByte('\n')
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.Out.Write(line.Bytes())
}

// listen writes the messages that the server sends without a request.
func (b *Bridge) listen(ctx context.Context) {
	b.mu.Lock()
	session := b.session
	b.mu.Unlock()
	if session == "" {
		return
	}
	b.work.Go(func() {
		req, err := b.request(ctx, http.MethodGet, envelope{}, nil)
		if err != nil {
			return
		}
		res, err := b.Do(req)
		if err != nil {
			return
		}
		defer res.Body.Close()
		if res.StatusCode == http.StatusOK {
			_ = b.copyEvents(res.Body)
		}
	})
}
