// Package display implements the sandbox's desktop: a virtual X server with a window manager, input, screenshots, clipboard and
// recordings for agents, and VNC for people, who can watch and take over.
//
// It owns the X server, the window manager, the recorder and the connection to the X server. All of them start on first use,
// restart after a crash, and stop when idle. A callback starts the browser. It listens on no network: X and VNC use private
// unix sockets.
package display

import (
	"context"
	"image"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Hold keeps a program running until release, and starts it if necessary. done is closed if it ends before.
type Hold func(ctx context.Context) (done <-chan struct{}, release func(), err error)

// Config of the service. Zero values select defaults; Idle 0 means that the display never stops.
type Config struct {
	Runner     *proc.Runner
	State      string // folder for the cookie and the sockets
	Home       string // relative paths of recordings start here
	Workspace  string
	Width      int // initial size of the display
	Height     int
	Idle       time.Duration // an unused display stops after this time
	Hang       time.Duration // the X server counts as hung if it does not respond for this time
	PasteTime  time.Duration // how long pasted text stays on the clipboard, unless the next call needs the clipboard; 0: 5s
	Recordings string        // folder of recordings without a path; empty: /tmp/recordings
	Pages      fs.FS         // the viewer's page: vnc/index.html and its files
	Browser    Hold          // starts the browser on the display; nil if there is none
	Log        *slog.Logger
}

// Service implements the desktop and its operations.
type Service struct {
	cfg     Config
	base    pathname.Base
	desktop *proc.Component[*desktop]
	turn    chan struct{} // held while an action is performed
	record  recorder
	control *control
	glance  glance
	life    context.Context // ends with Close
	end     context.CancelFunc

	mu        sync.Mutex
	size      image.Point // of the next display
	last      *desktop    // the latest display, even after its end
	restarted string      // why the display was restarted, for the next reply

	compressed sync.Map // modules of the page, by name
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Recordings == "" {
		c.Recordings = "/tmp/recordings"
	}
	if c.PasteTime == 0 {
		c.PasteTime = 5 * time.Second
	}
	if c.Hang == 0 {
		c.Hang = 30 * time.Second
	}
	if c.Width == 0 || c.Height == 0 {
		c.Width, c.Height = 1280, 1024
	}
	s := &Service{
		cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace},
		turn: make(chan struct{}, 1), size: image.Pt(c.Width, c.Height), control: newControl(),
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.desktop = proc.NewComponent(proc.ComponentConfig[*desktop]{
		Name: "the display", Start: s.start, Idle: c.Idle, Installed: s.installed, Log: c.Log,
		Restart: proc.Policy{Tries: 8, Window: time.Minute, Backoff: 20 * time.Millisecond, MaxBackoff: 2 * time.Second},
	})
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	held := op.New(op.Spec{Name: "display_control", Access: op.AccessRead, Route: "GET /v1/display/control",
		Tag: "display", Verb: "gui control", ReadOnly: true, NoTool: true,
		Doc: "Get the current user of the mouse and keyboard of the display: an agent, a person who has taken " +
			"over, or nobody. While a person has taken over, actions of agents fail. A stream reports each change."}, s.Control)
	list := []op.Op{
		op.WithStream[op.None, Control](held, s.WatchControl),
		op.New(op.Spec{Name: "browser_screenshot", Content: op.ContentAPI, Route: "GET /v1/browser/screenshot",
			Tag: "browser", SDK: "browser.screenshot", Verb: "gui screenshot", ReadOnly: true, Produces: "image/png, image/jpeg",
			Headers: []string{"x-screen-width", "x-screen-height", "x-image-width", "x-image-height"},
			Doc:     "Take a screenshot of the whole display, including the pointer. The response headers contain its size."}, s.Screenshot),
		op.New(op.Spec{Name: "browser_actions", Route: "POST /v1/browser/actions", Tag: "browser",
			SDK: "browser.execute_action", Verb: "gui action", Style: op.Own,
			Doc: "Send mouse or keyboard input to the display: one of 16 action types. Returns after the display " +
				"has accepted the input. Positions are pixels of the screenshot; key names follow pyautogui."}, s.Act),
		op.New(op.Spec{Name: "browser_config", Route: "POST /v1/browser/config", Tag: "browser", SDK: "browser.set_config",
			Doc: "Change the size of the display. Running programs continue; maximized windows adapt to the new size."}, s.Configure),
		op.New(op.Spec{Name: "display_handover", Route: "POST /v1/display/handover", Tag: "display", Verb: "gui handover",
			Doc: "Ask a person to take over the mouse and keyboard, such as to sign in, and wait until they release them. The hub " +
				"lists the request as needing attention."}, s.Handover),
		op.New(op.Spec{Name: "display_record", Route: "POST /v1/display/record", Tag: "display", SDK: "display.record", Verb: "gui record",
			Doc: "Record the display as an MP4 video: start, stop, or get the status. Only one recording runs at " +
				"a time. The file is playable at any time, even if the sandbox is killed."}, s.Record),
		op.New(op.Spec{Name: "clipboard_get", Route: "GET /v1/display/clipboard", Tag: "display", Verb: "gui clipboard-get", ReadOnly: true,
			Doc: "Read the text of the display's clipboard. It is empty if the clipboard is empty or contains no text."}, s.GetClipboard),
		op.New(op.Spec{Name: "clipboard_set", Route: "POST /v1/display/clipboard", Tag: "display", Verb: "gui clipboard-set",
			Doc: "Write text to the display's clipboard, which all programs and viewers share. Empty text clears it."}, s.SetClipboard),
		op.Duplex(op.Spec{Name: "vnc_socket", Route: "GET /websockify", Tag: "display", Protocols: []string{"binary"},
			Doc: "The display's VNC protocol over a WebSocket, for noVNC. With view_only, input of this viewer " +
				"is ignored. With take_over, input of other viewers is ignored and actions of agents fail."}, s.View),
		op.Handle(op.Spec{Name: "vnc_page", Access: op.AccessRead, Content: op.ContentPage,
			Route: "GET /vnc/{file...}", Also: []string{"GET /vnc"}, Tag: "display",
			Doc: "Page to watch and control the display."}, s.page()),
	}
	for i := range list {
		list[i] = s.gateInput(list[i])
	}
	return list
}

// gateInput gates operations that change mouse, keyboard, clipboard or size of the display.
func (s *Service) gateInput(o op.Op) op.Op {
	switch o.Name {
	case "browser_actions", "browser_config", "clipboard_set":
		return s.Gate(o)
	}
	return o
}

// Close ends the recording and the display.
func (s *Service) Close() error {
	s.end()
	s.record.close()
	s.desktop.Stop()
	return nil
}

// State returns the state of the display (absent, idle, starting, ready or failed) and its reason.
func (s *Service) State() (state, why string) {
	st := s.desktop.State()
	if st.Phase == proc.Stopping {
		st.Phase = proc.Idle
	}
	return string(st.Phase), st.Why
}

// Hold keeps the display running until release, for programs with windows. env contains the variables that name the display.
// done is closed if the display ends before.
func (s *Service) Hold(ctx context.Context) (env []string, done <-chan struct{}, release func(), err error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	return d.env, d.Done(), release, nil
}

// Env returns the environment variables that name the current display, for programs in a terminal. It is empty if no display
// runs.
func (s *Service) Env() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.Ended() {
		return nil
	}
	return slices.Clone(s.last.env)
}

// Size returns the display's size. It starts the display if necessary.
func (s *Service) Size(ctx context.Context) (width, height int, err error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	size, err := d.conn.Size(ctx)
	return size.X, size.Y, toOpError(ctx, err)
}
