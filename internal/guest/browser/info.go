package browser

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Viewport is a size in pixels.
type Viewport struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Info describes how to reach the browser.
type Info struct {
	UserAgent string    `json:"user_agent"`
	CDP       string    `json:"cdp_url" doc:"WebSocket URL for DevTools clients, reachable by the caller"`
	VNC       string    `json:"vnc_url" doc:"URL of the page that shows and controls the display, reachable by the caller"`
	CDPUI     *string   `json:"cdp_ui_url" doc:"URL of the DevTools of the current tab, reachable by the caller"`
	Viewport  Viewport  `json:"viewport" doc:"Size of the display"`
	Page      *Viewport `json:"page_viewport" doc:"Size of the page in the current tab, without toolbars"`
	Sandbox   bool      `json:"sandbox" doc:"Whether Chromium's own sandbox is on"`
	Reason    string    `json:"sandbox_off_reason,omitempty" doc:"Why the sandbox is off"`
}

// viewportTime is how long a page may take to report its size. The size of a busy page is unknown.
const viewportTime = 2 * time.Second

// Info starts the browser if necessary and returns its URLs.
func (s *Service) Info(ctx context.Context, _ op.None) (Info, error) {
	info, err := s.info(ctx)
	if errors.Is(err, cdp.ErrClosed) { // a query changes nothing, so it can be repeated
		info, err = s.info(ctx)
	}
	if err != nil {
		return Info{}, toOpError(ctx, err)
	}
	s.HintRestart(ctx)
	return info, nil
}

func (s *Service) info(ctx context.Context) (Info, error) {
	c, release, err := s.hold(ctx)
	if err != nil {
		return Info{}, err
	}
	defer release()
	width, height, err := s.cfg.Display.Size(ctx)
	if err != nil {
		return Info{}, err
	}
	call := op.CallOf(ctx)
	query, err := s.ticketQuery(ctx)
	if err != nil {
		return Info{}, err
	}
	viewer := url.Values{"autoconnect": {"true"}}
	if query.Has("ticket") {
		viewer.Set("ticket", query.Get("ticket"))
	}
	// A ticket is valid once, so each URL needs its own.
	if query, err = s.ticketQuery(ctx); err != nil {
		return Info{}, err
	}
	out := Info{
		UserAgent: c.agent, Viewport: Viewport{width, height},
		CDP: call.URL("ws", "/cdp"+c.path, query.Encode()), VNC: call.URL("http", "/vnc/index.html", viewer.Encode()),
		Reason: s.sandboxOffReason(),
	}
	out.Sandbox = out.Reason == ""
	c.awaitPainted(ctx) // before that the page does not have its final size
	if tabs, err := c.pages(ctx); err == nil && len(tabs) > 0 {
		out.CDPUI = s.inspector(ctx, tabs[0].ID)
		out.Page = c.viewport(ctx, tabs[0].ID)
	}
	return out, nil
}

// ticketQuery returns the query that authenticates a URL in a reply, if the caller authenticated with a ticket.
func (s *Service) ticketQuery(ctx context.Context) (url.Values, error) {
	ticket, err := s.cfg.Ticket(ctx)
	if err != nil || ticket == "" {
		return url.Values{}, err
	}
	return url.Values{"ticket": {ticket}}, nil
}

// inspector returns the URL of the browser's own DevTools page for a tab.
func (s *Service) inspector(ctx context.Context, tab string) *string {
	call := op.CallOf(ctx)
	if call.Base == nil {
		return nil
	}
	scheme := "ws"
	if call.Base.Scheme == "https" {
		scheme = "wss"
	}
	socket := call.Base.Host + call.Base.Path + "/devtools/page/" + tab
	address := call.URL("http", "/devtools/inspector.html", scheme+"="+socket)
	return &address
}

// viewport returns the size of a page, or nil.
func (c *chrome) viewport(ctx context.Context, tab string) *Viewport {
	ctx, cancel := context.WithTimeout(ctx, viewportTime)
	defer cancel()
	session, err := c.client.Attach(ctx, tab)
	if err != nil {
		return nil
	}
	defer c.detach(session)
	var size []int
	if c.client.Evaluate(ctx, session, "[innerWidth, innerHeight]", &size) != nil || len(size) != 2 {
		return nil
	}
	return &Viewport{size[0], size[1]}
}
