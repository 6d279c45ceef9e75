package convert

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// fetcher downloads documents.
type fetcher struct {
	cfg     Config
	direct  *http.Transport // dials every address that is not denied
	proxied *http.Transport // dials only the proxy
}

var errDenied = errors.New("the address belongs to an internal service of the sandbox")

func newFetcher(c Config) *fetcher {
	f := &fetcher{cfg: c}
	// Every address is checked directly before the connection, so that a name cannot resolve to
	// another address in between.
	guarded := &net.Dialer{Timeout: 15 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil || f.denied(ap) {
			return errDenied
		}
		return nil
	}}
	f.direct = transport(guarded)
	f.proxied = transport(&net.Dialer{Timeout: 15 * time.Second})
	f.proxied.Proxy = c.Proxy
	return f
}

func transport(d *net.Dialer) *http.Transport {
	return &http.Transport{DialContext: d.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 15 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second, IdleConnTimeout: 10 * time.Second, MaxIdleConns: 4}
}

func (f *fetcher) close() {
	f.direct.CloseIdleConnections()
	f.proxied.CloseIdleConnections()
}

// denied checks an address, including its equivalent forms.
func (f *fetcher) denied(ap netip.AddrPort) bool {
	if f.cfg.Deny == nil {
		return false
	}
	addr := ap.Addr().Unmap().WithZone("")
	if addr.IsUnspecified() { // connects to this machine
		for _, local := range []string{"127.0.0.1", "::1"} {
			if f.cfg.Deny(netip.AddrPortFrom(netip.MustParseAddr(local), ap.Port())) {
				return true
			}
		}
	}
	return f.cfg.Deny(netip.AddrPortFrom(addr, ap.Port()))
}

// RoundTrip sends one request of a chain of redirects.
func (f *fetcher) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "http" && r.URL.Scheme != "https" {
		return nil, fmt.Errorf("redirected to a %s URI", r.URL.Scheme)
	}
	if f.cfg.Proxy != nil {
		via, err := f.cfg.Proxy(r)
		if err != nil {
			return nil, err
		}
		if via != nil {
			if err := f.checkName(r.Context(), r.URL); err != nil {
				return nil, err
			}
			return f.proxied.RoundTrip(r)
		}
	}
	return f.direct.RoundTrip(r)
}

// checkName checks a host that a proxy will dial. A name that does not resolve here may resolve at
// the proxy, so it is allowed.
func (f *fetcher) checkName(ctx context.Context, u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if f.denied(netip.AddrPortFrom(a, uint16(number))) {
			return errDenied
		}
	}
	return nil
}

func (f *fetcher) fetch(ctx context.Context, uri string) (*source, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil || req.URL.Host == "" {
		return nil, op.Errorf(op.Invalid, "the uri %q cannot be fetched; send a URI such as https://host/path", uri)
	}
	req.Header.Set("Accept", "text/markdown, text/html;q=0.9, */*;q=0.8")
	req.Header.Set("User-Agent", "Mozilla/5.0 (compatible; Cove)")
	client := &http.Client{Transport: f}
	res, err := client.Do(req)
	if err != nil {
		return nil, f.explain(uri, err)
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		code := op.Unavailable
		if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusGone {
			code = op.NotFound
		}
		return nil, op.Errorf(code, "%s: the server responded with %s", uri, res.Status)
	}
	if res.ContentLength > f.cfg.MaxBytes {
		return nil, tooLarge(uri, f.cfg.MaxBytes)
	}
	src := &source{full: res.Header.Get("Content-Type"), name: fileName(res), page: res.Request.URL}
	src.media, _, _ = mime.ParseMediaType(src.full)
	if err := src.spool(res.Body, uri, f.cfg.MaxBytes); err != nil {
		return nil, err
	}
	return src, nil
}

// explain returns the error of a failed request for the caller.
func (f *fetcher) explain(uri string, err error) error {
	if errors.Is(err, errDenied) {
		return op.Errorf(op.Denied, "%s cannot be fetched: %w", uri, errDenied)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return op.Errorf(op.Unavailable, "%s cannot be fetched: %w", uri, err)
}

// fileName returns the name of a document according to the server.
func fileName(res *http.Response) string {
	if _, params, err := mime.ParseMediaType(res.Header.Get("Content-Disposition")); err == nil && params["filename"] != "" {
		return path.Base(params["filename"])
	}
	return path.Base(res.Request.URL.Path)
}

// spool saves a document to a temporary file.
func (s *source) spool(r io.Reader, what string, limit int64) error {
	temp, err := os.CreateTemp("", "convert-*")
	if err != nil {
		return fmt.Errorf("save the document: %w", err)
	}
	s.path, s.temp = temp.Name(), true
	n, err := io.Copy(temp, io.LimitReader(r, limit+1))
	if cerr := temp.Close(); err == nil {
		err = cerr
	}
	switch {
	case err == nil && n > limit:
		err = tooLarge(what, limit)
	case err != nil:
		err = op.Errorf(op.Unavailable, "reading %s was interrupted: %w", what, err)
	}
	if err != nil {
		s.close()
	}
	return err
}

// inline decodes a data URI, without its scheme.
func (s *Service) inline(rest string) (*source, error) {
	head, data, ok := strings.Cut(rest, ",")
	if !ok {
		return nil, op.Errorf(op.Invalid, "the data URI has no comma; send a URI such as data:text/html;base64,…")
	}
	media, isBase64 := head, false
	if i := strings.LastIndexByte(head, ';'); i >= 0 && strings.EqualFold(strings.TrimSpace(head[i+1:]), "base64") {
		media, isBase64 = head[:i], true
	}
	raw, err := url.PathUnescape(data)
	if err != nil {
		return nil, op.Errorf(op.Invalid, "invalid percent-encoding in data URI: %w", err)
	}
	if isBase64 {
		plain := strings.NewReplacer("-", "+", "_", "/", "\n", "", "\r", "", " ", "").Replace(strings.TrimRight(raw, "= \n\r"))
		b, err := base64.RawStdEncoding.DecodeString(plain)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "invalid base64 in data URI: %w", err)
		}
		raw = string(b)
	}
	if media == "" {
		media = "text/plain;charset=US-ASCII"
	} else if strings.HasPrefix(media, ";") {
		media = "text/plain" + media
	}
	src := &source{full: media}
	if src.media, _, err = mime.ParseMediaType(media); err != nil {
		return nil, op.Errorf(op.Invalid, "invalid media type %q in data URI: %w", media, err)
	}
	return src, src.spool(strings.NewReader(raw), "the data URI", s.cfg.MaxBytes)
}
