package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

const (
	// frontendURL is the URL of the files of the DevTools page in the browser. Only a page below it can read them.
	frontendURL = "devtools://devtools/bundled/"
	// frontendFile is a small script. Opened as a page it is shown as text and not run.
	frontendFile = frontendURL + "entrypoints/inspector/inspector.js"
	// frontendTime is how long the browser may take for a file.
	frontendTime = 30 * time.Second
	// frontendIdle is how long the hidden page is kept after the last file.
	frontendIdle = 10 * time.Second
)

var errNoFile = errors.New("DevTools have no such file")

// frontend reads the files of the DevTools page, which the browser serves only on a port, through a hidden page. It closes
// that page when it is idle.
type frontend struct {
	pipe *cdp.Pipe

	mu     sync.Mutex
	opened *frontendPage
	users  int
	idle   *time.Timer
}

// frontendPage is the hidden page. It is closed with its client.
type frontendPage struct {
	client  *cdp.Client
	session cdp.SessionID
}

// read returns a file.
func (f *frontend) read(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, frontendTime)
	defer cancel()
	p, release, err := f.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("open DevTools: %w", err)
	}
	defer release()
	address, err := json.Marshal(frontendURL + strings.TrimPrefix(path.Clean("/"+name), "/"))
	if err != nil {
		return nil, err
	}
	var data []byte // decoded from base64
	err = p.client.Evaluate(ctx, p.session, fmt.Sprintf(readFile, address), &data)
	if _, missing := errors.AsType[*cdp.EvalError](err); missing {
		return nil, errNoFile
	}
	return data, err
}

// readFile fetches a file as base64.
const readFile = `fetch(%s).then(r => r.ok ? r.blob() : Promise.reject(r.status)).then(b => new Promise((done, fail) => {
	const reader = new FileReader();
	reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
	reader.onerror = () => fail(reader.error);
	reader.readAsDataURL(b);
}))`

// acquire returns the hidden page, which stays open until release.
func (f *frontend) acquire(ctx context.Context) (*frontendPage, func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	if f.opened == nil || f.opened.client.Err() != nil {
		p, err := f.open(ctx)
		if err != nil {
			return nil, nil, err
		}
		f.opened = p
	}
	f.users++
	return f.opened, f.release, nil
}

func (f *frontend) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users > 0 || f.idle != nil {
		return
	}
	f.idle = time.AfterFunc(frontendIdle, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.users == 0 {
			f.closePage()
		}
	})
}

// close closes the page.
func (f *frontend) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.idle != nil {
		f.idle.Stop()
	}
	f.closePage()
}

func (f *frontend) closePage() {
	if f.opened != nil {
		f.opened.client.Close()
		f.opened = nil
	}
}

// open opens the hidden page and waits until it can read files.
func (f *frontend) open(ctx context.Context) (*frontendPage, error) {
	client, err := f.pipe.Connect(ctx, cdp.Config{})
	if err != nil {
		return nil, err
	}
	p := &frontendPage{client: client}
	if err := p.load(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return p, nil
}

func (p *frontendPage) load(ctx context.Context) error {
	var r struct {
		ID string `json:"targetId"`
	}
	err := p.client.Call(ctx, cdp.Browser, "Target.createTarget", map[string]any{"url": "about:blank", "hidden": true}, &r)
	if err != nil {
		return err
	}
	if p.session, err = p.client.Attach(ctx, r.ID); err != nil {
		return err
	}
	loaded := p.client.Subscribe(cdp.Filter{Session: p.session, Methods: []string{"Page.domContentEventFired"}})
	defer loaded.Close()
	if err := p.client.Call(ctx, p.session, "Page.enable", nil, nil); err != nil {
		return err
	}
	var nav struct {
		Error string `json:"errorText"`
	}
	if err := p.client.Call(ctx, p.session, "Page.navigate", map[string]any{"url": frontendFile}, &nav); err != nil {
		return err
	}
	if nav.Error != "" {
		return fmt.Errorf("%s; check that the URL lists of the browser allow devtools://", nav.Error)
	}
	_, err = loaded.Next(ctx)
	return err
}
