package tab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Frame is the main frame of a page or the frame of an iframe, in any process.
type Frame struct {
	ID     string
	Parent string // id of the parent, empty for the main frame

	tab *Tab
	// Guarded by b.mu.
	session cdp.SessionID // of the process that shows it
	url     string
	loader  string // of the document
	states  map[string]bool
	failed  string // why the last navigation failed, such as net::ERR_FAILED
	started string // loader of the navigation in progress, or requested
	page    int64  // context of the scripts of the page
	own     int64  // context of the engine
	loaded  bool   // the engine is loaded in that context

	requestedAt time.Time // when the page requested a navigation
	order       int
}

// requested is the loader of a navigation that the page requested and that has not started.
const requested = "requested"

// requestTime is how long a requested navigation may take to start. Some never start.
const requestTime = time.Second

// isNavigating reports whether a navigation is in progress. b.mu is held.
func (f *Frame) isNavigating() bool {
	return f.started != "" && (f.started != requested || time.Since(f.requestedAt) < requestTime)
}

// lifecycleEvent is a load state of the document of a frame.
type lifecycleEvent struct {
	FrameID  string `json:"frameId"`
	LoaderID string `json:"loaderId"`
	Name     string `json:"name"`
}

// recordState records a load state of the frame's document. b.mu is held.
func (f *Frame) recordState(p lifecycleEvent) {
	if p.Name == "init" {
		f.states = map[string]bool{}
		f.loader = p.LoaderID
	}
	if f.loader == p.LoaderID {
		f.states[p.Name] = true
	}
}

type frameTree struct {
	Frame    frameInfo   `json:"frame"`
	Children []frameTree `json:"childFrames"`
}

type frameInfo struct {
	ID          string `json:"id"`
	ParentID    string `json:"parentId"`
	LoaderID    string `json:"loaderId"`
	URL         string `json:"url"`
	Fragment    string `json:"urlFragment"`
	Unreachable string `json:"unreachableUrl"`
}

func (t *Tab) frame(id, parent string, s cdp.SessionID) *Frame {
	f := t.frames[id]
	if f == nil {
		f = &Frame{ID: id, Parent: parent, tab: t, session: s, states: map[string]bool{}, order: len(t.frames)}
		t.frames[id] = f
	}
	if parent != "" {
		f.Parent = parent
	}
	if id == t.ID {
		t.main = f
	}
	return f
}

// adopt records the frames that exist when the page is attached. It runs on the reading goroutine, so that events before the
// list of frames are older than the list, and later events are newer.
func (b *Browser) adopt(s *session, result json.RawMessage) {
	var r struct {
		Tree frameTree `json:"frameTree"`
	}
	if json.Unmarshal(result, &r) != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.tab.adopt(s.id, r.Tree, "")
	b.notify()
}

func (t *Tab) adopt(s cdp.SessionID, tree frameTree, parent string) {
	if tree.Frame.ParentID != "" {
		parent = tree.Frame.ParentID
	}
	f := t.frame(tree.Frame.ID, parent, s)
	f.session = s
	if f.loader != tree.Frame.LoaderID {
		f.loader, f.url, f.states = tree.Frame.LoaderID, tree.Frame.URL+tree.Frame.Fragment, map[string]bool{}
	}
	t.b.noteOrigin(f.url)
	for _, child := range tree.Children {
		t.adopt(s, child, tree.Frame.ID)
	}
}

// Main returns the main frame, nil before the page is set up.
func (t *Tab) Main() *Frame {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.main
}

// Frames lists the frames that show a document, the main frame first, then its children depth first.
func (t *Tab) Frames() []*Frame {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if t.main == nil {
		return nil
	}
	children := map[string][]*Frame{}
	for _, f := range t.frames {
		if f != t.main {
			children[f.Parent] = append(children[f.Parent], f)
		}
	}
	var list []*Frame
	var walk func(f *Frame)
	walk = func(f *Frame) {
		list = append(list, f)
		below := children[f.ID]
		slices.SortFunc(below, func(a, b *Frame) int { return a.order - b.order })
		for _, c := range below {
			walk(c)
		}
	}
	walk(t.main)
	return list
}

// Frame returns the frame with an id, nil if there is none.
func (t *Tab) Frame(id string) *Frame {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.frames[id]
}

// URL returns the URL of the frame's document.
func (f *Frame) URL() string {
	f.tab.b.mu.Lock()
	defer f.tab.b.mu.Unlock()
	return f.url
}

// Document returns the id of the frame's document, which changes with each navigation.
func (f *Frame) Document() string {
	f.tab.b.mu.Lock()
	defer f.tab.b.mu.Unlock()
	return f.loader
}

// Session is the session of the process that shows the frame.
func (f *Frame) Session() cdp.SessionID {
	f.tab.b.mu.Lock()
	defer f.tab.b.mu.Unlock()
	return f.session
}

// Tab is the tab that the frame belongs to.
func (f *Frame) Tab() *Tab { return f.tab }

// Context returns the context of the engine in the frame, and whether the engine is loaded. It waits for the document.
func (f *Frame) Context(ctx context.Context) (s cdp.SessionID, id int64, loaded bool, err error) {
	err = f.tab.b.await(ctx, func() (bool, error) {
		if err := f.tab.check(); err != nil {
			return false, err
		}
		if f.tab.frames[f.ID] != f {
			return false, errNoContext
		}
		s, id, loaded = f.session, f.own, f.loaded
		return id != 0, nil
	})
	return s, id, loaded, err
}

// SetLoaded records that the engine is loaded in a context.
func (f *Frame) SetLoaded(id int64) {
	f.tab.b.mu.Lock()
	defer f.tab.b.mu.Unlock()
	if f.own == id {
		f.loaded = true
	}
}

// navigated handles a new document in a frame. b.mu is held.
func (t *Tab) navigated(s cdp.SessionID, info frameInfo) {
	f := t.frame(info.ID, info.ParentID, s)
	if info.ParentID == "" && s == t.session {
		t.main = f // the browser showed a page that it loaded in advance
	}
	f.session, f.loader, f.url = s, info.LoaderID, info.URL+info.Fragment
	f.failed = ""
	if f.started == info.LoaderID || f.started == requested {
		f.started = ""
	}
	if info.Unreachable != "" {
		f.url = info.Unreachable
	}
	f.states = map[string]bool{"commit": true}
	for id, child := range t.frames { // frames of the previous document
		if child.Parent == f.ID {
			t.forget(id)
		}
	}
	if f == t.main {
		t.commits++
		t.crashed = false
		t.url = f.url
		t.log.abandon(info.LoaderID)
	}
	t.b.noteOrigin(f.url)
}

// forget removes a frame and its descendants.
func (t *Tab) forget(id string) {
	f := t.frames[id]
	if f == nil || f == t.main {
		return
	}
	delete(t.frames, id)
	for child, c := range t.frames {
		if c.Parent == id {
			t.forget(child)
		}
	}
}

func (b *Browser) noteOrigin(address string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return
	}
	origin := u.Scheme + "://" + u.Host
	if !slices.Contains(b.origins, origin) && len(b.origins) < maxOrigins {
		b.origins = append(b.origins, origin)
	}
}

// context handles a new script context. b.mu is held.
func (t *Tab) context(s cdp.SessionID, raw json.RawMessage) {
	var p struct {
		Context struct {
			ID   int64  `json:"id"`
			Name string `json:"name"`
			Aux  struct {
				FrameID   string `json:"frameId"`
				IsDefault bool   `json:"isDefault"`
			} `json:"auxData"`
		} `json:"context"`
	}
	if json.Unmarshal(raw, &p) != nil || p.Context.Aux.FrameID == "" {
		return
	}
	f := t.frames[p.Context.Aux.FrameID]
	if f == nil {
		// The frame tree, which contains the parent, has not arrived yet.
		f = t.frame(p.Context.Aux.FrameID, "", s)
	}
	switch {
	case p.Context.Aux.IsDefault:
		f.page, f.session = p.Context.ID, s
	case p.Context.Name == World:
		f.own, f.session, f.loaded = p.Context.ID, s, false
	}
}

// contextDestroyed handles the end of one context, or of all contexts of a session if id is 0. b.mu is held.
func (t *Tab) contextDestroyed(s cdp.SessionID, id int64) {
	for _, f := range t.frames {
		if f.session != s {
			continue
		}
		if id == 0 || f.page == id {
			f.page = 0
		}
		if id == 0 || f.own == id {
			f.own = 0
		}
	}
}

// String describes the frame in messages.
func (f *Frame) String() string {
	return fmt.Sprintf("frame %q", strings.TrimSpace(f.URL()))
}
