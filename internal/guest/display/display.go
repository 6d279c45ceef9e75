// Package display is the sandbox's desktop: an X server with a window manager that nobody needs a screen for, what an agent
// does with it (look, click, type, copy, record) and what a person does (watch and take over by VNC).
//
// It owns the X server, the window manager, the recorder and the connection it acts through; all of them start on first
// need, are replaced when they die and stop when nobody has used them for a while. It knows nothing of browsers but that one
// may be asked to stand on the display, and it listens on no network: X and VNC are spoken over private unix sockets.
package display

import (
	"context"
	"image"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/proc"
)

// Hold keeps something running until release, and starts it if need be. done is closed if it ends all the same.
type Hold func(ctx context.Context) (done <-chan struct{}, release func(), err error)

// Config of the service. A duration of 0 is the default, an Idle of 0 means never.
type Config struct {
	Runner    *proc.Runner
	State     string // folder for the cookie and the sockets
	Home      string // what paths of recordings are relative to
	Workspace string
	Width     int // of the display at its first start
	Height    int
	Idle      time.Duration // how long a display that nobody uses stays
	Hang      time.Duration // how long the X server may take to answer before it counts as dead
	Pages     fs.FS         // the viewer's page: vnc/index.html and what it loads
	Browser   Hold          // puts the browser on the display; nil: there is none
	Log       *slog.Logger
}

// Service is the desktop.
type Service struct {
	cfg     Config
	base    pathname.Base
	desktop *proc.Component[*desktop]
	turn    chan struct{} // held by the action that is being performed
	record  recorder

	mu   sync.Mutex
	size image.Point // what a new display gets
	last *desktop    // the latest one, also when it is gone
	news string      // what the next reply must tell
}

// New makes the service. It touches nothing.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Hang == 0 {
		c.Hang = 30 * time.Second
	}
	if c.Width == 0 || c.Height == 0 {
		c.Width, c.Height = 1280, 1024
	}
	s := &Service{
		cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace},
		turn: make(chan struct{}, 1), size: image.Pt(c.Width, c.Height),
	}
	s.desktop = proc.NewComponent(proc.ComponentConfig[*desktop]{
		Name: "the display", Start: s.start, Idle: c.Idle, Installed: s.installed, Log: c.Log,
		Restart: proc.Policy{Tries: 8, Window: time.Minute, Backoff: 20 * time.Millisecond, MaxBackoff: 2 * time.Second},
	})
	return s
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "browser_screenshot", Route: "GET /v1/browser/screenshot", Tag: "browser", SDK: "browser.screenshot", Verb: "gui screenshot", ReadOnly: true, Produces: "image/png, image/jpeg",
			Doc: "Take a picture of the whole display, with the pointer. Its size is in the headers too."}, s.Screenshot),
		op.New(op.Spec{Name: "browser_actions", Route: "POST /v1/browser/actions", Tag: "browser", SDK: "browser.execute_action", Verb: "gui action", Style: op.Own,
			Doc: "Use mouse and keyboard on the display: one of 16 kinds of action. It is answered when the display has taken the input. Positions are pixels of the screenshot; keys are named as in pyautogui."}, s.Act),
		op.New(op.Spec{Name: "browser_config", Route: "POST /v1/browser/config", Tag: "browser", SDK: "browser.set_config",
			Doc: "Change the size of the display while everything on it goes on. Maximised windows follow."}, s.Configure),
		op.New(op.Spec{Name: "display_record", Route: "POST /v1/display/record", Tag: "display", SDK: "display.record", Verb: "gui record",
			Doc: "Record the display as an MP4 video: start, stop, or ask for the status. One recording runs at a time; its file can be played at any moment, even if the sandbox is killed."}, s.Record),
		op.New(op.Spec{Name: "clipboard_get", Route: "GET /v1/display/clipboard", Tag: "display", Verb: "gui clipboard-get", ReadOnly: true,
			Doc: "Read the text in the display's clipboard. It is empty when nothing was copied, or no text."}, s.GetClipboard),
		op.New(op.Spec{Name: "clipboard_set", Route: "POST /v1/display/clipboard", Tag: "display", Verb: "gui clipboard-set",
			Doc: "Put a text into the display's clipboard, for every program on it and for those who watch. An empty text empties it."}, s.SetClipboard),
		op.Duplex(op.Spec{Name: "vnc_socket", Route: "GET /websockify", Tag: "display", Protocols: []string{"binary"},
			Doc: "The display's VNC protocol over a WebSocket, for noVNC. With view_only input from this viewer is refused."}, s.View),
		op.Handle(op.Spec{Name: "vnc_page", Route: "GET /vnc/{file...}", Also: []string{"GET /vnc"}, Tag: "display",
			Doc: "A page that shows the display and lets a person use it."}, s.page()),
	}
}

// Close ends the recording and the display.
func (s *Service) Close() error {
	s.record.close()
	s.desktop.Stop()
	return nil
}

// State is for readiness: absent, idle, starting, ready or failed, and why.
func (s *Service) State() (state, why string) {
	st := s.desktop.State()
	if st.Phase == proc.Stopping {
		st.Phase = proc.Idle
	}
	return string(st.Phase), st.Why
}

// Hold keeps the display running until release, for programs that are to stand on it: env is what they need to find it.
// done is closed if it dies all the same.
func (s *Service) Hold(ctx context.Context) (env []string, done <-chan struct{}, release func(), err error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	return d.env, d.Done(), release, nil
}

// Env is what programs need to find the display that runs now, such as those that a person starts in a terminal; nothing
// when there is none.
func (s *Service) Env() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.over() {
		return nil
	}
	return slices.Clone(s.last.env)
}

// Size is the display's, which is started if need be.
func (s *Service) Size(ctx context.Context) (width, height int, err error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	size, err := d.conn.Size(ctx)
	return size.X, size.Y, s.explain(ctx, err)
}
