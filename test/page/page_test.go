// Package page tests the pages of the real programs in a real browser. The
// stories are Node scripts in this folder; the Go files start the programs that they need.
package page

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

var aio, cove string

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) {
		aio, cove = filepath.Join(dir, "aio"), filepath.Join(dir, "cove")
	})
}

// serve starts a sandbox and returns its address.
func serve(t *testing.T, env ...string) string {
	t.Helper()
	return launch(t, exec.Command(aio, "serve", "--listen", "127.0.0.1:0", "--log-level", "warn"), env...)
}

// needBrowser skips a test where its story cannot run.
func needBrowser(t *testing.T) {
	t.Helper()
	testenv.Need(t, "node", "chromium", "bash", "vi")
	if _, err := os.Stat("node_modules/playwright-core"); err != nil {
		testenv.Lack(t, "playwright-core is missing; run make deps")
	}
}

// launch starts a program and returns the address it reports.
func launch(t *testing.T, cmd *exec.Cmd, env ...string) string {
	t.Helper()
	needBrowser(t)
	var mu sync.Mutex
	var log bytes.Buffer
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TERM=xterm-256color"}, env...)
	w := writer(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		log.Write(b)
	})
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-done
	})
	var address string
	testenv.Poll(t, "the server's address", func() bool {
		mu.Lock()
		defer mu.Unlock()
		_, rest, ok := strings.Cut(log.String(), "serving on ")
		address, rest, _ = strings.Cut(rest, "\n")
		select {
		case <-done:
			t.Fatalf("the server ended: %s", log.String())
		default:
		}
		return ok && rest != ""
	})
	return address
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// prefixed serves the server below a path, as a hub does.
func prefixed(t *testing.T, address string) string {
	t.Helper()
	const prefix = "/sandbox/abc"
	target, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, prefix)
		r.Out.URL.RawPath = ""
		r.Out.Host = r.In.Host
		r.SetXForwarded()
		r.Out.Header.Set("X-Forwarded-Prefix", prefix)
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, prefix+"/") {
			http.Error(w, "outside the prefix: "+r.URL.Path, http.StatusNotFound)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + prefix
}

// cuttable forwards connections to the server. A request to control closes all
// open connections.
func cuttable(t *testing.T, address string) (through, control string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	cut := func() {
		mu.Lock()
		defer mu.Unlock()
		for c := range open {
			c.Close()
		}
		clear(open)
	}
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
			if err != nil {
				in.Close()
				continue
			}
			keep(in)
			keep(out)
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() { io.Copy(pair[0], pair[1]); pair[0].Close() }()
			}
		}
	}()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cut() }))
	t.Cleanup(func() { l.Close(); cut(); s.Close() })
	return "http://" + l.Addr().String(), s.URL
}

// runStory runs one story.
func runStory(t *testing.T, script string, env ...string) {
	t.Helper()
	limit := 10 * time.Minute
	if os.Getenv("REPEAT") != "" || testenv.AtNight() {
		limit = 2 * time.Hour
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "story.mjs", script)
	cmd.Env = append(os.Environ(), env...)
	out := lineLog{t: t}
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Logf("%s", out.rest)
	if state := cmd.ProcessState; state != nil {
		t.Logf("%s with its browser: %v of processor time", script, (state.UserTime() + state.SystemTime()).Round(time.Second/10))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lineLog logs lines as they arrive: a story that is killed shows how far it came.
type lineLog struct {
	t    *testing.T
	rest []byte
}

func (l *lineLog) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	if i := bytes.LastIndexByte(l.rest, '\n'); i >= 0 {
		l.t.Logf("%s", l.rest[:i])
		l.rest = append([]byte(nil), l.rest[i+1:]...)
	}
	return len(b), nil
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	address := serve(t)
	through, control := cuttable(t, address)
	runStory(t, "terminal.mjs", "URL="+address, "PREFIX_URL="+prefixed(t, address), "CUT_URL="+through, "CUT_CONTROL="+control)
}
