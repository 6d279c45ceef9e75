// Package desktop implements the commands that E2B's desktop clients run in a sandbox: they start an X server and a session, use
// xdotool and scrot, and stream the screen with x11vnc and noVNC. Missing commands are installed in the PATH and use the
// sandbox's own display.
//
// The service prepares the PATH and keeps the display running for a command. Run is the main function of such a command.
// Unsupported options fail with the name of the package that supports them.
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
	// Hold keeps the display running until release, and starts it if necessary. env contains the variables that name it.
	Hold(ctx context.Context) (env []string, done <-chan struct{}, release func(), err error)
	Resize(ctx context.Context, width, height int) error
}

// Config of the service.
type Config struct {
	Runner    *proc.Runner
	Display   Display
	Contained bool     // the machine is a sandbox, in which commands may be installed
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

// route is the path at which a command holds the display.
const route = "/e2b/desktop"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{op.Handle(op.Spec{Name: "e2b_desktop", Content: op.ContentAPI, Route: "GET " + route, Tag: "e2b",
		Doc: "Keep the display running while the request is open, for the commands of E2B's desktop clients. " +
			"width and height set its size."}, http.HandlerFunc(s.hold))}
}

// Close ends all requests. It is idempotent.
func (s *Service) Close() error {
	s.end.Do(func() { close(s.quit) })
	return nil
}

// held describes the display to a command that holds it.
type held struct {
	Number    int    `json:"number"`
	Authority string `json:"authority"`
	RFB       string `json:"rfb"` // socket of its VNC server
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
			http.Error(w, "width and height must be integers", http.StatusBadRequest)
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

// launcher is the script that the commands link to.
//
//go:embed launcher.sh
var launcher string

// names are the commands that are installed if they are missing. Without an installed X server, startxfce4 is replaced too,
// because it would start a second window manager.
var names = []string{"Xvfb", "startxfce4", "xdpyinfo", "xrandr", "xdotool", "scrot", "x11vnc", "gtk-launch", "netstat"}

// prepareScript installs links to the launcher ($1) in the PATH.
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

// prepareTime is the timeout of the preparation.
const prepareTime = 20 * time.Second

// Prepare installs the commands in a sandbox that was created with a DISPLAY, as desktop clients do. It is called before every
// command, and runs once.
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
			s.cfg.Log.Warn("cannot install commands of desktop clients", "exit", res.Exit.Code, "stderr", string(res.Stderr), "error", err)
		}
	})
}
