package display

import (
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

	"github.com/cove-sandbox/cove/internal/op"
)

// viewerTime is how long a viewer may leave what it was sent unread before it is let go. The X server notices that nothing
// more can be sent long before and skips pictures, so nothing piles up meanwhile.
const viewerTime = time.Minute

// ViewIn says what a viewer may do.
type ViewIn struct {
	ViewOnly bool `query:"view_only" doc:"Refuse mouse, keyboard, clipboard and resizing from this viewer" default:"false"`
}

// View joins a viewer's WebSocket with the display's VNC socket. Viewers share the display; as long as one watches, display
// and browser stay.
func (s *Service) View(ctx context.Context, in ViewIn, c op.Conn) error {
	d, release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	var dialer net.Dialer
	vnc, err := dialer.DialContext(ctx, "unix", d.rfb)
	if err != nil {
		return op.Errorf(op.Unavailable, "the display takes no viewers: %w; try again", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { vnc.Close() })()
	defer vnc.Close()

	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	parts.Go(func() { s.keepBrowser(ctx) })
	parts.Go(func() {
		defer cancel()
		toViewer(ctx, c, vnc)
	})
	err = fromViewer(ctx, c, vnc, in.ViewOnly)
	if _, told := op.AsError(err); told {
		return err
	}
	return nil // who left first does not matter
}

// toViewer sends what the display says. It reads no further before the viewer's side has taken it.
func toViewer(ctx context.Context, c op.Conn, vnc io.Reader) {
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

// fromViewer passes on what the viewer says, or only what leaves the display alone.
func fromViewer(ctx context.Context, c op.Conn, vnc io.Writer, viewOnly bool) error {
	watch := &watcher{}
	for {
		msg, _, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if viewOnly {
			if msg, err = watch.filter(msg); err != nil {
				return op.Errorf(op.Invalid, "this viewer may only watch, and it sent what cannot be understood: %w", err)
			}
		}
		if _, err := vnc.Write(msg); err != nil {
			return err
		}
	}
}

// keepBrowser has the browser on the display as long as somebody watches, also after a person has closed its window.
func (s *Service) keepBrowser(ctx context.Context) {
	if s.cfg.Browser == nil {
		return
	}
	for ctx.Err() == nil {
		done, release, err := s.cfg.Browser(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Warn("no browser for the viewer", "error", err)
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

// policy of the page: nothing comes from elsewhere. Who may show it in a frame is the sign-in's to decide.
const policy = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self' ws: wss:"

// page serves the viewer's page. It goes by the names that people know from noVNC, too.
func (s *Service) page() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean("/"+r.PathValue("file")), "/")
		switch {
		case r.URL.Path == "/vnc":
			// Relative, so that it is right behind any prefix.
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
		http.ServeFileFS(w, r, pages, name)
	})
}

// serveIndex writes the page itself: http.ServeFileFS would redirect from index.html to the folder.
func serveIndex(w http.ResponseWriter, pages fs.FS) {
	b, err := fs.ReadFile(pages, "index.html")
	if err != nil {
		http.Error(w, "the page cannot be read", http.StatusInternalServerError)
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
