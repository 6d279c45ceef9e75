package desktop

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// page shows the desktop with noVNC. It accepts the same parameters as noVNC's own page.
//
//go:embed vnc.html
var page []byte

// servePages implements novnc_proxy: a page with the desktop, and a WebSocket to a VNC server.
func servePages(ctx context.Context, c *command) error {
	target, listen := c.option("--vnc", "localhost:5900"), c.option("--listen", "6080")
	if !strings.Contains(listen, ":") {
		listen = "127.0.0.1:" + listen
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	c.announce()
	server := &http.Server{Handler: viewer(target, c.Pages), ReadHeaderTimeout: 30 * time.Second}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	fmt.Fprintln(c.Out, "serving", ln.Addr())
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// viewer serves the page, noVNC's files, and the connection to the VNC server at target.
func viewer(target string, pages fs.FS) http.Handler {
	m := http.NewServeMux()
	for _, path := range []string{"GET /{$}", "GET /vnc.html", "GET /vnc_lite.html"} {
		m.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Write(page)
		})
	}
	m.HandleFunc("GET /websockify", func(w http.ResponseWriter, r *http.Request) {
		vnc, err := (&net.Dialer{Timeout: handshakeTime}).DialContext(r.Context(), "tcp", target)
		if err != nil {
			http.Error(w, "no VNC server at "+target, http.StatusBadGateway)
			return
		}
		defer vnc.Close()
		// Pages of other origins must not connect with the cookies of a person.
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"binary"}, OriginPatterns: origins(r)})
		if err != nil {
			return // Accept has sent the response
		}
		defer socket.CloseNow()
		socket.SetReadLimit(-1) // data is forwarded immediately
		splice(websocket.NetConn(r.Context(), socket, websocket.MessageBinary), vnc)
	})
	files, err := fs.Sub(pages, "vendor/novnc")
	if err != nil {
		files = os.DirFS("/nonexistent")
	}
	m.Handle("GET /", http.FileServerFS(files))
	return m
}

// origins returns the hosts whose pages may connect: the host of the request, which a reverse proxy may have replaced.
func origins(r *http.Request) []string {
	list := []string{r.Host}
	if host := r.Header.Get("X-Forwarded-Host"); host != "" {
		list = append(list, host)
	}
	if u, err := url.Parse("http://" + r.Host); err == nil {
		list = append(list, u.Host)
	}
	return list
}
