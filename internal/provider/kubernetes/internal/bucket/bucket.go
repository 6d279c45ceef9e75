// Package bucket reads and writes objects in one bucket of an S3-compatible store, below one prefix.
//
// It owns the credentials: they are never in errors or logs, and are sent only to the store. It rejects redirects and
// oversized responses. It uses operations that every store supports: put, get, list, delete and multipart uploads, with
// signature version 4 and the bucket in the path.
package bucket

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config is the address of a bucket, with credentials.
type Config struct {
	Endpoint  string // URL of the store
	Bucket    string
	Prefix    string // of all keys; ends with a slash unless it is empty
	Region    string // default us-east-1
	AccessKey string
	SecretKey string
}

// String hides the credentials.
func (c Config) String() string {
	return strings.TrimRight(c.Endpoint, "/") + "/" + c.Bucket + "/" + c.Prefix
}

// GoString hides the credentials from %#v.
func (c Config) GoString() string { return c.String() }

// Bucket is a client of a bucket.
type Bucket struct {
	cfg  Config
	base *url.URL
	http *http.Client
}

// Limits of requests.
const (
	maxResponse = 8 << 20
	callTimeout = time.Minute
	attempts    = 3
)

// New returns a client. It sends no request.
func New(cfg Config) (*Bucket, error) {
	cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	base, err := url.Parse(cfg.Endpoint)
	switch {
	case err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.User != nil:
		return nil, errors.New("snapshot store: invalid endpoint; use a URL such as https://s3.example.com")
	case cfg.Bucket == "" || strings.ContainsAny(cfg.Bucket, "/?#"):
		return nil, fmt.Errorf("snapshot store: invalid bucket %q", cfg.Bucket)
	case cfg.AccessKey == "" || cfg.SecretKey == "":
		return nil, errors.New("snapshot store: an access key and a secret key are required")
	}
	base.Path = strings.TrimRight(base.Path, "/") + "/" + cfg.Bucket
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: callTimeout,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute, DisableCompression: true}
	// A redirect would send a signed request to another host.
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Bucket{cfg: cfg, base: base, http: client}, nil
}

// Close ends idle connections.
func (b *Bucket) Close() { b.http.CloseIdleConnections() }

func (b *Bucket) String() string { return b.cfg.String() }

// Error is an error response of the store.
type Error struct {
	Status  int
	Code    string // such as AccessDenied
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("the snapshot store returned %d %s", e.Status, cmp.Or(e.Code, http.StatusText(e.Status)))
}

// IsMissing reports whether an object or upload does not exist. It is false for buckets and users, for which stores
// also return 404.
func IsMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && (e.Code == "NoSuchKey" || e.Code == "NoSuchUpload")
}

// request is one call. It can be sent repeatedly.
type request struct {
	method string
	key    string // empty: the bucket itself
	query  url.Values
	body   []byte
}

// send sends a request and returns a successful response. All requests are idempotent, so it retries after errors
// of the network and the store.
func (b *Bucket) send(ctx context.Context, r request) (resp *http.Response, err error) {
	for try := range attempts {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(time.Duration(try*try) * 200 * time.Millisecond):
			}
		}
		resp, err = b.try(ctx, r)
		var e *Error
		if err == nil || ctx.Err() != nil || errors.As(err, &e) && e.Status < 500 &&
			e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout || errors.As(err, &e) &&
			e.Status == http.StatusInsufficientStorage {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return resp, err
}

func (b *Bucket) try(ctx context.Context, r request) (*http.Response, error) {
	u := *b.base
	if r.key != "" {
		u.Path += "/" + b.cfg.Prefix + r.key
	}
	u.RawPath, u.RawQuery = escape(u.Path, true), canonicalQuery(r.query)
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	b.sign(req, r.body, time.Now().UTC())
	resp, err := b.http.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // its text contains the address
			err = failed.Err
		}
		return nil, fmt.Errorf("the snapshot store does not answer: %w", err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	e := &Error{Status: resp.StatusCode}
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_ = xml.Unmarshal(data, &struct {
		Code    *string
		Message *string
	}{&e.Code, &e.Message})
	return nil, e
}

// escape percent-encodes a string as signatures require.
func escape(s string, path bool) string {
	var out strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 || path && c == '/' {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

func canonicalQuery(query url.Values) string {
	parts := []string{}
	for _, k := range slices.Sorted(maps.Keys(query)) {
		parts = append(parts, escape(k, false)+"="+escape(query.Get(k), false))
	}
	return strings.Join(parts, "&")
}

// sign signs a request with version 4 of the protocol.
func (b *Bucket) sign(req *http.Request, body []byte, now time.Time) {
	sum := sha256.Sum256(body)
	stamp, day := now.Format("20060102T150405Z"), now.Format("20060102")
	req.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	req.Header.Set("X-Amz-Date", stamp)
	const signed = "host;x-amz-content-sha256;x-amz-date"
	canonical := strings.Join([]string{req.Method, req.URL.EscapedPath(), req.URL.RawQuery,
		"host:" + req.URL.Host, "x-amz-content-sha256:" + hex.EncodeToString(sum[:]), "x-amz-date:" + stamp, "",
		signed, hex.EncodeToString(sum[:])}, "\n")
	scope := day + "/" + b.cfg.Region + "/s3/aws4_request"
	hashed := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + b.cfg.SecretKey)
	for _, part := range []string{day, b.cfg.Region, "s3", "aws4_request", "AWS4-HMAC-SHA256\n" + stamp + "\n" +
		scope + "\n" + hex.EncodeToString(hashed[:])} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+b.cfg.AccessKey+"/"+scope+", SignedHeaders="+
		signed+", Signature="+hex.EncodeToString(key))
}

// call sends a request with a short response.
func (b *Bucket) call(ctx context.Context, r request, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, attempts*callTimeout)
	defer cancel()
	resp, err := b.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err == nil && out != nil {
		err = xml.Unmarshal(data, out)
	}
	if err != nil {
		return nil, fmt.Errorf("read the response of the snapshot store: %w", err)
	}
	return resp.Header, nil
}

// Put writes a small object.
func (b *Bucket) Put(ctx context.Context, key string, data []byte) error {
	_, err := b.call(ctx, request{method: http.MethodPut, key: key, body: data}, nil)
	return err
}

// Open opens an object.
func (b *Bucket) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	resp, err := b.send(ctx, request{method: http.MethodGet, key: key})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Get reads a small object.
func (b *Bucket) Get(ctx context.Context, key string) ([]byte, error) {
	r, err := b.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxResponse))
}

// Delete removes an object, if it exists.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	_, err := b.call(ctx, request{method: http.MethodDelete, key: key}, nil)
	if IsMissing(err) {
		return nil
	}
	return err
}

// List returns the keys that begin with start, sorted.
func (b *Bucket) List(ctx context.Context, start string) (keys []string, err error) {
	query := url.Values{"list-type": {"2"}, "prefix": {b.cfg.Prefix + start}}
	for {
		var page struct {
			Contents []struct{ Key string }
			Next     string `xml:"NextContinuationToken"`
			More     bool   `xml:"IsTruncated"`
		}
		if _, err := b.call(ctx, request{method: http.MethodGet, query: query}, &page); err != nil {
			return nil, err
		}
		for _, c := range page.Contents {
			keys = append(keys, strings.TrimPrefix(c.Key, b.cfg.Prefix))
		}
		if !page.More || page.Next == "" {
			return keys, nil
		}
		query.Set("continuation-token", page.Next)
	}
}
