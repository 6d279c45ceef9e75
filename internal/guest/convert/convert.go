// Package convert turns documents into Markdown: web pages, Office files, PDF,
// tables, notebooks, pictures' metadata, text; from the web, from files, and from
// data URIs.
//
// It owns the choice of converter and the fetching, which obeys the outbound proxy
// and never reaches the sandbox's own internals. HTML is converted by aio-markdown
// (see package markdown), Office files and PDF by Microsoft's markitdown, or, when
// that is not installed, by our own plainer reader; both programs in processes of
// their own. It refuses anything without a bound on size and time.
package convert

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/document"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// Config of the service. A limit of 0 is the default.
type Config struct {
	Home      string
	Workspace string
	Venv      string // Python environment that has markitdown
	Markdown  string // the program aio-markdown; empty: HTML cannot be converted
	Runner    *proc.Runner
	Log       *slog.Logger

	// Proxy says which outbound proxy a request goes through, as in http.Transport.
	// Nil means none.
	Proxy func(*http.Request) (*url.URL, error)
	// Deny names the addresses of the sandbox's own internals. Nil means none.
	Deny func(netip.AddrPort) bool

	MaxBytes int64         // of a document
	MaxText  int           // of the Markdown
	Timeout  time.Duration // of one conversion, fetching included
	MaxJobs  int           // at a time
}

// Service converts.
type Service struct {
	cfg  Config
	base pathname.Base
	docs document.Reader
	jobs chan struct{}
	web  *fetcher
}

// New makes the service. It touches nothing.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	set(&c.MaxBytes, 64<<20)
	set(&c.MaxText, 8<<20)
	set(&c.Timeout, 2*time.Minute)
	set(&c.MaxJobs, 4)
	return &Service{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, docs: document.Reader{Runner: c.Runner},
		jobs: make(chan struct{}, c.MaxJobs), web: newFetcher(c)}
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Ops lists what the service offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "util_convert_to_markdown", Route: "POST /v1/util/convert_to_markdown", Tag: "util", SDK: "util.convert_to_markdown", Verb: "util convert", ReadOnly: true, MaxBody: 96 << 20,
			Doc: "Convert a document to Markdown. Takes http, https, file and data URIs of HTML, PDF, Word, PowerPoint, Excel, CSV, JSON, notebooks, images (their metadata) and text."}, s.Convert),
	}
}

// Close lets connections go. A conversion ends with its call.
func (s *Service) Close() error {
	s.web.close()
	return nil
}

// View shows part of a document.
func (s *Service) View(ctx context.Context, path string, q document.Query) (document.View, error) {
	return s.docs.View(ctx, path, q)
}

// ConvertIn is a document.
type ConvertIn struct {
	URI string `json:"uri" doc:"http:, https:, file: or data: URI, or a path"`
}

// Convert returns a document as Markdown.
func (s *Service) Convert(ctx context.Context, in ConvertIn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	select {
	case s.jobs <- struct{}{}:
		defer func() { <-s.jobs }()
	case <-ctx.Done():
		return "", op.Errorf(op.Unavailable, "there are already %d conversions; try again later", s.cfg.MaxJobs)
	}
	src, err := s.open(ctx, strings.TrimSpace(in.URI))
	if err != nil {
		return "", s.inTime(ctx, err)
	}
	defer src.close()
	text, err := s.markdown(ctx, src)
	if err != nil {
		return "", s.inTime(ctx, err)
	}
	if len(text) > s.cfg.MaxText {
		text = strings.ToValidUTF8(text[:s.cfg.MaxText], "") + "\n\n[cut here]\n"
		op.Hint(ctx, "the Markdown was cut after %d bytes", s.cfg.MaxText)
	}
	return text, nil
}

// inTime makes the end of the time a failure that says so.
func (s *Service) inTime(ctx context.Context, err error) error {
	if _, ok := op.AsError(err); !ok && ctx.Err() == context.DeadlineExceeded {
		return op.Errorf(op.Unavailable, "the conversion took longer than %v; try a smaller document: %w", s.cfg.Timeout, err)
	}
	return err
}

// source is a document on the disk.
type source struct {
	path  string
	media string   // as declared, without parameters; may be empty
	full  string   // as declared, with parameters
	name  string   // what it calls itself
	page  *url.URL // where it came from, for links; nil unless from the web
	temp  bool     // to be removed
}

func (s *source) close() {
	if s.temp {
		_ = os.Remove(s.path) // a temporary file that stays hurts nobody
	}
}

// open brings a document to the disk.
func (s *Service) open(ctx context.Context, uri string) (*source, error) {
	scheme, rest, ok := strings.Cut(uri, ":")
	switch {
	case uri == "":
		return nil, op.Errorf(op.Invalid, "the uri is empty; send an http, https, file or data URI")
	case ok && strings.EqualFold(scheme, "data"):
		return s.inline(rest)
	case ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")):
		return s.web.fetch(ctx, uri)
	case ok && strings.EqualFold(scheme, "file"):
		return s.file(uri)
	case ok && !strings.Contains(scheme, "/") && strings.HasPrefix(rest, "//"):
		return nil, op.Errorf(op.Invalid, "%s URIs cannot be converted; send an http, https, file or data URI", scheme)
	}
	return s.local(uri)
}

func (s *Service) file(uri string) (*source, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, op.Errorf(op.Invalid, "the uri cannot be read: %w", err)
	}
	if u.Host != "" && u.Host != "localhost" {
		return nil, op.Errorf(op.Invalid, "%s names the host %q; a file URI has three slashes, as in file:///home/x", uri, u.Host)
	}
	path := u.Path
	if path == "" {
		path = u.Opaque // file:relative
	}
	return s.local(path)
}

func (s *Service) local(path string) (*source, error) {
	full, err := s.base.Resolve(path)
	if err != nil {
		return nil, pyerr.From("convert", path, err)
	}
	info, err := os.Stat(full)
	if err != nil {
		return nil, pyerr.From("convert", full, err)
	}
	if !info.Mode().IsRegular() {
		return nil, pyerr.New("convert", full, pyerr.Spec{Kind: pyerr.Target}, "convert %s: it is not a regular file", full)
	}
	if info.Size() > s.cfg.MaxBytes {
		return nil, tooLarge(full, s.cfg.MaxBytes)
	}
	return &source{path: full, name: filepath.Base(full)}, nil
}

func tooLarge(what string, limit int64) error {
	return op.Errorf(op.TooLarge, "%s is larger than %d MiB, too large to convert", what, limit>>20)
}
