package tab

import (
	"encoding/json"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// handle updates the model. It runs on the reading goroutine, so that the model is up to date when a call returns.
func (b *Browser) handle(e cdp.Event) {
	if e.Method == "Target.attachedToTarget" {
		b.attached(e)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Session == cdp.Browser {
		b.handleBrowser(e)
		return
	}
	s := b.sessions[e.Session]
	if s == nil {
		return
	}
	if e.Method == "Target.detachedFromTarget" {
		b.handleBrowser(e)
		return
	}
	if h := handlers[e.Method]; h != nil {
		h(s.tab, e)
	}
}

func (b *Browser) handleBrowser(e cdp.Event) {
	switch e.Method {
	case "Target.detachedFromTarget":
		p := decode[struct {
			SessionID cdp.SessionID `json:"sessionId"`
		}](e)
		b.detached(p.SessionID)
	case "Target.targetInfoChanged":
		p := decode[struct {
			Target cdp.Target `json:"targetInfo"`
		}](e)
		if t := b.find(p.Target.ID); t != nil {
			t.title = p.Target.Title
		}
	case "Target.targetCrashed":
		p := decode[struct {
			TargetID string `json:"targetId"`
		}](e)
		if t := b.find(p.TargetID); t != nil {
			t.crash()
		}
	case "Browser.downloadWillBegin":
		b.downloadBegins(e)
	case "Browser.downloadProgress":
		b.downloadProgresses(e)
	default:
		return
	}
	b.notify()
}

func decode[T any](e cdp.Event) T {
	var v T
	_ = json.Unmarshal(e.Params, &v) // events of the browser are well-formed
	return v
}

// handlers handle the events of a page. b.mu is held.
var handlers = map[string]func(t *Tab, e cdp.Event){
	"Page.frameAttached": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID string `json:"frameId"`
			Parent  string `json:"parentFrameId"`
		}](e)
		t.frame(p.FrameID, p.Parent, e.Session)
		t.b.notify()
	},
	"Page.frameDetached": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID string `json:"frameId"`
			Reason  string `json:"reason"`
		}](e)
		if p.Reason != "swap" {
			t.forget(p.FrameID)
			t.b.notify()
		}
	},
	"Page.frameNavigated": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			Frame frameInfo `json:"frame"`
		}](e)
		t.navigated(e.Session, p.Frame)
		t.b.notify()
	},
	"Page.navigatedWithinDocument": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID string `json:"frameId"`
			URL     string `json:"url"`
		}](e)
		if f := t.frames[p.FrameID]; f != nil {
			f.url = p.URL
			if f.started == requested {
				f.started = ""
			}
			if f == t.main {
				t.url = p.URL
				t.commits++
			}
			t.b.notify()
		}
	},
	"Page.frameStartedNavigating": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID  string `json:"frameId"`
			LoaderID string `json:"loaderId"`
			Kind     string `json:"navigationType"`
		}](e)
		if f := t.frames[p.FrameID]; f != nil && p.Kind != "sameDocument" && p.Kind != "historySameDocument" {
			f.started = p.LoaderID
			t.b.notify()
		}
	},
	"Page.frameRequestedNavigation": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID     string `json:"frameId"`
			Disposition string `json:"disposition"`
		}](e)
		if f := t.frames[p.FrameID]; f != nil && p.Disposition == "currentTab" && f.started == "" {
			f.started, f.requestedAt = requested, time.Now()
		}
	},
	"Page.frameStoppedLoading": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID string `json:"frameId"`
		}](e)
		if f := t.frames[p.FrameID]; f != nil {
			f.started = ""
			t.b.notify()
		}
	},
	"Page.frameClearedScheduledNavigation": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			FrameID string `json:"frameId"`
		}](e)
		if f := t.frames[p.FrameID]; f != nil && f.started == requested {
			f.started = ""
			t.b.notify()
		}
	},
	"Page.lifecycleEvent": func(t *Tab, e cdp.Event) {
		p := decode[lifecycleEvent](e)
		if f := t.frames[p.FrameID]; f != nil {
			f.recordState(p)
			t.b.notify()
		}
	},
	"Runtime.executionContextCreated": func(t *Tab, e cdp.Event) {
		t.context(e.Session, e.Params)
		t.b.notify()
	},
	"Runtime.executionContextDestroyed": func(t *Tab, e cdp.Event) {
		p := decode[struct {
			ID int64 `json:"executionContextId"`
		}](e)
		t.contextDestroyed(e.Session, p.ID)
	},
	"Runtime.executionContextsCleared": func(t *Tab, e cdp.Event) { t.contextDestroyed(e.Session, 0) },
	"Inspector.targetCrashed": func(t *Tab, e cdp.Event) {
		if e.Session == t.session {
			t.crash()
			t.b.notify()
		}
	},
	"Inspector.targetReloadedAfterCrash": func(t *Tab, e cdp.Event) {
		if e.Session == t.session {
			t.crashed = false
			t.b.notify()
		}
	},
	"Page.javascriptDialogOpening":       (*Tab).dialogOpens,
	"Page.javascriptDialogClosed":        (*Tab).dialogCloses,
	"Page.fileChooserOpened":             (*Tab).chooserOpens,
	"Runtime.consoleAPICalled":           (*Tab).consoleCalled,
	"Runtime.exceptionThrown":            (*Tab).exceptionThrown,
	"Log.entryAdded":                     (*Tab).logAdded,
	"Network.requestWillBeSent":          (*Tab).requestSent,
	"Network.requestWillBeSentExtraInfo": (*Tab).requestExtra,
	"Network.responseReceived":           (*Tab).responseReceived,
	"Network.responseReceivedExtraInfo":  (*Tab).responseExtra,
	"Network.dataReceived":               (*Tab).dataReceived,
	"Network.loadingFinished":            (*Tab).loadingFinished,
	"Network.loadingFailed":              (*Tab).loadingFailed,
	"Network.requestServedFromCache":     (*Tab).fromCache,
	"Fetch.requestPaused":                (*Tab).requestPaused,
	"Fetch.authRequired":                 (*Tab).authRequired,
}

// crash records that the page has crashed. b.mu is held.
func (t *Tab) crash() {
	t.crashed = true
	t.notifyEnd()
	for _, f := range t.frames {
		f.own, f.page = 0, 0
	}
}
