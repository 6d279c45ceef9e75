// Package api is a client of a Kubernetes API server: it creates, reads, changes, lists and watches objects, and
// retries requests that may succeed later. It is independent of the types of objects.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/access"
)

// Client is a client for one namespace.
type Client struct {
	*access.Conn
	Namespace string
}

// Connect returns the client for a namespace.
func Connect(a access.Access, namespace string) (*Client, error) {
	c, err := a.Open()
	return &Client{c, namespace}, err
}

// In returns the client for another namespace.
func (c *Client) In(namespace string) *Client {
	other := *c
	other.Namespace = namespace
	return &other
}

// CallTime bounds a call with its retries.
const CallTime = time.Minute

// Steady returns a context for calls that must not be canceled: the server could still execute them after the
// cancellation.
func Steady(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), CallTime)
}

// Pauses between attempts.
const (
	MinRetry = 50 * time.Millisecond
	MaxRetry = 2 * time.Second
)

// maxResponse bounds a response: a page of sandboxes with the largest possible specs.
const maxResponse = 64 << 20

// Error is an error response of the API server.
type Error struct {
	Code       int
	Reason     string
	Message    string
	retryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the API server returned %d %s", e.Code, http.StatusText(e.Code))
	}
	return e.Message
}

// HasCode reports whether err is an error response with a status.
func HasCode(err error, code int) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// IsMissing reports whether an object does not exist.
func IsMissing(err error) bool { return HasCode(err, http.StatusNotFound) }

// IsConflict reports whether an object exists already, or has changed.
func IsConflict(err error) bool { return HasCode(err, http.StatusConflict) }

// Address returns the URL of a kind, an object or a subresource.
func (c *Client) Address(kind string, names []string, query url.Values) string {
	at := strings.LastIndexByte(kind, '/')
	u := c.Server.JoinPath(append([]string{kind[:at], "namespaces", c.Namespace, kind[at+1:]}, names...)...)
	u.RawQuery = query.Encode()
	return u.String()
}

// Call is one request.
type Call struct {
	Method string
	URL    string
	Accept string // media type of the response; default JSON
	Media  string // media type of the body
	Body   []byte
}

// Send sends a request once.
func (c *Client) Send(ctx context.Context, q Call) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, q.Method, q.URL, bytes.NewReader(q.Body))
	if err != nil {
		return nil, err
	}
	if err := c.Authorize(req.Header); err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "cove")
	req.Header.Set("Accept", "application/json")
	if q.Accept != "" {
		req.Header.Set("Accept", q.Accept)
	}
	if q.Media != "" {
		req.Header.Set("Content-Type", q.Media)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var s status
	_ = json.Unmarshal(data, &s) // responses of proxies have no status
	e := &Error{Code: resp.StatusCode, Reason: s.Reason, Message: s.Message}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.retryAfter = time.Duration(n) * time.Second
	}
	return nil, e
}

// WorthRetrying reports whether the same request may succeed later.
func WorthRetrying(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true // the connection failed
	}
	return e.Code == http.StatusTooManyRequests || e.Code >= 500 && e.Code != http.StatusNotImplemented
}

// Do sends a request with retries, and decodes the response. Again reports that it was sent more than once: the
// server may have executed an earlier attempt whose response was lost.
func (c *Client) Do(ctx context.Context, q Call, out any) (again bool, err error) {
	for pause := MinRetry; ; pause = min(2*pause, MaxRetry) {
		var resp *http.Response
		if resp, err = c.Send(ctx, q); err == nil {
			err = decode(resp, out)
		}
		if err == nil || !WorthRetrying(err) {
			return again, err
		}
		wait := pause/2 + rand.N(pause)
		var e *Error
		if errors.As(err, &e) {
			wait = max(wait, min(e.retryAfter, 5*time.Second))
		}
		select {
		case <-ctx.Done():
			return again, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		case <-time.After(wait):
			again = true
		}
	}
}

func decode(resp *http.Response, out any) error {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil || out == nil {
		return err
	}
	if len(data) > maxResponse {
		return &Error{Code: http.StatusRequestEntityTooLarge, Message: "the response of the API server is too large"}
	}
	return json.Unmarshal(data, out)
}

// Media types.
const (
	JSON           = "application/json"
	MergePatch     = "application/merge-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
)

// Get reads an object.
func (c *Client) Get(ctx context.Context, kind, name string, out any) error {
	_, err := c.Do(ctx, Call{Method: http.MethodGet, URL: c.Address(kind, []string{name}, nil)}, out)
	return err
}

// Create creates an object. If an earlier attempt has created it already, which NoteCreated shows, it succeeds.
func (c *Client) Create(ctx context.Context, kind string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	again, err := c.Do(ctx, Call{Method: http.MethodPost, URL: c.Address(kind, nil, nil), Media: JSON, Body: body}, out)
	if !again || !IsConflict(err) {
		return err
	}
	var wanted, found Object
	if err := json.Unmarshal(body, &wanted); err != nil {
		return err
	}
	if c.Get(ctx, kind, wanted.Metadata.Name, &found) != nil ||
		found.Metadata.Annotations[NoteCreated] != wanted.Metadata.Annotations[NoteCreated] {
		return err
	}
	return c.Get(ctx, kind, wanted.Metadata.Name, out)
}

// Replace replaces an object. It fails with a conflict if the object has another version.
func (c *Client) Replace(ctx context.Context, kind, name string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, Call{Method: http.MethodPut, URL: c.Address(kind, []string{name}, nil), Media: JSON, Body: body}, out)
	return err
}

// Patch changes an object, or one of its subresources.
func (c *Client) Patch(ctx context.Context, kind string, names []string, media string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, Call{Method: http.MethodPatch, URL: c.Address(kind, names, nil), Media: media, Body: body}, out)
	return err
}

// Remove deletes an object, if it exists. Grace is the grace period of a Pod; if negative, the Pod's default applies.
func (c *Client) Remove(ctx context.Context, kind, name string, grace time.Duration) error {
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
	if grace >= 0 {
		options["gracePeriodSeconds"] = int64(grace / time.Second)
	}
	body, err := json.Marshal(options)
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, Call{Method: http.MethodDelete, URL: c.Address(kind, []string{name}, nil), Media: JSON, Body: body}, nil)
	if IsMissing(err) {
		return nil
	}
	return err
}

// pageSize is the number of objects in a page of a list.
const pageSize = "100"

// ListAll lists the objects that match a selector, and the version of the list.
func ListAll[T any](ctx context.Context, c *Client, kind, selector string) (all []T, version string, err error) {
	next, restarts := "", 0
	for {
		var page List[T]
		query := url.Values{"labelSelector": {selector}, "limit": {pageSize}}
		if next != "" {
			query.Set("continue", next)
		}
		_, err := c.Do(ctx, Call{Method: http.MethodGet, URL: c.Address(kind, nil, query)}, &page)
		if HasCode(err, http.StatusGone) && restarts < 3 { // the list has expired
			all, next = nil, ""
			restarts++
			continue
		}
		if err != nil {
			return nil, "", err
		}
		all, next = append(all, page.Items...), page.Metadata.Continue
		if next == "" {
			return all, page.Metadata.ResourceVersion, nil
		}
	}
}

// ErrExpired reports that the server no longer has the changes since a version.
var ErrExpired = errors.New("the version is too old")

// watchTime is how long the server keeps a watch open.
const watchTime = 5 * time.Minute

// Watch calls f with every change since a version, until the server ends the watch. It returns the version of the
// last change.
func (c *Client) Watch(ctx context.Context, kind, selector, version string,
	f func(kind string, object json.RawMessage) error) (string, error) {
	query := url.Values{"labelSelector": {selector}, "watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))}}
	resp, err := c.Send(ctx, Call{Method: http.MethodGet, URL: c.Address(kind, nil, query)})
	if HasCode(err, http.StatusGone) {
		return version, ErrExpired
	}
	if err != nil {
		return version, err
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	for {
		var e watchEvent
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF):
			return version, nil
		case err != nil:
			return version, err
		}
		if e.Type == "ERROR" {
			var s status
			if err := json.Unmarshal(e.Object, &s); err == nil && s.Code == http.StatusGone {
				return version, ErrExpired
			}
			return version, &Error{Code: s.Code, Reason: s.Reason, Message: s.Message}
		}
		var o Object
		if err := json.Unmarshal(e.Object, &o); err != nil {
			return version, err
		}
		if e.Type != "BOOKMARK" {
			if err := f(e.Type, e.Object); err != nil {
				return version, err
			}
		}
		version = o.Metadata.ResourceVersion
	}
}
