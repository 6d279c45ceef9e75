package tab

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Tab is one tab of the browser.
type Tab struct {
	ID      string // of its target
	Opener  string // id of the tab that opened it, or empty
	Context string // id of the browser context

	b       *Browser
	session cdp.SessionID
	ready   chan struct{} // closed when the page is set up
	failed  error         // why the setup failed; set before ready is closed

	// Guarded by b.mu.
	url, title string
	frames     map[string]*Frame
	main       *Frame
	commits    int // navigations of the main frame, including those within the document
	crashed    bool
	closed     bool
	busy       int // operations in progress
	dialog     *Dialog
	dialogs    []Dialog
	console    []Entry
	log        requestLog
	choosers   []chooser
	pointer    pointerPath
	watchers   map[int]func() // called when the page crashes or the tab closes
	lastWatch  int

	existed  bool // before the connection: the browser may not have loaded it yet
	wakeOnce sync.Once
}

// Point is a position in the viewport.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// pointerPath is where operations moved the mouse, and over which document.
type pointerPath struct {
	points   []Point
	document string
}

// maxPointerPath is the maximum length of a pointer path.
const maxPointerPath = 4

// RecordPointer records where an operation moved the mouse.
func (t *Tab) RecordPointer(at Point) {
	points := append(t.PointerPath(), at)
	t.SetPointerPath(points[max(0, len(points)-maxPointerPath):])
}

// SetPointerPath replaces the last positions of the mouse.
func (t *Tab) SetPointerPath(points []Point) {
	document := t.Main().Document()
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.pointer = pointerPath{points, document}
}

// PointerPath returns the last positions to which operations moved the mouse over the current document.
func (t *Tab) PointerPath() []Point {
	document := t.Main().Document()
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if t.pointer.document != document {
		return nil
	}
	return slices.Clone(t.pointer.points)
}

// Session is the session with the page itself.
func (t *Tab) Session() cdp.SessionID { return t.session }

// Browser is the browser that the tab belongs to.
func (t *Tab) Browser() *Browser { return t.b }

// URL returns the address of the page.
func (t *Tab) URL() string {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.url
}

// Title returns the title that the browser shows.
func (t *Tab) Title() string {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.title
}

// Begin marks an operation on the tab until the result is called. Dialogs that are open or open meanwhile are answered
// according to the policy. Without an operation, a dialog waits for a person or another client.
func (t *Tab) Begin() (end func()) {
	b := t.b
	b.mu.Lock()
	t.busy++
	d := t.dialog
	b.mu.Unlock()
	if d != nil {
		b.answer(t, d)
	}
	return func() {
		b.mu.Lock()
		t.busy--
		b.mu.Unlock()
	}
}

// OnEnd calls f when the page crashes or the tab closes, unless cancel is called before. The browser does not reply to
// commands to such a page.
func (t *Tab) OnEnd(f func()) (cancel func()) {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if t.watchers == nil {
		t.watchers = map[int]func(){}
	}
	t.lastWatch++
	id := t.lastWatch
	t.watchers[id] = f
	return func() {
		t.b.mu.Lock()
		defer t.b.mu.Unlock()
		delete(t.watchers, id)
	}
}

// notifyEnd calls all functions of OnEnd. b.mu is held.
func (t *Tab) notifyEnd() {
	for _, f := range t.watchers {
		f()
	}
	clear(t.watchers)
}

// Ready waits until the page is set up and makes it run like a page in front. A restored tab is loaded first.
func (t *Tab) Ready(ctx context.Context) error {
	var wake *cdp.Pending
	t.wakeOnce.Do(func() {
		// Otherwise a page behind another is not drawn and its animations do not run. Most restored tabs are not even
		// loaded and reply to no other command.
		wake, _ = t.b.client.Begin(t.b.life, t.session, "Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true})
	})
	if err := t.awaitReady(ctx); err != nil {
		return err
	}
	if wake != nil {
		_ = wake.Wait(ctx, nil)
	}
	return t.awaitRestored(ctx)
}

// awaitRestored waits until a restored tab shows its page. Before that it has a document without a URL.
func (t *Tab) awaitRestored(ctx context.Context) error {
	blank := false
	return t.b.await(ctx, func() (bool, error) {
		if !t.existed || t.main == nil || t.closed || t.crashed {
			return true, nil
		}
		blank = blank || t.main.url == ""
		return !blank || t.main.states[DOMContentLoaded] && t.main.url != "", nil
	})
}

// IsReady reports whether the page is set up, so that it responds unless it is busy.
func (t *Tab) IsReady() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

func (t *Tab) awaitReady(ctx context.Context) error {
	select {
	case <-t.ready:
		return t.failed
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.b.client.Done():
		return t.b.client.Err()
	}
}

// Check returns why the tab cannot be used, or nil.
func (t *Tab) Check() error {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.check()
}

func (t *Tab) check() error {
	switch {
	case t.closed:
		return ErrClosed
	case t.crashed:
		return ErrCrashed
	}
	return nil
}

// Call sends a command to the page.
func (t *Tab) Call(ctx context.Context, method string, params, result any) error {
	return t.b.client.Call(ctx, t.session, method, params, result)
}

// setUp prepares a page or frame whose first script has not run, and lets it run.
func (b *Browser) setUp(ctx context.Context, s *session, waiting bool) error {
	type step struct {
		method string
		params any
	}
	steps := []step{
		{"Page.enable", nil},
		{"Page.getFrameTree", nil},
		{"Page.setLifecycleEventsEnabled", map[string]any{"enabled": true}},
		{"Runtime.enable", nil},
		{"Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": b.cfg.Script, "worldName": World, "runImmediately": true}},
		{"Log.enable", nil},
		{"Network.enable", map[string]any{"maxTotalBufferSize": 64 << 20, "maxResourceBufferSize": 16 << 20}},
		{"Target.setAutoAttach", autoAttach},
	}
	b.mu.Lock()
	for _, script := range b.scripts {
		steps = append(steps, step{"Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": script, "worldName": World}})
	}
	for _, c := range b.rules.commands() {
		steps = append(steps, step(c))
	}
	if b.positioned {
		steps = append(steps, step{positionMethod, positionParams(b.position)})
	}
	b.mu.Unlock()
	if waiting {
		steps = append(steps, step{"Runtime.runIfWaitingForDebugger", nil})
	}
	var sent []*cdp.Pending
	var first error
	for _, st := range steps {
		var handle func(json.RawMessage)
		if st.method == "Page.getFrameTree" {
			handle = func(result json.RawMessage) { b.adopt(s, result) }
		}
		p, err := b.client.BeginHandled(ctx, s.id, st.method, st.params, handle)
		if err != nil {
			return err
		}
		sent = append(sent, p)
	}
	for i, p := range sent {
		err := p.Wait(ctx, nil)
		if err != nil && first == nil && steps[i].method != positionMethod { // frames follow their page
			first = err
		}
	}
	return first
}

// attached handles a new page or out-of-process frame. It runs on the reading goroutine.
func (b *Browser) attached(e cdp.Event) {
	var p struct {
		SessionID cdp.SessionID `json:"sessionId"`
		Waiting   bool          `json:"waitingForDebugger"`
		Target    cdp.Target    `json:"targetInfo"`
	}
	if json.Unmarshal(e.Params, &p) != nil {
		return
	}
	s := &session{id: p.SessionID, target: p.Target.ID}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Target.Type == "page" && e.Session == cdp.Browser {
		t := &Tab{
			ID: p.Target.ID, Opener: p.Target.OpenerID, Context: p.Target.BrowserContextID, b: b, session: s.id, ready: make(chan struct{}),
			url: p.Target.URL, title: p.Target.Title, frames: map[string]*Frame{}, existed: !p.Waiting,
		}
		s.tab = t
		b.tabs = append(b.tabs, t)
		b.sessions[s.id] = s
		excess := len(b.tabs) > maxTabs && t.Opener != ""
		b.noteOrigin(t.url)
		b.notify()
		b.work.Go(func() { // without a timeout: a restored tab replies when it is loaded, a busy page when its script returns
			if excess {
				_ = b.client.CloseTarget(b.life, t.ID)
			}
			t.failed = b.setUp(b.life, s, p.Waiting)
			close(t.ready)
		})
		return
	}
	if parent := b.sessions[e.Session]; parent != nil && p.Target.Type == "iframe" {
		s.tab = parent.tab
		b.sessions[s.id] = s
		b.work.Go(func() { _ = b.setUp(b.life, s, p.Waiting) })
		return
	}
	b.spawn(func(ctx context.Context) { // other targets are not used, but must not stay paused
		_ = b.client.Call(ctx, s.id, "Runtime.runIfWaitingForDebugger", nil, nil)
		_ = b.client.Detach(ctx, s.id)
	})
}

// detached forgets a session. b.mu is held.
func (b *Browser) detached(id cdp.SessionID) {
	s := b.sessions[id]
	if s == nil {
		return
	}
	delete(b.sessions, id)
	if s.id == s.tab.session {
		s.tab.closed = true
		s.tab.notifyEnd()
		b.tabs = slices.DeleteFunc(b.tabs, func(t *Tab) bool { return t == s.tab })
		for key, other := range b.sessions {
			if other.tab == s.tab {
				delete(b.sessions, key)
			}
		}
		return
	}
	for _, f := range s.tab.frames {
		if f.session == id {
			f.session, f.page, f.own = "", 0, 0
		}
	}
}

// IsStale reports whether an error means that the document or frame of a script was replaced, so that the script can be
// retried in the new one.
func IsStale(err error) bool {
	if errors.Is(err, cdp.ErrDetached) {
		return true
	}
	e, ok := errors.AsType[*cdp.Error](err)
	if !ok {
		return errors.Is(err, errNoContext)
	}
	return e.Code == -32000 || e.Code == -32602
}

var errNoContext = errors.New("the frame has no document yet")
