// Package desktop has the commands that E2B's desktop clients run inside a sandbox: they start an X server and a
// session, use xdotool and scrot, and stream the screen with x11vnc and noVNC. Those that the sandbox lacks are put on
// its PATH and use the sandbox's own display.
//
// The service prepares the PATH and lets a command hold the display; Run is such a command, in a process of its own.
// It refuses what it cannot do, with the package that can.
package desktop

import (
	"context"
	_ "embed"
	"encoding/json"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Display is the sandbox's display.
type Display interface {
	// Hold keeps the display running until release, and starts it if necessary. env tells programs where it is.
	Hold(ctx context.Context) (env []string, done <-chan struct{}, release func(), err error)
	Resize(ctx context.Context, width, height int) error
}

// Config of the service.
type Config struct {
	Runner    *proc.Runner
	Display   Display
	Contained bool     // the machine is a sandbox of ours: its system may be changed
	Self      []string // the command that calls Run
	Log       *slog.Logger
}

// Service prepares a sandbox for desktop clients.
type Service struct {
	cfg  Config
	once sync.Once
	quit chan struct{}
	end  sync.Once
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: c, quit: make(chan struct{})}
}

// route is where a command holds the display.
const route = "/e2b/desktop"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{op.Handle(op.Spec{Name: "e2b_desktop", Content: op.ContentAPI, Route: "GET " + route, Tag: "e2b",
		Doc: "Keeps the display running while the request is open, for the commands of E2B's desktop clients. " +
			"width and height set its size."}, http.HandlerFunc(s.hold))}
}

// Close ends what is held. It is idempotent.
func (s *Service) Close() error {
	s.end.Do(func() { close(s.quit) })
	return nil
}

// held tells a command about the display that it holds.
type held struct {
	Number    int    `json:"number"`
	Authority string `json:"authority"`
	RFB       string `json:"rfb"` // the socket of its VNC server
}

func (s *Service) hold(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	env, done, release, err := s.cfg.Display.Hold(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer release()
	if q := r.URL.Query(); q.Has("width") {
		width, err1 := strconv.Atoi(q.Get("width"))
		height, err2 := strconv.Atoi(q.Get("height"))
		if err1 != nil || err2 != nil {
			http.Error(w, "width and height must be numbers of pixels", http.StatusBadRequest)
			return
		}
		if err := s.cfg.Display.Resize(ctx, width, height); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	var h held
	for _, pair := range env {
		if v, ok := strings.CutPrefix(pair, "DISPLAY=:"); ok {
			h.Number, _ = strconv.Atoi(v)
		}
		if v, ok := strings.CutPrefix(pair, "XAUTHORITY="); ok {
			h.Authority, h.RFB = v, filepath.Join(filepath.Dir(v), "rfb")
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if json.NewEncoder(w).Encode(h) != nil || http.NewResponseController(w).Flush() != nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-done:
	case <-s.quit:
	}
}

// launcher is what the commands are links to.
//
//go:embed launcher.sh
var launcher string

// names are the commands, if the sandbox lacks them. Without an X server of its own the session is ours too, even if
// another one is installed: it would bring a second window manager.
var names = []string{"Xvfb", "startxfce4", "xdpyinfo", "xrandr", "xdotool", "scrot", "x11vnc", "gtk-launch", "netstat"}

// prepareScript puts links to the launcher ($1) on the PATH.
const prepareScript = `set -e
mkdir -p /usr/local/libexec /usr/local/bin
printf '%s' "$1" > /usr/local/libexec/aio-desktop
chmod 755 /usr/local/libexec/aio-desktop
shift
own() { ln -sfn /usr/local/libexec/aio-desktop "$1"; }
command -v Xvfb >/dev/null || own /usr/local/bin/startxfce4
for name; do command -v "$name" >/dev/null || own "/usr/local/bin/$name"; done
if [ ! -e /opt/noVNC/utils/novnc_proxy ]; then
	mkdir -p /opt/noVNC/utils
	own /opt/noVNC/utils/novnc_proxy
fi`

// prepareTime bounds the preparation.
const prepareTime = 20 * time.Second

// Prepare puts the commands on the PATH of a sandbox that was created with a DISPLAY, as desktop clients do. It is
// called before every command, and works once.
func (s *Service) Prepare() {
	if !s.cfg.Contained || !slices.ContainsFunc(s.cfg.Runner.Environ(),
		func(pair string) bool { return strings.HasPrefix(pair, "DISPLAY=") }) {
		return
	}
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), prepareTime)
		defer cancel()
		text := strings.ReplaceAll(launcher, "SELF", strings.Join(s.cfg.Self, " "))
		args := append([]string{"-c", prepareScript, "sh", text}, names...)
		c := proc.Command{Path: "sh", Dir: "/", Args: args}
		if !isRoot() {
			c.Path, c.Args = "sudo", append([]string{"-n", "--", "sh"}, args...)
		}
		res, err := s.cfg.Runner.Run(ctx, c)
		if err != nil || res.Exit.Code != 0 {
			s.cfg.Log.Warn("cannot install the commands of desktop clients", "exit", res.Exit.Code, "stderr", string(res.Stderr), "error", err)
		}
	})
}
