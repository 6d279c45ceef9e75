package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// makePending returns a pending sandbox.
func makePending(t *testing.T, more ...string) (p *pending, home string) {
	t.Helper()
	home = t.TempDir()
	src := config.Source{Environ: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "AIO_INIT=true"}, more...), Prefix: "AIO_",
		Flags: map[string][]string{"listen": {"unix:" + filepath.Join(home, "socket")}}}
	var cfg config.Aio
	if _, err := config.Load(&cfg, src); err != nil {
		t.Fatal(err)
	}
	b := blueprint{cfg: cfg, src: src}
	p, err := newPending(b, "0.0.0", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	// Without the guard, which would be this test binary.
	p.runner = proc.New(proc.Config{})
	return p, home
}

// startPending serves a pending sandbox like serve.
func startPending(t *testing.T, more ...string) (call func(path, body string) (int, string), home string) {
	t.Helper()
	p, home := makePending(t, more...)
	ctx, cancel := context.WithCancel(context.Background())
	var begun sync.WaitGroup
	begun.Go(func() { p.Begin(ctx) })
	t.Cleanup(func() {
		cancel()
		begun.Wait()
		p.Shutdown(context.Background())
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	h, _ := p.Handlers()
	return func(path, body string) (int, string) {
		method := http.MethodPost
		if body == "" {
			method = http.MethodGet
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}, home
}

// TestPendingIsInitialized: a pending sandbox does nothing. After init it behaves as if it had
// started with the settings: environment, hooks, sessions.
func TestPendingIsInitialized(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	call, home := startPending(t, "OLD=1", "RUN_HOOK_INIT=env > ~/hook")
	for path, want := range map[string]int{"/readyz": 200, "/healthz": 200, "/v1/bash/sessions": 503, "/mcp": 503,
		"/terminal": 503, "/": 503} {
		if got, reply := call(path, ""); got != want {
			t.Errorf("%s: got %d %s, want %d", path, got, reply, want)
		}
	}
	if status, _ := call("/v1/bash/exec", `{"command":"touch ~/ran"}`); status != 503 {
		t.Errorf("exec before init: got %d, want 503", status)
	}
	// Settings that a running server cannot change, and invalid ones.
	for _, body := range []string{`{"env":{"AIO_STATE":"/x"}}`, `{"env":{"XDG_STATE_HOME":"/x"}}`,
		`{"env":{"AIO_LISTEN":"127.0.0.1:1","AIO_OUTLET":"127.0.0.1:9"}}`, `{"env":{"AIO_EGRESS":"unix:/x"}}`,
		`{"env":{"AIO_NO_SUCH":"s3cret"}}`, `{"env":{"DISPLAY_WIDTH":"wide"}}`} {
		if status, reply := call("/v1/sandbox/init", body); status < 400 || status >= 500 || status == 409 || strings.Contains(reply, "s3cret") {
			t.Errorf("%s: got %d %s, want a 4xx other than 409, without the value", body, status, reply)
		}
	}
	status, reply := call("/v1/sandbox/init",
		`{"env":{"NEW":"2","WORKSPACE":"~/w","TZ":"Asia/Tokyo","AIO_INIT":"true"},"unset":["OLD"],"workdir":"~/w",`+
			`"files":[{"path":"~/f","content":"aGk="}]}`)
	if status != 200 || !strings.Contains(reply, `"ready":false`) {
		t.Fatalf("init: got %d %s, want 200 and not ready", status, reply)
	}
	testenv.Poll(t, "the hook has run", func() bool { status, _ := call("/readyz", ""); return status == 200 })
	hook, err := os.ReadFile(filepath.Join(home, "hook"))
	if err != nil || !strings.Contains(string(hook), "NEW=2") || strings.Contains(string(hook), "OLD=") ||
		strings.Contains(string(hook), "AIO_INIT") {
		t.Errorf("hook: got error %v and environment %s, want NEW=2, neither OLD nor AIO_INIT", err, hook)
	}
	status, reply = call("/v1/bash/exec", `{"command":"echo $NEW$OLD $(pwd) $(date +%Z) $(cat ~/f) ${AIO_INIT-gone}"}`)
	var out struct{ Data struct{ Stdout string } }
	if err := json.Unmarshal([]byte(reply), &out); status != 200 || err != nil || out.Data.Stdout != "2 "+home+"/w JST hi gone\n" {
		t.Errorf("exec: got %d %s, want the new environment and directory", status, reply)
	}
	if status, _ := call("/v1/sandbox/init", `{}`); status != 409 {
		t.Errorf("second init: got %d, want 409", status)
	}
	if _, err := os.Stat(filepath.Join(home, "ran")); err == nil {
		t.Error("~/ran exists: a command ran before init")
	}
}

// TestPendingReleasesLoopback: the settings can close the loopback address, so that programs can use its port.
func TestPendingReleasesLoopback(t *testing.T) {
	t.Parallel()
	const address = "127.41.32.23:8080"
	p, home := makePending(t, "AIO_LOOPBACK="+address)
	l, err := host.Listen("unix:"+filepath.Join(home, "outside"), "AIO_LISTEN")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- host.Serve(ctx, l, p, slog.New(slog.DiscardHandler)) }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(home, "outside"))
	}}
	if status := sendSettings(t, tr, `{"env":{"AIO_LOOPBACK":"127.0.0.1:9"}}`); status < 400 || status > 499 {
		t.Errorf("another address: got %d, want a 4xx", status)
	}
	if c, err := net.Listen("tcp", address); err == nil {
		c.Close()
		t.Error("the loopback address is free before init")
	}
	if status := sendSettings(t, tr, `{"env":{"AIO_LOOPBACK":""}}`); status != http.StatusOK {
		t.Errorf("init: got %d, want 200", status)
	}
	c, err := net.Listen("tcp", address)
	if err != nil {
		t.Errorf("after init: %v, want a free port", err)
	} else {
		c.Close()
	}
	tr.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// sendSettings sends the settings to a pending sandbox.
func sendSettings(t *testing.T, tr http.RoundTripper, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/sandbox/init", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// TestPendingAuthenticates: init requires authentication, like all operations.
func TestPendingAuthenticates(t *testing.T) {
	t.Parallel()
	call, _ := startPending(t, "AIO_API_KEY=k")
	for path, want := range map[string]int{"/v1/sandbox/init": 401, "/v1/bash/exec": 401} {
		if got, reply := call(path, "{}"); got != want {
			t.Errorf("%s: got %d %s, want %d", path, got, reply, want)
		}
	}
}

// TestInitOfARunningSandbox: a sandbox that is not pending rejects init.
func TestInitOfARunningSandbox(t *testing.T) {
	t.Parallel()
	a, err := NewAio(config.Aio{Listen: "unix:/nowhere"}, nil, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	h, _ := a.Handlers()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/sandbox/init", strings.NewReader(`{}`)))
	if w.Code != 409 || !strings.Contains(w.Body.String(), "init") {
		t.Errorf("got %d %s, want 409", w.Code, w.Body)
	}
}
