package display

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// viewerTime is how long a viewer may stop reading before it is disconnected. The X server skips pictures for slow viewers, so
// no data is queued for them.
const viewerTime = time.Minute

// ViewIn is a viewer's permissions.
type ViewIn struct {
	ViewOnly bool   `query:"view_only" doc:"Ignore mouse, keyboard, clipboard and resize requests of this viewer" default:"false"`
	TakeOver string `query:"take_over" doc:"Name of this viewer. It takes over mouse and keyboard while connected" maxLength:"64" default:""`
	NoStart  bool   `query:"no_start" doc:"Start neither the display nor the browser; fails if the display does not run" default:"false"`
}

// isRunning reports whether the display runs.
func (s *Service) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last != nil && !s.last.Ended()
}

// View connects a viewer's WebSocket to the display's VNC socket. Viewers share the display; display and browser keep
// running while one is connected.
func (s *Service) View(ctx context.Context, in ViewIn, c op.Conn) error {
	if in.NoStart && !s.isRunning() {
		return op.Errorf(op.Conflict, "the display does not run; connect without no_start to start it")
	}
	d, release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	var dialer net.Dialer
	vnc, err := dialer.DialContext(ctx, "unix", d.rfb)
	if err != nil {
		return op.Errorf(op.Unavailable, "cannot connect to the display's VNC server: %w; retry the request", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { vnc.Close() })()
	defer vnc.Close()

	v := s.control.join(in, cancel)
	defer s.control.leave(v)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	if !in.NoStart {
		parts.Go(func() { s.keepBrowser(ctx) })
	}
	parts.Go(func() {
		defer cancel()
		forwardToViewer(ctx, c, vnc)
	})
	err = forwardFromViewer(ctx, c, vnc, v.watches)
	if _, ok := op.AsError(err); ok {
		return err
	}
	return nil // either side may close first
}

// forwardToViewer sends the display's output to the viewer, no faster than the viewer reads.
func forwardToViewer(ctx context.Context, c op.Conn, vnc io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := vnc.Read(buf)
		if n > 0 {
			send, cancel := context.WithTimeout(ctx, viewerTime)
			werr := c.Write(send, buf[:n], false)
			cancel()
			if werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// forwardFromViewer sends the viewer's messages to the display. Messages of a view-only viewer are filtered.
func forwardFromViewer(ctx context.Context, c op.Conn, vnc io.Writer, viewOnly bool) error {
	var filter viewOnlyFilter
	for {
		msg, _, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if viewOnly {
			if msg, err = filter.filter(msg); err != nil {
				return op.Errorf(op.Invalid, "cannot parse the message of a view-only viewer: %w", err)
			}
		}
		if _, err := vnc.Write(msg); err != nil {
			return err
		}
	}
}

// keepBrowser keeps the browser on the display while a viewer is connected, even after a person has closed its window.
func (s *Service) keepBrowser(ctx context.Context) {
	if s.cfg.Browser == nil {
		return
	}
	for ctx.Err() == nil {
		done, release, err := s.cfg.Browser(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Warn("cannot start a browser for the viewer", "error", err)
			}
			return
		}
		select {
		case <-done:
		case <-ctx.Done():
		}
		release()
	}
}

// policy is the page's content security policy: it loads nothing from other hosts. Authentication decides which pages may
// frame it.
const policy = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self' ws: wss:"

// page serves the viewer's page, also under the names of noVNC's own pages.
func (s *Service) page() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean("/"+r.PathValue("file")), "/")
		switch {
		case r.URL.Path == "/vnc":
			// Relative, so that it works below any prefix.
			w.Header().Set("Location", withQuery("vnc/index.html", r.URL.RawQuery))
			w.WriteHeader(http.StatusFound)
			return
		case name == "" || name == "vnc.html" || name == "vnc_lite.html":
			name = "index.html"
		}
		if s.cfg.Pages == nil {
			http.NotFound(w, r)
			return
		}
		pages, err := fs.Sub(s.cfg.Pages, "vnc")
		if err != nil {
			http.NotFound(w, r)
			return
		}
		if _, err := fs.Stat(pages, name); errors.Is(err, fs.ErrNotExist) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"detail":"Not Found: the page is vnc/index.html"}`)
			return
		}
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Cache-Control", "no-cache")
		if name == "index.html" {
			serveIndex(w, pages)
			return
		}
		if path.Ext(name) == ".js" && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			s.serveCompressed(w, pages, name)
			return
		}
		http.ServeFileFS(w, r, pages, name)
	})
}

// serveCompressed writes a module, which is compressed once.
func (s *Service) serveCompressed(w http.ResponseWriter, pages fs.FS, name string) {
	small, ok := s.compressed.Load(name)
	if !ok {
		b, err := fs.ReadFile(pages, name)
		if err != nil {
			http.Error(w, "cannot read the file", http.StatusInternalServerError)
			return
		}
		var buf bytes.Buffer
		z := gzip.NewWriter(&buf)
		_, _ = z.Write(b)
		z.Close()
		small, _ = s.compressed.LoadOrStore(name, buf.Bytes())
	}
	h := w.Header()
	h.Set("Content-Type", "text/javascript; charset=utf-8")
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	w.Write(small.([]byte))
}

// serveIndex writes the page: http.ServeFileFS would redirect from index.html to the folder.
func serveIndex(w http.ResponseWriter, pages fs.FS) {
	b, err := fs.ReadFile(pages, "index.html")
	if err != nil {
		http.Error(w, "cannot read the page", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(b)
}

func withQuery(path, query string) string {
	if query == "" {
		return path
	}
	return path + "?" + query
}
