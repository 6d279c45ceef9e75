package display_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

// viewer is a VNC client. Two pipes replace the WebSocket.
type viewer struct {
	in     *io.PipeReader // messages of the display
	out    chan []byte
	ended  chan error
	cancel context.CancelFunc
}

// watch connects a viewer.
func watch(t testing.TB, s *display.Service, in display.ViewIn) *viewer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	v := &viewer{in: r, out: make(chan []byte), ended: make(chan error, 1), cancel: cancel}
	go func() {
		err := s.View(ctx, in, socket{v.out, w})
		w.CloseWithError(io.EOF)
		v.ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		r.Close()
		<-v.ended
	})
	return v
}

// socket is an op.Conn.
type socket struct {
	in  <-chan []byte
	out *io.PipeWriter
}

func (s socket) Read(ctx context.Context) ([]byte, bool, error) {
	select {
	case b := <-s.in:
		return b, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func (s socket) Write(ctx context.Context, b []byte, _ bool) error {
	done := make(chan error, 1)
	go func() { _, err := s.out.Write(b); done <- err }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		s.out.CloseWithError(ctx.Err())
		<-done
		return ctx.Err()
	}
}

func (s socket) Close(int, string) error { return s.out.Close() }

func (v *viewer) read(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(v.in, b); err != nil {
		t.Fatalf("read from the display: %v", err)
	}
	return b
}

func (v *viewer) send(t testing.TB, b ...byte) {
	t.Helper()
	select {
	case v.out <- b:
	case err := <-v.ended:
		v.ended <- err
		t.Fatalf("the display disconnected the viewer: %v", err)
	}
}

// greet completes the handshake and returns the display's size. Unless keep is set, all later messages are dropped.
func (v *viewer) greet(t testing.TB, keep bool) (width, height int) {
	t.Helper()
	if hello := string(v.read(t, 12)); hello != "RFB 003.008\n" {
		t.Fatalf("the display sent %q, want hello %q", hello, "RFB 003.008\n")
	}
	v.send(t, []byte("RFB 003.008\n")...)
	n := v.read(t, 1)[0]
	v.read(t, int(n))
	v.send(t, 1)
	if result := binary.BigEndian.Uint32(v.read(t, 4)); result != 0 {
		t.Fatalf("the display refuses: %d, want result 0", result)
	}
	v.send(t, 1)
	init := v.read(t, 24)
	v.read(t, int(binary.BigEndian.Uint32(init[20:])))
	if !keep {
		go func() {
			if _, err := io.Copy(io.Discard, v.in); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Log(err)
			}
		}()
	}
	return int(binary.BigEndian.Uint16(init)), int(binary.BigEndian.Uint16(init[2:]))
}

// picture requests the whole display in raw encoding, and returns its first size in pixels and the bytes.
func (v *viewer) picture(t testing.TB, width, height int) []byte {
	t.Helper()
	v.send(t, 2, 0, 0, 1, 0, 0, 0, 0) // raw encoding only
	request := []byte{3, 0, 0, 0, 0, 0}
	request = binary.BigEndian.AppendUint16(request, uint16(width))
	request = binary.BigEndian.AppendUint16(request, uint16(height))
	v.send(t, request...)
	pixels := make([]byte, 4*width*height)
	for seen := 0; seen < width*height; {
		switch kind := v.read(t, 1)[0]; kind {
		case 0:
			for range binary.BigEndian.Uint16(v.read(t, 3)[1:]) {
				r := v.read(t, 12)
				x, y := int(binary.BigEndian.Uint16(r)), int(binary.BigEndian.Uint16(r[2:]))
				w, h := int(binary.BigEndian.Uint16(r[4:])), int(binary.BigEndian.Uint16(r[6:]))
				for row := range h {
					copy(pixels[4*((y+row)*width+x):], v.read(t, 4*w))
				}
				seen += w * h
			}
		case 3:
			v.read(t, int(binary.BigEndian.Uint32(v.read(t, 7)[3:])))
		default:
			t.Fatalf("got message type %d, want 0 or 3", kind)
		}
	}
	return pixels
}

// click presses the left button somewhere.
func (v *viewer) click(t testing.TB, x, y int) {
	for _, mask := range []byte{0, 1, 0} {
		v.send(t, 5, mask, byte(x>>8), byte(x), byte(y>>8), byte(y))
	}
}

func TestViewersSeeTheDisplay(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *display.Config) { c.Width, c.Height = 320, 200 })
	var viewers [2]*viewer
	for i := range viewers {
		viewers[i] = watch(t, d.Service, display.ViewIn{})
		if w, h := viewers[i].greet(t, true); w != 320 || h != 200 {
			t.Errorf("the viewer sees %dx%d, want w 320, h 200", w, h)
		}
	}
	// The window manager may still paint, which reaches one viewer before the other.
	var pixels []byte
	testenv.Poll(t, "two viewers have the same picture", func() bool {
		pixels = viewers[0].picture(t, 320, 200)
		return bytes.Equal(pixels, viewers[1].picture(t, 320, 200))
	})
	// The pointer is not part of a viewer's picture, so compare a corner without it.
	img := shoot(t, d.Service)
	for y := range 50 {
		for x := range 50 {
			r, g, b, _ := img.At(x, y).RGBA()
			p := pixels[4*(y*320+x):]
			if byte(r>>8) != p[2] || byte(g>>8) != p[1] || byte(b>>8) != p[0] {
				t.Fatalf("at %d,%d the viewer sees %v, a screenshot %v", x, y, p[:3], img.At(x, y))
			}
		}
	}
}

func TestViewersMoveThePointerUnlessViewOnly(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	_, err := act(testContext(t), d.Service, `{"action_type":"MOVE_TO","x":11,"y":12}`)
	must(t, err)
	where := func() image.Point { return pointer(t, d) }
	eyes := watch(t, d.Service, display.ViewIn{ViewOnly: true})
	eyes.greet(t, false)
	hands := watch(t, d.Service, display.ViewIn{})
	hands.greet(t, false)
	eyes.click(t, 500, 400)
	eyes.send(t, 6, 0, 0, 0, 0, 0, 0, 3, 'a', 'b', 'c') // clipboard
	eyes.send(t, 251, 0, 1, 0, 1, 0, 1, 0)              // resize
	eyes.send(t, make([]byte, 16)...)
	hands.click(t, 100, 200)
	testenv.Poll(t, "the pointer moves", func() bool { return where() == image.Pt(100, 200) })
	if c, err := d.GetClipboard(testContext(t), op.None{}); err != nil || c.Text != "" {
		t.Errorf("a view-only viewer has set the clipboard to %q, %v, want Text \"\"", c.Text, err)
	}
	hands.send(t, 6, 0, 0, 0, 0, 0, 0, 3, 'a', 'b', 'c')
	testenv.Poll(t, "the viewer's clipboard arrives", func() bool {
		c, err := d.GetClipboard(testContext(t), op.None{})
		return err == nil && c.Text == "abc"
	})
	if w, h, err := d.Size(testContext(t)); err != nil || w != 1024 || h != 768 {
		t.Errorf("the display is %dx%d, %v, want w 1024, h 768", w, h, err)
	}
	eyes.send(t, 77)
	if err := <-eyes.ended; err == nil || !strings.Contains(err.Error(), "view-only viewer") {
		t.Errorf("invalid message of a view-only viewer: %v, want an error containing \"view-only viewer\"", err)
	}
	eyes.ended <- nil
}

// pointer returns the position of the pointer, from its picture.
func pointer(t testing.TB, d *desk) image.Point {
	t.Helper()
	conn, release := dial(t, d)
	defer release()
	at, err := conn.Pointer(testContext(t))
	must(t, err)
	return at
}

// dial connects to the display as a program does.
func dial(t testing.TB, d *desk) (conn *x11.Conn, release func()) {
	t.Helper()
	env, _, hold, err := d.Hold(testContext(t))
	must(t, err)
	number := strings.TrimPrefix(env[0], "DISPLAY=:")
	cookie, err := os.ReadFile(strings.TrimPrefix(env[1], "XAUTHORITY="))
	must(t, err)
	conn, err = x11.Dial(testContext(t), x11.Config{Socket: "/tmp/.X11-unix/X" + number, Cookie: cookie[len(cookie)-x11.CookieSize:]})
	must(t, err)
	return conn, func() { conn.Close(); hold() }
}

// TestViewerThatStartsNothing: it is refused until something else has started the display, and keeps no browser.
func TestViewerThatStartsNothing(t *testing.T) {
	t.Parallel()
	s := newDesk(t, func(c *display.Config) {
		c.Browser = func(context.Context) (<-chan struct{}, func(), error) {
			t.Error("the viewer has started the browser")
			return nil, nil, errors.New("not now")
		}
	}).Service
	var code op.Code
	if e, ok := op.AsError(s.View(t.Context(), display.ViewIn{NoStart: true}, socket{})); ok {
		code = e.Code
	}
	if state, _ := s.State(); code != op.Conflict || state != "idle" {
		t.Fatalf(`got code %q and state %q, want %q and "idle"`, code, state, op.Conflict)
	}
	if _, err := s.SetClipboard(t.Context(), display.SetClipboardIn{Text: "started"}); err != nil { // starts the display
		t.Fatal(err)
	}
	watch(t, s, display.ViewIn{NoStart: true}).greet(t, false)
}

func TestViewerEndsWithTheDisplay(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	v := watch(t, d.Service, display.ViewIn{})
	v.greet(t, false)
	must(t, syscall.Kill(d.pidOf(t, "Xtigervnc"), syscall.SIGKILL))
	if err := <-v.ended; err != nil {
		t.Errorf("the viewer ended with %v", err)
	}
	v.ended <- nil
	next := watch(t, d.Service, display.ViewIn{})
	next.greet(t, false)
}

// TestStalledViewerDoesNotBlockOthers: data that one viewer does not read is not queued, and other viewers continue.
func TestStalledViewerDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	stalled := watch(t, d.Service, display.ViewIn{})
	stalled.greet(t, true)
	request := []byte{3, 0, 0, 0, 0, 0, 4, 0, 3, 0}
	for range 50 {
		stalled.send(t, request...)
	}
	other := watch(t, d.Service, display.ViewIn{})
	other.greet(t, true)
	other.picture(t, 1024, 768)
	shoot(t, d.Service)
}

func TestPage(t *testing.T) {
	t.Parallel()
	s := display.New(display.Config{Pages: os.DirFS("../../../web")})
	defer s.Close()
	h := rest.New(rest.Config{Table: op.NewTable(s.Ops())})
	for path, want := range map[string]string{
		"/vnc": "302 vnc/index.html", "/vnc?autoconnect=true": "302 vnc/index.html?autoconnect=true", "/vnc/": "200 text/html; charset=utf-8",
		"/vnc/index.html?autoconnect=true": "200 text/html; charset=utf-8", "/vnc/vnc.html": "200 text/html; charset=utf-8",
		"/vnc/vnc.js": "200 text/javascript; charset=utf-8", "/vnc/vnc.css": "200 text/css; charset=utf-8",
		"/vnc/nope.js": "404 application/json", "/vnc/..%2f..%2fgo.mod": "404 application/json",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		got := fmt.Sprint(w.Code, " ", w.Header().Get("Content-Type"), w.Header().Get("Location"))
		if got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
		if w.Code == 200 && !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s: policy %q, want default-src 'self'", path, w.Header().Get("Content-Security-Policy"))
		}
	}
}
