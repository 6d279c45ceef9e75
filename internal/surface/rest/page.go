package rest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Policies of pages, which load nothing from other hosts. The strict one also forbids styles in
// markup, which the terminal uses.
const (
	strictPolicy = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; " +
		"form-action 'self'; frame-ancestors 'self'"
	inlinePolicy = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'self'"
)

// Home returns the operations of the page at the root of the server, and of the files that it
// shares with other pages. Programs that request the root are redirected to the documentation.
// The page may frame its own host and the given ones.
func Home(folder, doc string, pages fs.FS, frames ...string) []op.Op {
	files := newFiles(pages)
	files.frames = strings.Join(frames, " ")
	return []op.Op{
		op.Handle(op.Spec{Name: "home_page", Access: op.AccessRead, Content: op.ContentPage, Route: "GET /{$}",
			Also: []string{"GET /index.html"}, Tag: "pages", Doc: doc}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Accept")
			if r.URL.Path == "/" && !strings.Contains(r.Header.Get("Accept"), "text/html") {
				// A relative redirect works below any path prefix.
				w.Header().Set("Location", "v1/docs")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return
			}
			files.serve(w, r, folder+"/index.html")
		})),
		Assets(folder, "/"+folder, pages),
		Assets("ui", "/ui", pages),
		Assets("vendor", "/vendor", pages),
	}
}

// Page returns the operations of a built-in page: the folder's index.html at the route, its
// other files below it. Pages refer to their files by relative URLs, so that they work
// below any path prefix.
func Page(folder, route, doc string, pages fs.FS) []op.Op {
	files := newFiles(pages)
	return []op.Op{
		op.Handle(op.Spec{Name: folder + "_page", Access: op.AccessRead, Content: op.ContentPage,
			Route: "GET " + route, Tag: "pages", Doc: doc}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			files.serve(w, r, folder+"/index.html")
		})),
		Assets(folder, route, pages),
	}
}

// Assets returns the operation that serves the files of a folder below the route.
func Assets(folder, route string, pages fs.FS) op.Op {
	files := newFiles(pages)
	return op.Handle(op.Spec{Name: folder + "_asset", Access: op.AccessRead, Content: op.ContentPage,
		Route: "GET " + route + "/{file...}", Tag: "pages", Doc: "Files of a page."},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			files.serve(w, r, path.Join(folder, path.Clean("/"+r.PathValue("file"))))
		}))
}

// files serves built-in files. It caches requested files compressed, because they never change.
type files struct {
	pages  fs.FS
	frames string   // additional hosts that the pages may frame
	ready  sync.Map // *file by name
}

type file struct {
	etag         string
	plain, small []byte // small is nil if compression is not worthwhile
}

func newFiles(pages fs.FS) *files { return &files{pages: pages} }

func (f *files) load(name string) (*file, error) {
	if known, ok := f.ready.Load(name); ok {
		return known.(*file), nil
	}
	b, err := fs.ReadFile(f.pages, name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	one := &file{etag: `"` + hex.EncodeToString(sum[:8]) + `"`, plain: b}
	if len(b) >= gzipFrom {
		var small bytes.Buffer
		z, _ := gzip.NewWriterLevel(&small, gzip.BestCompression) // the level is valid
		_, _ = z.Write(b)
		z.Close()
		one.small = small.Bytes()
	}
	f.ready.Store(name, one)
	return one, nil
}

// serve sends one file.
func (f *files) serve(w http.ResponseWriter, r *http.Request, name string) {
	one, err := f.load(name)
	if err != nil {
		writeJSON(w, r, http.StatusNotFound, map[string]any{"detail": "Not Found"})
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Add("Vary", "Accept-Encoding")
	h.Set("ETag", one.etag)
	policy := policyOf(name)
	if f.frames != "" {
		policy += "; frame-src 'self' " + f.frames
	}
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	if r.Header.Get("If-None-Match") == one.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	b := one.plain
	if one.small != nil && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		b = one.small
	}
	h.Set("Content-Type", mediaOf(name))
	w.WriteHeader(http.StatusOK)
	w.Write(b)
}

func policyOf(name string) string {
	folder, _, _ := strings.Cut(name, "/")
	switch folder {
	case "terminal": // xterm adds style elements
		return inlinePolicy
	}
	return strictPolicy
}

func mediaOf(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/html; charset=utf-8"
}
