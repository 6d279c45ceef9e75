// Package convert converts documents to Markdown: web pages, Office files, PDF, tables,
// notebooks, image metadata and text, from the web, from files and from data URIs.
//
// It selects the converter and downloads documents, through the proxy for outgoing traffic and never from
// the sandbox's internal services. HTML is converted by aio-markdown (see package markdown).
// Office files and PDF are converted by Microsoft's markitdown or, if that is not installed,
// by package document with less formatting. Both programs run in separate processes with
// limits on memory and time.
package convert

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service. A limit of 0 means the default.
type Config struct {
	Home      string
	Workspace string
	Venv      string        // Python environment with markitdown
	Markdown  func() string // returns the path of aio-markdown; empty: HTML and Excel files cannot be read
	Runner    *proc.Runner
	Log       *slog.Logger

	// Proxy selects the proxy of a request, as in http.Transport. Nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// Deny reports whether an address belongs to the sandbox's internal services. Nil: none does.
	Deny func(netip.AddrPort) bool

	MaxBytes int64         // size of a document
	MaxText  int           // bytes of Markdown
	Timeout  time.Duration // of one conversion, including the download
	MaxJobs  int           // concurrent conversions
}

// Service converts documents.
type Service struct {
	cfg  Config
	base pathname.Base
	docs document.Reader
	jobs chan struct{}
	web  *fetcher
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, 64<<20)
	c.MaxText = cmp.Or(c.MaxText, 8<<20)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Minute)
	c.MaxJobs = cmp.Or(c.MaxJobs, 4)
	return &Service{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace},
		docs: document.Reader{Runner: c.Runner, Helper: document.Helper{Runner: c.Runner, Program: c.Markdown}},
		jobs: make(chan struct{}, c.MaxJobs), web: newFetcher(c)}
}

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "util_convert_to_markdown", Route: "POST /v1/util/convert_to_markdown", Tag: "util",
			SDK: "util.convert_to_markdown", Verb: "util convert", ReadOnly: true, MaxBody: 96 << 20,
			Doc: "Convert a document to Markdown. Accepts http, https, file and data URIs of HTML, PDF, Word, " +
				"PowerPoint, Excel, CSV, JSON, notebooks, images (metadata only) and text."}, s.Convert),
		op.New(op.Spec{Name: "util_extract_images", Route: "POST /v1/util/extract_images", Tag: "util", Verb: "util images", MaxBody: 96 << 20,
			Doc: "Save the images that a PDF, DOCX, PPTX, XLSX or EPUB document contains, and list their paths."}, s.ExtractImages),
	}
}

// Close closes idle connections. Conversions end with their calls.
func (s *Service) Close() error {
	s.web.close()
	return nil
}

// View shows part of a document.
func (s *Service) View(ctx context.Context, path string, q document.Query) (document.View, error) {
	return s.docs.View(ctx, path, q)
}

// ConvertIn names a document.
type ConvertIn struct {
	URI string `json:"uri" doc:"http:, https:, file: or data: URI, or a path"`
}

// Convert returns a document as Markdown.
func (s *Service) Convert(ctx context.Context, in ConvertIn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	release, err := s.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	src, err := s.open(ctx, strings.TrimSpace(in.URI))
	if err != nil {
		return "", s.explainTimeout(ctx, err)
	}
	defer src.close()
	text, err := s.markdown(ctx, src)
	if err != nil {
		return "", s.explainTimeout(ctx, err)
	}
	if len(text) > s.cfg.MaxText {
		text = strings.ToValidUTF8(text[:s.cfg.MaxText], "") + "\n\n[truncated]\n"
		op.Hint(ctx, "the Markdown was truncated after %d bytes", s.cfg.MaxText)
	}
	return text, nil
}

// acquire waits until another document can be read.
func (s *Service) acquire(ctx context.Context) (release func(), err error) {
	select {
	case s.jobs <- struct{}{}:
		return func() { <-s.jobs }, nil
	case <-ctx.Done():
		return nil, op.Errorf(op.Unavailable, "conversion limit reached (%d); retry later", s.cfg.MaxJobs)
	}
}

// explainTimeout returns the error of an exceeded deadline.
func (s *Service) explainTimeout(ctx context.Context, err error) error {
	if _, ok := op.AsError(err); !ok && ctx.Err() == context.DeadlineExceeded {
		return op.Errorf(op.Unavailable, "the conversion timed out after %v; try a smaller document: %w", s.cfg.Timeout, err)
	}
	return err
}

// source is a document on the disk.
type source struct {
	path  string
	media string   // as declared, without parameters; may be empty
	full  string   // as declared, with parameters
	name  string   // file name
	page  *url.URL // its URL, for links; nil unless from the web
	temp  bool     // path must be removed
}

func (s *source) close() {
	if s.temp {
		_ = os.Remove(s.path) // best effort: a leftover temporary file is harmless
	}
}

// open downloads or locates a document.
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
		return nil, op.Errorf(op.Invalid, "unsupported URI scheme %q; send an http, https, file or data URI", scheme)
	}
	return s.local(uri)
}

func (s *Service) file(uri string) (*source, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, op.Errorf(op.Invalid, "invalid uri: %w", err)
	}
	if u.Host != "" && u.Host != "localhost" {
		return nil, op.Errorf(op.Invalid, "%s has the host %q; a file URI starts with three slashes, such as file:///home/x", uri, u.Host)
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
		return nil, pyerr.New("convert", full, pyerr.Spec{Kind: pyerr.Target}, "convert %s: not a regular file", full)
	}
	if info.Size() > s.cfg.MaxBytes {
		return nil, tooLarge(full, s.cfg.MaxBytes)
	}
	return &source{path: full, name: filepath.Base(full)}, nil
}

func tooLarge(what string, limit int64) error {
	return op.Errorf(op.TooLarge, "%s is too large to convert: the limit is %d MiB", what, limit>>20)
}
