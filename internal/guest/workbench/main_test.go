package workbench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/workbench"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// TestMain also implements the fake code-server, and the guard of its processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasSuffix(os.Args[1], "entry.js") {
		if err := serveStandIn(os.Args[2:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

// serveStandIn is a server with the arguments of code-server. It responds with its arguments and the request.
func serveStandIn(args []string) error {
	value := func(flag string) string { return args[slices.Index(args, flag)+1] }
	workspace := args[len(args)-1]
	l, err := net.Listen("unix", value("--socket"))
	if err != nil {
		return err
	}
	fmt.Println("the stand-in listens")
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			if r.URL.RawQuery == "exit" {
				os.Exit(7)
			}
			w.Header().Set("Content-Type", "text/html")
			if _, err := os.Stat(filepath.Join(workspace, "broken")); err == nil {
				fmt.Fprint(w, "listens, but nothing works")
				return
			}
			fmt.Fprintf(w, "vscode-workbench-web-configuration %s %d", workspace, os.Getpid())
		case "/ws":
			if c, rw, err := http.NewResponseController(w).Hijack(); err == nil {
				fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				io.Copy(c, rw)
				c.Close()
			}
		case "/wide":
			w.Header().Set("Service-Worker-Allowed", "/")
			w.Header().Add("Set-Cookie", "a=b; Path=/; Domain=example.com")
			w.Header().Add("Set-Cookie", auth.CookiePrefix+"x=stolen")
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusFound)
		case "/exit":
			os.Exit(7)
		default:
			json.NewEncoder(w).Encode(map[string]any{"uri": r.RequestURI, "host": r.Host, "header": r.Header, "args": args})
		}
	}))
}

// bench is the service behind real authentication, with a fake code-server.
type bench struct {
	*workbench.Service
	t      *testing.T
	dir    string
	runner *proc.Runner
	url    string
}

// newBench starts the server. change may change the configuration. env is the environment of programs.
func newBench(t *testing.T, change func(*workbench.Config), env ...string) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	for _, name := range []string{"home", "work", "bin"} {
		must(t, os.Mkdir(filepath.Join(b.dir, name), 0o700))
	}
	b.install(filepath.Join(b.dir, "components", "code-server"))
	path := filepath.Join(b.dir, "bin") + ":/usr/bin:/bin"
	b.runner = proc.New(proc.Config{Env: append(env, "PATH="+path, "HOME="+filepath.Join(b.dir, "home")),
		Guard: []string{"/proc/self/exe", "guard"}})
	pages := fstest.MapFS{"workbench/index.html": {Data: []byte(`<title>{{title}}</title><meta name="origin" ` +
		`content="{{origin}}"><meta name="note" content="{{note}}"><script src="{{up}}workbench/workbench.js">`)}}
	cfg := workbench.Config{
		Runner: b.runner, Home: filepath.Join(b.dir, "home"), Workspace: filepath.Join(b.dir, "work"), State: filepath.Join(b.dir, "state"),
		Components: []string{filepath.Join(b.dir, "components")}, Pages: pages,
	}
	if change != nil {
		change(&cfg)
	}
	b.Service = workbench.New(cfg)
	guard := auth.New(auth.Config{Open: true})
	server := httptest.NewServer(rest.New(rest.Config{Table: op.NewTable(b.Ops()), Guard: guard.Wrap,
		Base: func(r *http.Request) *url.URL { return auth.Base(r, nil) }}))
	b.url = server.URL
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		must(t, b.Close())
		must(t, b.Close())
		server.Close()
		must(t, b.runner.Close())
	})
	return b
}

// install installs the fake into the folder of code-server.
func (b *bench) install(dir string) {
	b.t.Helper()
	entry := filepath.Join(dir, "node_modules", "code-server", "out", "node", "entry.js")
	must(b.t, os.MkdirAll(filepath.Dir(entry), 0o700))
	must(b.t, os.WriteFile(entry, nil, 0o600))
	testenv.CopySelf(b.t, filepath.Join(dir, "node"))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get sends a request without following redirects. header contains names and values.
func (b *bench) get(path string, header ...string) (*http.Response, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, b.url, nil)
	must(b.t, err)
	r.URL.Opaque = path // unchanged
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	must(b.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(b.t, err)
	return res, string(body)
}

// visit opens a page as a browser does.
func (b *bench) visit(path string, header ...string) string {
	b.t.Helper()
	res, body := b.get(path, append([]string{"Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, header...)...)
	if res.StatusCode != http.StatusOK {
		b.t.Errorf("visit %s: got %d %s", path, res.StatusCode, body)
	}
	return body
}

func (b *bench) state() string {
	list, err := b.List(b.t.Context(), op.None{})
	if err != nil || len(list) == 0 {
		return "none" // it is disabled
	}
	return strings.TrimSpace(list[0].State + " " + list[0].Why)
}

func (b *bench) awaitState(want string) {
	b.t.Helper()
	testenv.Poll(b.t, "state "+want, func() bool { return strings.HasPrefix(b.state(), want) })
}

// open opens a WebSocket.
func (b *bench) open(path string) net.Conn {
	b.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	must(b.t, err)
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: %s\r\n\r\n",
		path, strings.TrimPrefix(b.url, "http://"), b.url)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(b.t, err)
	if res.StatusCode != http.StatusSwitchingProtocols {
		b.t.Fatalf("WebSocket: got %d", res.StatusCode)
	}
	return c
}
