package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/access"
)

// client speaks to the API server. It knows nothing of sandboxes.
type client struct {
	*access.Conn
	namespace string
}

// connect returns the client for a namespace.
func connect(a Access, namespace string) (*client, error) {
	c, err := a.Open()
	return &client{c, namespace}, err
}

// forward connects to a port of a Pod through the API server and the kubelet.
func (c *client) forward(ctx context.Context, pod string, port int) (net.Conn, error) {
	return c.Forward(ctx, c.address(pods, []string{pod, "portforward"}, url.Values{"ports": {strconv.Itoa(port)}}))
}

// in returns the client for another namespace.
func (c *client) in(namespace string) *client {
	other := *c
	other.namespace = namespace
	return &other
}

// The kinds of objects, by the paths of the API.
const (
	pods     = "api/v1/pods"
	secrets  = "api/v1/secrets"
	claims   = "api/v1/persistentvolumeclaims"
	policies = "apis/networking.k8s.io/v1/networkpolicies"
	leases   = "apis/coordination.k8s.io/v1/leases"
)

// callTime bounds a call with its retries, which a busy API server answers late.
const callTime = time.Minute

// steady is a context for calls that must not be cut short: the server could carry them out
// after we have given up.
func steady(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), callTime)
}

// Pauses between attempts.
const (
	minRetry = 50 * time.Millisecond
	maxRetry = 2 * time.Second
)

// maxReply bounds a reply: a page of sandboxes with everything that a spec may hold.
const maxReply = 64 << 20

// Error is a refusal of the API server.
type Error struct {
	Code       int
	Reason     string
	Message    string
	retryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the API server answers %d %s", e.Code, http.StatusText(e.Code))
	}
	return e.Message
}

// hasCode reports whether the API server refused with a status.
func hasCode(err error, code int) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

func isMissing(err error) bool  { return hasCode(err, http.StatusNotFound) }
func isConflict(err error) bool { return hasCode(err, http.StatusConflict) }

// address is the URL of a kind, of an object, or of a subresource.
func (c *client) address(kind string, names []string, query url.Values) string {
	at := strings.LastIndexByte(kind, '/')
	u := c.Server.JoinPath(append([]string{kind[:at], "namespaces", c.namespace, kind[at+1:]}, names...)...)
	u.RawQuery = query.Encode()
	return u.String()
}

// call is one request.
type call struct {
	method string
	url    string
	accept string // of the reply; JSON if empty
	media  string // of the body
	body   []byte
}

// send sends a request once.
func (c *client) send(ctx context.Context, q call) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, q.url, bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	if err := c.Authorize(req.Header); err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "cove")
	req.Header.Set("Accept", "application/json")
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	if q.media != "" {
		req.Header.Set("Content-Type", q.media)
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
	json.Unmarshal(data, &s) // proxies answer with something else
	e := &Error{Code: resp.StatusCode, Reason: s.Reason, Message: s.Message}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.retryAfter = time.Duration(n) * time.Second
	}
	return nil, e
}

// worthRetrying reports whether the same request may succeed later.
func worthRetrying(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true // the connection
	}
	return e.Code == http.StatusTooManyRequests || e.Code >= 500 && e.Code != http.StatusNotImplemented
}

// do sends a request until it is answered, and decodes the reply. Again says that it was sent more
// than once: an earlier one may have been carried out although no answer came.
func (c *client) do(ctx context.Context, q call, out any) (again bool, err error) {
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		var resp *http.Response
		if resp, err = c.send(ctx, q); err == nil {
			err = decode(resp, out)
		}
		if err == nil || !worthRetrying(err) {
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
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil || out == nil {
		return err
	}
	if len(data) > maxReply {
		return &Error{Code: http.StatusRequestEntityTooLarge, Message: "the reply of the API server is too large"}
	}
	return json.Unmarshal(data, out)
}

const (
	asJSON       = "application/json"
	asMergePatch = "application/merge-patch+json"
	asStrategic  = "application/strategic-merge-patch+json"
)

// get reads an object.
func (c *client) get(ctx context.Context, kind, name string, out any) error {
	_, err := c.do(ctx, call{method: http.MethodGet, url: c.address(kind, []string{name}, nil)}, out)
	return err
}

// create creates an object. An object of that name with the same creation note is the one that an
// earlier attempt has created.
func (c *client) create(ctx context.Context, kind string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	again, err := c.do(ctx, call{method: http.MethodPost, url: c.address(kind, nil, nil), media: asJSON, body: body}, out)
	if !again || !isConflict(err) {
		return err
	}
	var wanted, found object
	if err := json.Unmarshal(body, &wanted); err != nil {
		return err
	}
	if c.get(ctx, kind, wanted.Metadata.Name, &found) != nil || found.Metadata.Annotations[noteCreated] != wanted.Metadata.Annotations[noteCreated] {
		return err
	}
	return c.get(ctx, kind, wanted.Metadata.Name, out)
}

// replace replaces an object, which names the version that it replaces.
func (c *client) replace(ctx context.Context, kind, name string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodPut, url: c.address(kind, []string{name}, nil), media: asJSON, body: body}, out)
	return err
}

// patch changes an object, or one of its subresources.
func (c *client) patch(ctx context.Context, kind string, names []string, media string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodPatch, url: c.address(kind, names, nil), media: media, body: body}, out)
	return err
}

// remove deletes an object that may be gone already. Grace is that of a Pod; a negative one
// leaves it to the Pod.
func (c *client) remove(ctx context.Context, kind, name string, grace time.Duration) error {
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
	if grace >= 0 {
		options["gracePeriodSeconds"] = int64(grace / time.Second)
	}
	body, err := json.Marshal(options)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodDelete, url: c.address(kind, []string{name}, nil), media: asJSON, body: body}, nil)
	if isMissing(err) {
		return nil
	}
	return err
}

// pageSize is how many objects one reply lists.
const pageSize = "100"

// listAll lists the objects that a selector selects, and the version at which they were so.
func listAll[T any](ctx context.Context, c *client, kind, selector string) (all []T, version string, err error) {
	next, begun := "", 0
	for {
		var page list[T]
		query := url.Values{"labelSelector": {selector}, "limit": {pageSize}}
		if next != "" {
			query.Set("continue", next)
		}
		_, err := c.do(ctx, call{method: http.MethodGet, url: c.address(kind, nil, query)}, &page)
		if hasCode(err, http.StatusGone) && begun < 3 { // it took too long; begin again
			all, next = nil, ""
			begun++
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

// errExpired says that the changes since a version are not known any more.
var errExpired = errors.New("the version is too old")

// watchTime is how long the server keeps a watch open.
const watchTime = 5 * time.Minute

// watch calls f with every change since a version, until the server ends the watch. It returns
// the version up to which f knows everything.
func (c *client) watch(ctx context.Context, kind, selector, version string, f func(kind string, object json.RawMessage) error) (string, error) {
	query := url.Values{"labelSelector": {selector}, "watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))}}
	resp, err := c.send(ctx, call{method: http.MethodGet, url: c.address(kind, nil, query)})
	if hasCode(err, http.StatusGone) {
		return version, errExpired
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
				return version, errExpired
			}
			return version, &Error{Code: s.Code, Reason: s.Reason, Message: s.Message}
		}
		var o object
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
