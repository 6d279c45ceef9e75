package display_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// shoot takes a screenshot and decodes it.
func shoot(t testing.TB, s *display.Service) image.Image {
	t.Helper()
	b, err := s.Screenshot(testContext(t), display.ScreenshotIn{Format: "png"})
	must(t, err)
	img, err := png.Decode(b.Body)
	must(t, err)
	return img
}

func state(s *display.Service) string {
	state, _ := s.State()
	return state
}

func TestStartsOnFirstUseAndStopsWhenIdle(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *display.Config) { c.Idle = 10 * time.Millisecond })
	if got := state(d.Service); got != "idle" {
		t.Errorf("before the first use: %s, want \"idle\"", got)
	}
	if img := shoot(t, d.Service); img.Bounds().Size() != image.Pt(1024, 768) {
		t.Errorf("the display is %v, want 1024x768", img.Bounds())
	}
	testenv.Poll(t, "the display stops", func() bool { return state(d.Service) == "idle" && len(d.runner.Living()) == 0 })
	env, _, release, err := d.Hold(testContext(t))
	must(t, err)
	number := strings.TrimPrefix(env[0], "DISPLAY=:")
	if got := state(d.Service); got != "ready" {
		t.Errorf("while it is held: %s, want \"ready\"", got)
	}
	release()
	testenv.Poll(t, "the display stops again", func() bool { return state(d.Service) == "idle" && len(d.runner.Living()) == 0 })
	for _, left := range []string{filepath.Join(d.dir, "display", "rfb"), "/tmp/.X11-unix/X" + number} {
		// Another test's display may have the same number, but not the same folder.
		if _, err := os.Lstat(left); err == nil && strings.HasPrefix(left, d.dir) {
			t.Errorf("%s was not removed", left)
		}
	}
}

func TestSizeIsKeptByTheNextDisplay(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := testContext(t)
	for _, want := range []string{`{"resolution":{"width":801,"height":603}}`, `{"resolution":"801X603"}`,
		`{"resolution":{"width":801.0,"height":"603"}}`, `{}`, `{"resolution":null}`} {
		o, _ := op.NewTable(d.Ops()).Get("browser_config")
		in, err := o.Bind(op.Input{JSON: []byte(want)})
		must(t, err)
		out, err := o.Call(ctx, in)
		must(t, err)
		if got := out.(display.Configured).Resolution; got != (display.Resolution{Width: 801, Height: 603}) {
			t.Errorf("%s: got size %+v", want, got)
		}
	}
	if got := shoot(t, d.Service).Bounds().Size(); got != image.Pt(801, 603) {
		t.Errorf("the display is %v, want %v", got, image.Pt(801, 603))
	}
	must(t, syscall.Kill(d.pidOf(t, "Xtigervnc"), syscall.SIGKILL))
	if got := shoot(t, d.Service).Bounds().Size(); got != image.Pt(801, 603) {
		t.Errorf("the next display is %v, want %v", got, image.Pt(801, 603))
	}
	for _, bad := range []display.Resolution{{Width: 10, Height: 600}, {Width: 100000, Height: 600}} {
		if _, err := d.Configure(ctx, display.ConfigureIn{Resolution: &bad}); err == nil || !strings.Contains(err.Error(), "use a size from") {
			t.Errorf("%+v: %v, want an error containing \"use a size from\"", bad, err)
		}
	}
	o, _ := op.NewTable(d.Ops()).Get("browser_config")
	for _, bad := range []string{`{"resolution":"big"}`, `{"resolution":{"width":1}}`,
		`{"resolution":{"width":0,"height":5}}`, `{"resolution":7}`} {
		if _, err := o.Bind(op.Input{JSON: []byte(bad)}); err == nil {
			t.Errorf("%s was accepted, want an error", bad)
		}
	}
}

func TestKilledProcessesAreReplaced(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := testContext(t)
	shoot(t, d.Service)
	// The window manager is restarted without other effects.
	wm := d.pidOf(t, "openbox")
	must(t, syscall.Kill(wm, syscall.SIGKILL))
	testenv.Poll(t, "a new window manager runs", func() bool { return d.pidOf(t, "openbox") != wm })
	call := &op.Call{}
	if _, err := d.SetClipboard(op.WithCall(ctx, call), display.SetClipboardIn{Text: "x"}); err != nil || call.Hint != "" {
		t.Errorf("after the window manager was killed: %v, hint %q, want Hint \"\"", err, call.Hint)
	}
	// The next call replaces the display and has a hint; later calls have none.
	must(t, syscall.Kill(d.pidOf(t, "Xtigervnc"), syscall.SIGKILL))
	for _, want := range []string{"ended by SIGKILL", ""} {
		call := &op.Call{}
		if _, err := d.GetClipboard(op.WithCall(ctx, call), op.None{}); err != nil ||
			!strings.Contains(call.Hint, want) || want == "" && call.Hint != "" {
			t.Errorf("after the display was killed: %v, hint %q, want %q", err, call.Hint, want)
		}
	}
}

func TestHungDisplayIsReplaced(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *display.Config) { c.Hang = 3 * time.Second })
	shoot(t, d.Service)
	must(t, syscall.Kill(d.pidOf(t, "Xtigervnc"), syscall.SIGSTOP))
	shoot(t, d.Service)
}

// TestCallsDuringCrashFailClearly: calls in progress when all processes are killed end with an error that says what to do, and
// later calls work.
func TestCallsDuringCrashFailClearly(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := testContext(t)
	shoot(t, d.Service)
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 4 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				switch (i + n) % 3 {
				case 0:
					_, err = d.Screenshot(ctx, display.ScreenshotIn{Format: "jpeg"})
				case 1:
					_, err = act(ctx, d.Service, fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, n%900, n%700))
				case 2:
					_, err = act(ctx, d.Service, `{"action_type":"TYPING","text":"äöü","use_clipboard":false}`)
				}
				if e, ok := op.AsError(err); err != nil && (!ok || e.Code != op.Unavailable) {
					t.Errorf("a call ended with %v, want success or code %q", err, op.Unavailable)
				}
			}
		})
	}
	for range 3 {
		must(t, syscall.Kill(d.pidOf(t, "openbox"), syscall.SIGKILL))
		must(t, syscall.Kill(d.pidOf(t, "Xtigervnc"), syscall.SIGKILL))
		shoot(t, d.Service)
	}
	close(stop)
	load.Wait()
	shoot(t, d.Service)
}

func TestTwoServersDoNotShareAState(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	shoot(t, d.Service)
	other := display.New(display.Config{Runner: d.runner, State: d.dir, Home: d.dir, Workspace: d.dir})
	defer other.Close()
	ctx := testContext(t)
	if _, err := other.Screenshot(ctx, display.ScreenshotIn{Format: "png"}); err == nil || !strings.Contains(err.Error(), "another sandbox") {
		t.Errorf("a second display in the same folder: %v, want an error containing \"another sandbox\"", err)
	}
	shoot(t, d.Service)
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Parallel()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + t.TempDir()}})
	defer runner.Close()
	s := display.New(display.Config{Runner: runner, State: t.TempDir()})
	defer s.Close()
	if st, why := s.State(); st != "absent" || !strings.Contains(why, "tigervnc-standalone-server") || !strings.Contains(why, "openbox") {
		t.Errorf("state %s: %s, want st \"absent\", why containing \"tigervnc-standalone-server\", why containing \"openbox\"", st, why)
	}
	_, err := s.Screenshot(testContext(t), display.ScreenshotIn{Format: "png"})
	if e, ok := op.AsError(err); !ok || e.Code != op.Unavailable || !strings.Contains(e.Msg, "install") {
		t.Errorf(`screenshot: %v, want an error with code unavailable that contains "install"`, err)
	}
}

func TestCanceledCallerDoesNotCancelTheStart(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := d.Screenshot(ctx, display.ScreenshotIn{Format: "png"}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled caller: %v, want context.Canceled", err)
	}
	shoot(t, d.Service)
}

// TestOverHTTP: the format of responses.
func TestOverHTTP(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	server := httptest.NewServer(rest.New(rest.Config{Table: op.NewTable(d.Ops())}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for _, c := range []struct{ query, media, format string }{
		{"", "image/png", "png"}, {"?format=png&quality=5", "image/png", "png"},
		{"?format=jpg", "image/jpeg", "jpeg"}, {"?format=jpeg&quality=0", "image/jpeg", "jpeg"},
		{"?format=jpeg&quality=100", "image/jpeg", "jpeg"},
	} {
		resp, err := http.Get(server.URL + "/v1/browser/screenshot" + c.query)
		must(t, err)
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		img, format, err := image.Decode(bytes.NewReader(b))
		h := resp.Header
		if err != nil || format != c.format || h.Get("Content-Type") != c.media || img.Bounds().Size() != image.Pt(1024, 768) ||
			h.Get("X-Screen-Width") != "1024" || h.Get("X-Image-Height") != "768" {
			t.Errorf("%q: %s, %v, %v, want %s as %s with 1024x768 in its headers", c.query, format, err, h, c.format, c.media)
		}
	}
	for query, status := range map[string]int{"?format=gif": 422, "?quality=101": 422} {
		resp, err := http.Get(server.URL + "/v1/browser/screenshot" + query)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s: status %d, want StatusCode %v", query, resp.StatusCode, status)
		}
	}
	resp, err := http.Post(server.URL+"/v1/browser/actions", "application/json", strings.NewReader(`{"action_type":"MOVE_TO","x":1,"y":2}`))
	must(t, err)
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	resp.Body.Close()
	const want = `{"success":true,"message":"Operation ` +
		`successful","hint":null,"data":{"status":"success","action_performed":"MOVE_TO"},"status":"success","action_performed":"MOVE_TO"}`
	if strings.TrimSpace(string(b)) != want {
		t.Errorf("got %s, want %s", b, want)
	}
}
