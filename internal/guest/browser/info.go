package browser

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/cove-sandbox/cove/internal/cdp"
	"github.com/cove-sandbox/cove/internal/op"
)

// None is an input without fields.
type None struct{}

// Viewport is a size in pixels.
type Viewport struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Info tells how to reach the browser.
type Info struct {
	UserAgent string    `json:"user_agent"`
	CDP       string    `json:"cdp_url" doc:"WebSocket for DevTools clients, as the caller reaches it"`
	VNC       string    `json:"vnc_url" doc:"Page to watch and take over, as the caller reaches it"`
	CDPUI     *string   `json:"cdp_ui_url" doc:"DevTools of the current tab, as the caller reaches them"`
	Viewport  Viewport  `json:"viewport" doc:"Size of the display"`
	Page      *Viewport `json:"page_viewport" doc:"Size of the page in the current tab; less than the display, which shows the browser's own bars too"`
	Sandbox   bool      `json:"sandbox" doc:"Whether Chromium's own sandbox is on"`
	Reason    string    `json:"sandbox_off_reason,omitempty" doc:"Why it is off"`
}

// viewportTime is how long a page may take to tell its size; a busy one has none for now.
const viewportTime = 2 * time.Second

// Info starts the browser if need be and tells where it is.
func (s *Service) Info(ctx context.Context, _ None) (Info, error) {
	info, err := s.info(ctx)
	if errors.Is(err, cdp.ErrClosed) { // asking changes nothing, so it can be done again
		info, err = s.info(ctx)
	}
	if err != nil {
		return Info{}, s.explain(ctx, err)
	}
	s.tell(ctx)
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
	signed, err := s.signed(ctx)
	if err != nil {
		return Info{}, err
	}
	viewer := url.Values{"autoconnect": {"true"}}
	if signed.Has("ticket") {
		viewer.Set("ticket", signed.Get("ticket"))
	}
	// Each address is good for one sign-in of its own.
	if signed, err = s.signed(ctx); err != nil {
		return Info{}, err
	}
	out := Info{
		UserAgent: c.agent, Viewport: Viewport{width, height},
		CDP: call.URL("ws", "/cdp"+c.path, signed.Encode()), VNC: call.URL("http", "/vnc/index.html", viewer.Encode()),
		Reason: s.unsandboxed(),
	}
	out.Sandbox = out.Reason == ""
	c.awaitPainted(ctx) // until then the page does not have its size
	if tabs, err := c.pages(ctx); err == nil && len(tabs) > 0 {
		out.CDPUI = s.inspector(ctx, tabs[0].ID)
		out.Page = c.viewport(ctx, tabs[0].ID)
	}
	return out, nil
}

// signed is the query that lets an address in a reply be used by a caller who signed in with a ticket.
func (s *Service) signed(ctx context.Context) (url.Values, error) {
	ticket, err := s.cfg.Ticket(ctx)
	if err != nil || ticket == "" {
		return url.Values{}, err
	}
	return url.Values{"ticket": {ticket}}, nil
}

// inspector is the page of DevTools that comes with the browser.
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

// viewport asks a page for its size.
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
