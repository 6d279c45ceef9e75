package desktop

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

// screen adapts the display to the service.
type screen struct{ *display.Service }

func (s screen) Resize(ctx context.Context, width, height int) error {
	_, err := s.Configure(ctx, display.ConfigureIn{Resolution: &display.Resolution{Width: width, Height: height}})
	return err
}

// desk is a server with a display, and the environment of commands.
type desk struct {
	t    *testing.T
	home string
	url  string
	env  []string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	testenv.Need(t, "Xtigervnc", "openbox")
	d := &desk{t: t, home: t.TempDir()}
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.home, "LANG=C.UTF-8"},
		Guard: []string{"/proc/self/exe", "guard"}})
	shown := display.New(display.Config{Runner: runner, State: d.home, Home: d.home, Workspace: d.home})
	service := New(Config{Runner: runner, Display: screen{shown}})
	m := http.NewServeMux()
	for _, o := range service.Ops() {
		m.Handle(o.Route, o.Handler)
	}
	server := httptest.NewServer(m)
	t.Cleanup(func() {
		service.Close()
		service.Close()
		server.Close()
		shown.Close()
		runner.Close()
	})
	d.url = server.URL
	d.env = []string{"HOME=" + d.home, "AIO_API_URL=" + d.url, "DISPLAY=:0"}
	return d
}

// run runs a command until it ends.
func (d *desk) run(args ...string) (string, error) {
	var out bytes.Buffer
	err := commands[args[0]](d.t.Context(),
		&command{Streams: Streams{Environ: d.env, Out: &out, Pages: os.DirFS("../../../../web")}, name: args[0], args: args[1:]})
	return out.String(), err
}

// must runs a command that must succeed.
func (d *desk) must(args ...string) string {
	d.t.Helper()
	out, err := d.run(args...)
	if err != nil {
		d.t.Fatalf("%q: %v", args, err)
	}
	return out
}

// start runs a command until the test ends or end is called.
func (d *desk) start(out io.Writer, args ...string) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- commands[args[0]](ctx,
			&command{Streams: Streams{Environ: d.env, Out: out, Pages: os.DirFS("../../../../web")}, name: args[0], args: args[1:]})
	}()
	end = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	d.t.Cleanup(func() { end() })
	return end
}

// freeDisplay returns an unused display number.
func freeDisplay(t *testing.T) int {
	t.Helper()
	for n := 4000 + os.Getpid()%1000*5; n < 9999; n++ {
		if _, err := os.Lstat(socketOf(n)); os.IsNotExist(err) {
			return n
		}
	}
	t.Fatal("no free display")
	return 0
}

// TestCommands: the commands of desktop clients use the sandbox's display under the requested number.
func TestCommands(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "xev")
	d := newDesk(t)
	name := ":" + strconv.Itoa(freeDisplay(t))
	d.env[2] = "DISPLAY=" + name
	if _, err := d.run("xdpyinfo", "-display", name); err == nil {
		t.Errorf("xdpyinfo of a display that does not run: got no error, want one")
	}
	end := d.start(io.Discard, "Xvfb", name, "-ac", "-screen", "0", "640x480x24", "-nolisten", "tcp")
	testenv.Poll(t, "the display answers", func() bool {
		out, err := d.run("xdpyinfo", "-display", name)
		return err == nil && strings.Contains(out, "640x480 pixels")
	})
	if out := d.must("xrandr"); !strings.Contains(out, " 640x480+0+0") {
		t.Errorf("xrandr: got %q, want the size 640x480", out)
	}
	endSession := d.start(io.Discard, "xfce4-session")
	testenv.Poll(t, "the session has begun", func() bool {
		b, err := os.ReadFile("/proc/self/comm")
		return err == nil && string(b) == "xfce4-session\n"
	})
	d.must("xdotool", "mousemove", "--sync", "33", "44", "click", "--repeat", "2", "1")
	if out := d.must("xdotool", "getmouselocation"); !strings.HasPrefix(out, "x:33 y:44 ") {
		t.Errorf("getmouselocation: got %q, want x:33 y:44", out)
	}
	path := filepath.Join(d.home, "shot.png")
	d.must("scrot", "--pointer", path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err := png.DecodeConfig(f); err != nil || c.Width != 640 || c.Height != 480 {
		t.Errorf("scrot: got %+v %v, want a PNG of 640x480", c, err)
	}
	d.useWindow()
	if err := endSession(); err != nil {
		t.Errorf("session: got %v, want a clean end", err)
	}
	if err := end(); err != nil {
		t.Errorf("Xvfb: got %v, want a clean end", err)
	}
	if _, err := d.run("xdpyinfo"); err == nil {
		t.Errorf("xdpyinfo after the end of Xvfb: got no error, want one")
	}
}

// useWindow finds a program's window, types into it and presses a button.
func (d *desk) useWindow() {
	t := d.t
	t.Helper()
	var events safeBuffer
	cmd := exec.Command("xev", "-event", "keyboard", "-event", "button")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "LC_ALL=C.UTF-8"}, d.env...)
	cmd.Stdout = &events
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	window := ""
	testenv.Poll(t, "the window is shown", func() bool {
		out, err := d.run("xdotool", "search", "--onlyvisible", "--name", "event tester")
		window, _, _ = strings.Cut(out, "\n")
		return err == nil
	})
	if out := d.must("xdotool", "getwindowname", window); out != "Event Tester\n" {
		t.Errorf("getwindowname: got %q, want Event Tester", out)
	}
	testenv.Poll(t, "the window has the keyboard", func() bool { return d.must("xdotool", "getwindowfocus") == window+"\n" })
	d.must("xdotool", "type", "--delay", "1", "--", "Grüße")
	d.must("xdotool", "key", "Control_L+Home", "Return")
	testenv.Poll(t, "all keys arrive", func() bool {
		text := events.String()
		for _, want := range []string{`"G"`, `"ü"`, `"ß"`, "Control_L", "Home", "Return"} {
			if !strings.Contains(text, want) {
				return false
			}
		}
		return true
	})
	if _, err := d.run("xdotool", "search", "--class", "no such class"); err == nil {
		t.Errorf("search for nothing: got no error, want one")
	}
	if _, err := d.run("xdotool", "getwindowname", "1"); err == nil {
		t.Errorf("name of no window: got no error, want one")
	}
	d.must("xdotool", "mousemove", "0", "0", "mousedown", "1")
	d.must("xdotool", "mouseup", "1")
}

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestStream: only a viewer with the password sees the display through the page's WebSocket.
func TestStream(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	h, _, release, err := (&command{Streams: Streams{Environ: d.env}}).hold(t.Context(), "?width=640&height=480")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := os.Mkdir(filepath.Join(d.home, ".vnc"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.run("x11vnc", "-usepw", "-rfbport", "0"); err == nil || !strings.Contains(err.Error(), "-storepasswd") {
		t.Errorf("without a password: got %v, want how to store one", err)
	}
	passwords := filepath.Join(d.home, ".vnc", "passwd")
	d.must("x11vnc", "-storepasswd", "password", passwords)
	// All VNC programs write this password in the same way.
	if b, err := os.ReadFile(passwords); err != nil || hex.EncodeToString(b) != "dbd83cfd727a1458" {
		t.Errorf("stored password: got %x %v, want dbd83cfd727a1458", b, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	password, err := loadPassword(passwords)
	if err != nil || string(password) != "password" {
		t.Fatalf("password: got %q %v, want password", password, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveViewers(ctx, ln, h.RFB, password) }()
	pages := httptest.NewServer(viewer(ln.Addr().String(), os.DirFS("../../../../web")))
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want a clean end", err)
		}
		pages.Close()
	})
	for path, want := range map[string]string{"/vnc.html?autoconnect=true": "core/rfb.js",
		"/core/rfb.js": "export default", "/": "core/rfb.js"} {
		res, err := http.Get(pages.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: got %d, want 200 and %q", path, res.StatusCode, want)
		}
	}
	size, err := watch(t, pages.URL, "password")
	if err != nil || size != "640x480" {
		t.Errorf("viewer: got %q %v, want 640x480", size, err)
	}
	for _, wrong := range []string{"", "Password", "passwor"} {
		if _, err := watch(t, pages.URL, wrong); err == nil || err.Error() != "Authentication failed" {
			t.Errorf("password %q: got %v, want a refusal", wrong, err)
		}
	}
	_, res, err := websocket.Dial(t.Context(), pages.URL+"/websockify",
		&websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"http://evil.example"}}})
	if err == nil || res == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("page of another origin: got %v, want 403", err)
	}
	cancel()
	if _, err := watch(t, pages.URL, "password"); err == nil {
		t.Errorf("after the end: got a viewer, want none")
	}
}

// watch authenticates as a viewer and returns the size of the display.
func watch(t *testing.T, url, password string) (string, error) {
	t.Helper()
	socket, _, err := websocket.Dial(t.Context(), url+"/websockify", &websocket.DialOptions{Subprotocols: []string{"binary"}})
	if err != nil {
		return "", err
	}
	defer socket.CloseNow()
	c := websocket.NetConn(t.Context(), socket, websocket.MessageBinary)
	read := func(n int) []byte {
		b := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(c, b)
		}
		return b
	}
	write := func(b []byte) {
		if err == nil {
			_, err = c.Write(b)
		}
	}
	read(len(version))
	write([]byte(version))
	if kinds := read(2); err == nil && !bytes.Equal(kinds, []byte{1, withPassword}) {
		return "", fmt.Errorf("got the security types %v, want a password", kinds)
	}
	write([]byte{withPassword})
	write(encrypt(reverseBits([]byte(password)), read(16)))
	if result := read(4); err == nil && result[3] != 0 {
		n := read(4)
		return "", errors.New(string(read(int(n[3]))))
	}
	write([]byte{1})
	size := read(4)
	return fmt.Sprintf("%dx%d", int(size[0])<<8|int(size[1]), int(size[2])<<8|int(size[3])), err
}

// TestRefusals: errors of unsupported options name the package that supports them.
func TestRefusals(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, c := range []struct{ args, want string }{
		{"Xvfb :0 -screen 0 huge", "1024x768x24"},
		{"Xvfb :0 -screen 0 99999x99999x24", "out of range"},
		{"Xvfb ::1", "such as :0"},
		{"xdpyinfo -display ../../etc", "such as :0"},
		{"xdpyinfo -display :9998", "unable to open display"},
		{"xrandr --output a", "x11-xserver-utils"},
		{"scrot", "missing file name"},
		{"scrot --select a", "package scrot"},
		{"xdotool", "missing command"},
		{"netstat -p", "net-tools"},
		{"x11vnc -id 7", "package x11vnc"},
		{"x11vnc -storepasswd a", "usage"},
		{"x11vnc -rfbport x", "5900"},
		{"x11vnc -display :9997 -rfbport 0", "not the sandbox's display"},
	} {
		if _, err := d.run(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.args, err, c.want)
		}
	}
	d.env[1] = "AIO_API_URL=unix:/nonexistent"
	if _, err := d.run("Xvfb", ":0"); err == nil || !strings.Contains(err.Error(), "does not respond") {
		t.Errorf("without a server: got %v, want an error", err)
	}
	if err := Run([]string{"rm"}, Streams{}); err == nil {
		t.Errorf("unknown command: got no error, want one")
	}
}

// TestPorts: the table of listening ports has the format of netstat.
func TestPorts(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var out bytes.Buffer
	if err := listPorts(t.Context(), &command{Streams: Streams{Out: &out}, args: []string{"-tuln"}}); err != nil ||
		!strings.Contains(out.String(), " "+ln.Addr().String()+" ") {
		t.Errorf("got %v %s, want %s", err, &out, ln.Addr())
	}
	out.Reset()
	const table = "  sl  local_address rem_address   st\n   0: 0100007F:17C0 00000000:0000 0A 0\n   1: " +
		"0100007F:0050 0100007F:C000 01 0\n   2: garbage 0 0A\n"
	if err := writePorts(&out, "tcp", strings.NewReader(table)); err != nil ||
		strings.Join(strings.Fields(out.String()), " ") != "tcp 0 0 127.0.0.1:6080 0.0.0.0:* LISTEN" {
		t.Errorf("got %v %q, want only 127.0.0.1:6080", err, out.String())
	}
	if got, ok := parseAddress("00000000000000000000000001000000:0016"); !ok || got != "::1:22" {
		t.Errorf("IPv6: got %q, want ::1:22", got)
	}
}

// TestPrepareOnlyInSandboxes: no command is installed outside of a sandbox, or without a DISPLAY.
func TestPrepareOnlyInSandboxes(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Contained: false, Runner: proc.New(proc.Config{Env: []string{"DISPLAY=:0"}})},
		{Contained: true, Runner: proc.New(proc.Config{Env: []string{"PATH=/usr/bin"}})},
	} {
		s := New(c)
		s.Prepare()
		s.once.Do(func() { s = nil })
		if s != nil {
			t.Errorf("contained %v: got commands installed, want none", c.Contained)
		}
		c.Runner.Close()
	}
}
