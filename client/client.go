// Package client is the Go client of a hub and of the sandboxes that it creates. The cove
// command line also uses it. It imports no other package of this module.
//
//	hub, err := client.New(client.Config{URL: "http://127.0.0.1:10000"})
//	sb, err := hub.Create(ctx, client.CreateOptions{})
//	result, err := hub.Guest(sb.Name).Exec(ctx, "echo hello", client.ExecOptions{Stdout: os.Stdout})
//	err = hub.Delete(ctx, sb.Name)
//
// A client owns its connections. It retries a request only if the request had no effect yet: while a
// sandbox wakes up, and to resume a broken stream.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Config is the address of a hub or a sandbox, and the credentials to call it.
type Config struct {
	// URL is http://host:port, https://host, or unix:/path.
	URL   string
	Token string // sent as a bearer token
	Key   string // sent as X-API-Key
	Agent string // User-Agent; default cove-client
	// Transport replaces the default one.
	Transport http.RoundTripper
}

// String shows no secret.
func (c Config) String() string { return "client.Config{" + c.URL + "}" }

// GoString shows no secret.
func (c Config) GoString() string { return c.String() }

// Client calls a hub. It is safe for concurrent use.
type Client struct{ conn }

// New returns a client of a hub. It does not connect yet.
func New(cfg Config) (*Client, error) {
	c, err := dial(cfg)
	return &Client{c}, err
}

// Guest returns a client of a sandbox of the hub, which need not exist yet.
func (c *Client) Guest(name string) *Guest {
	inner := c.conn
	inner.base = c.base + "/sandbox/" + url.PathEscape(name)
	return &Guest{inner}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Guest calls the server inside a sandbox.
type Guest struct{ conn }

// NewGuest returns a client of a sandbox without a hub.
func NewGuest(cfg Config) (*Guest, error) {
	c, err := dial(cfg)
	return &Guest{c}, err
}

// Close closes idle connections.
func (g *Guest) Close() { g.http.CloseIdleConnections() }

// conn holds the connection settings that all requests share.
type conn struct {
	base string // without a final slash
	head http.Header
	http *http.Client
}

// maxIdle keeps enough connections to work with a hundred sandboxes at once.
const maxIdle = 100

func dial(cfg Config) (conn, error) {
	c := conn{base: strings.TrimSuffix(cfg.URL, "/"), head: http.Header{}}
	transport := cfg.Transport
	if path, ok := strings.CutPrefix(cfg.URL, "unix:"); ok {
		c.base = "http://localhost"
		if transport == nil {
			transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			}, MaxIdleConnsPerHost: maxIdle}
		}
	} else if u, err := url.Parse(c.base); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.RawQuery != "" || u.Fragment != "" {
		return c, fmt.Errorf("address %q: use http://host:port, https://host or unix:/path", cfg.URL)
	}
	if transport == nil {
		transport = &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute}
	}
	c.http = &http.Client{Transport: transport, CheckRedirect: refuseRedirect}
	agent := cfg.Agent
	if agent == "" {
		agent = "cove-client"
	}
	c.head.Set("User-Agent", agent)
	if cfg.Token != "" {
		c.head.Set("Authorization", "Bearer "+cfg.Token)
	}
	if cfg.Key != "" {
		c.head.Set("X-API-Key", cfg.Key)
	}
	return c, nil
}

// refuseRedirect makes a redirect an error. Otherwise a server in a sandbox could send the request, with its credentials, to
// another server or to another route of the hub.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Error is an error reply of a hub or a sandbox.
type Error struct {
	Status     int // of HTTP; a sandbox reports most failures with 200
	Message    string
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Message }

// NotFound reports whether an error says that something does not exist.
func NotFound(err error) bool { return hasStatus(err, http.StatusNotFound) }

// Conflict reports whether an error says that something already exists, or is in another state.
func Conflict(err error) bool { return hasStatus(err, http.StatusConflict) }

func hasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

// wakeLimit is the time limit for retries of requests to a sandbox that wakes up.
const wakeLimit = time.Minute

// maxReply is the maximum size of a reply that is read at once.
const maxReply = 64 << 20

// send sends a request, and retries it while the sandbox wakes up. The body must be
// nil or replayable.
func (c conn) send(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	for deadline := time.Now().Add(wakeLimit); ; {
		var r io.Reader
		if body != nil {
			r = bytes.NewReader(body)
		}
		res, err := c.once(ctx, method, path, r, header)
		e, ok := errors.AsType[*Error](err)
		if err == nil || !ok || e.Status != http.StatusServiceUnavailable || e.RetryAfter == 0 || time.Now().Add(e.RetryAfter).After(deadline) {
			return res, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(e.RetryAfter):
		}
	}
}

// once sends a request. Any other status than success becomes an Error.
func (c conn) once(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for _, h := range []http.Header{c.head, header} {
		for k, v := range h {
			req.Header[k] = v
		}
	}
	res, err := c.http.Do(req)
	if err != nil {
		// The error contains the URL of the request, which does not help users.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, fmt.Errorf("connect to %s: %w", c.base, err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer res.Body.Close()
		return nil, failure(res)
	}
	return res, nil
}

// failure reads an error reply.
func failure(res *http.Response) error {
	e := &Error{Status: res.StatusCode}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	if to := res.Header.Get("Location"); res.StatusCode >= 300 && res.StatusCode < 400 && to != "" {
		e.Message = fmt.Sprintf("%s: redirects to %q, which is not followed; use the final address", res.Status, to)
		return e
	}
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	var said struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		Detail  any    `json:"detail"`
	}
	_ = json.Unmarshal(b, &said)
	switch detail, _ := said.Detail.(string); {
	case said.Error != "":
		e.Message = said.Error
	case said.Message != "":
		e.Message = said.Message
	case detail != "":
		e.Message = detail
	default:
		e.Message = strings.TrimSpace(res.Status + " " + string(b[:min(len(b), 200)]))
	}
	return e
}

// call sends a value as JSON and decodes the data of the reply of a hub ({code, data}) or a sandbox
// ({success, message, data}).
func (c conn) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	header := http.Header{}
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
		header.Set("Content-Type", "application/json")
	}
	res, err := c.send(ctx, method, path, body, header)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return decode(res, out)
}

func decode(res *http.Response, out any) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	if len(b) > maxReply {
		return fmt.Errorf("the reply is larger than %d bytes", maxReply)
	}
	var reply struct {
		Success *bool           `json:"success"`
		Code    *string         `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &reply); err != nil {
		return fmt.Errorf("the reply is not JSON: %w", err)
	}
	if reply.Success != nil && !*reply.Success {
		return &Error{Status: res.StatusCode, Message: reply.Message}
	}
	if out == nil {
		return nil
	}
	if reply.Success == nil && reply.Code == nil {
		reply.Data = b // some replies have no envelope
	}
	if err := json.Unmarshal(reply.Data, out); err != nil {
		return fmt.Errorf("unexpected reply: %w", err)
	}
	return nil
}

// Call sends a value as JSON to any route and decodes the data of the reply. Both
// values may be nil.
func (g *Guest) Call(ctx context.Context, method, path string, in, out any) error {
	return g.call(ctx, method, path, in, out)
}

// Call sends a value as JSON to any route of the hub and decodes the data of the
// reply. Both values may be nil.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	return c.call(ctx, method, path, in, out)
}

// Metrics returns the metrics of the hub in the Prometheus text format. It requires the role admin.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	res, err := c.send(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(io.LimitReader(res.Body, maxReply))
}
