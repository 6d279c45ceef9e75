package desktop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// Streams is the environment of a command.
type Streams struct {
	Environ []string
	Out     io.Writer
	Pages   fs.FS // noVNC
}

// command is a run of a command.
type command struct {
	Streams
	name string
	args []string
}

// announce sets the name of the process, by which clients find it.
func (c *command) announce() { _ = os.WriteFile("/proc/self/comm", []byte(c.name), 0o600) }

// commands are the commands by name.
var commands = map[string]func(context.Context, *command) error{
	"Xvfb": runServer, "xfce4-session": runSession, "xfwm4": runSession, "xfdesktop": runSession,
	"xdpyinfo": describeDisplay, "xrandr": describeScreen, "scrot": takeScreenshot, "xdotool": runTool,
	"x11vnc": shareDisplay, "novnc_proxy": servePages, "netstat": listPorts,
}

// Run runs a command until it ends or the process gets a signal.
func Run(args []string, s Streams) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("unknown desktop command")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	if err := commands[args[0]](ctx, &command{Streams: s, name: args[0], args: args[1:]}); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

func isRoot() bool { return os.Geteuid() == 0 }

// env returns a variable, or an empty string.
func (c *command) env(name string) (value string) {
	for _, pair := range c.Environ {
		if v, ok := strings.CutPrefix(pair, name+"="); ok {
			value = v
		}
	}
	return value
}

// option returns the value of an option, or its default.
func (c *command) option(name, fallback string) string {
	for i, arg := range c.args {
		if arg == name && i+1 < len(c.args) {
			return c.args[i+1]
		}
	}
	return fallback
}

var displayName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:unix)?:([0-9]{1,4})(?:\.0)?$`) })

func parseDisplay(name string) (int, error) {
	m := displayName().FindStringSubmatch(name)
	if m == nil {
		return 0, fmt.Errorf("invalid display %.60q; use a local one such as :0", name)
	}
	return strconv.Atoi(m[1])
}

func socketOf(display int) string { return fmt.Sprintf("/tmp/.X11-unix/X%d", display) }

func (c *command) authority() string {
	if path := c.env("XAUTHORITY"); path != "" {
		return path
	}
	return filepath.Join(c.env("HOME"), ".Xauthority")
}

// dialTime is the timeout of a connection to a display.
const dialTime = 20 * time.Second

// dial connects to a display. An empty name means the display of the environment.
func (c *command) dial(ctx context.Context, name string) (*x11.Conn, error) {
	if name == "" {
		name = c.env("DISPLAY")
	}
	number, err := parseDisplay(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := x11.Dial(ctx, x11.Config{Socket: socketOf(number), Cookie: x11.ReadAuthority(c.authority(), number)})
	if err != nil {
		return nil, fmt.Errorf("unable to open display %q: %w", name, err)
	}
	return conn, nil
}

// hold keeps the display of the sandbox's server running until release. done is closed if the display ends.
func (c *command) hold(ctx context.Context, query string) (h held, done <-chan struct{}, release func(), err error) {
	base, transport := c.env("AIO_API_URL"), &http.Transport{}
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+route+query, http.NoBody)
	if err != nil {
		return held{}, nil, nil, fmt.Errorf("AIO_API_URL: %w", err)
	}
	res, err := transport.RoundTrip(req) //nolint:bodyclose // release does
	if err != nil {
		return held{}, nil, nil, fmt.Errorf("the sandbox's server does not respond: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // the status is sufficient without it
		return held{}, nil, nil, fmt.Errorf("start display: %s", strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(res.Body).Decode(&h); err != nil {
		res.Body.Close()
		return held{}, nil, nil, fmt.Errorf("decode response of the sandbox's server: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, res.Body) // it ends with the display
	}()
	return h, ended, func() {
		res.Body.Close()
		<-ended
		transport.CloseIdleConnections()
	}, nil
}

var screenSize = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,5})x([0-9]{1,5})(?:x[0-9]+)?$`) })

// runServer implements Xvfb: it sets the size of the sandbox's display, and links the requested number to it.
func runServer(ctx context.Context, c *command) error {
	name := ":0"
	query := ""
	for i, arg := range c.args {
		switch {
		case i == 0 && strings.HasPrefix(arg, ":"):
			name = arg
		case arg == "-screen" && i+2 < len(c.args):
			m := screenSize().FindStringSubmatch(c.args[i+2])
			if m == nil {
				return fmt.Errorf("invalid screen size %.60q; use a size such as 1024x768x24", c.args[i+2])
			}
			query = "?width=" + m[1] + "&height=" + m[2]
		}
	}
	number, err := parseDisplay(name)
	if err != nil {
		return err
	}
	h, done, release, err := c.hold(ctx, query)
	if err != nil {
		return err
	}
	defer release()
	cookie := x11.ReadAuthority(h.Authority, h.Number)
	if cookie == nil {
		return fmt.Errorf("no cookie for display :%d in %s", h.Number, h.Authority)
	}
	if number != h.Number {
		_ = os.Remove(fmt.Sprintf("/tmp/.X%d-lock", number)) // lock of a server that has ended
		if err := linkSocket(number, h.Number); err != nil {
			return err
		}
		defer os.Remove(socketOf(number))
	}
	if err := x11.AddAuthority(c.authority(), number, cookie); err != nil {
		return err
	}
	if query != "" {
		if err := c.centerPointer(ctx, number); err != nil {
			return err
		}
	}
	c.announce()
	select {
	case <-ctx.Done():
		return nil
	case <-done:
		return errors.New("the display has ended")
	}
}

// centerPointer moves the pointer to the center of a display, where it is when an X server starts.
func (c *command) centerPointer(ctx context.Context, number int) error {
	conn, err := c.dial(ctx, fmt.Sprintf(":%d", number))
	if err != nil {
		return err
	}
	defer conn.Close()
	size, err := conn.Size(ctx)
	if err != nil {
		return err
	}
	return conn.Move(ctx, size.Div(2))
}

// linkSocket makes a display available under another number.
func linkSocket(number, to int) error {
	path := socketOf(number)
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return fmt.Errorf("server is already active for display %d", number)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.Symlink(filepath.Base(socketOf(to)), path)
}

// runSession waits for the window manager and then runs until the display ends: clients wait for this process.
func runSession(ctx context.Context, c *command) error {
	conn, err := c.dial(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close()
	for managed := false; !managed; {
		if managed, err = conn.Managed(ctx); err != nil {
			return fmt.Errorf("query the window manager: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
	c.announce()
	select {
	case <-ctx.Done():
		return nil
	case <-conn.Done():
		return errors.New("the display has ended")
	}
}
