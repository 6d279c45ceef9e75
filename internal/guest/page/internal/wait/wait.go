// Package wait waits for events of pages: elements, navigations, requests, downloads and script conditions.
package wait

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service waits for events of pages.
type Service struct{ d *driver.Driver }

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service { return &Service{d} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.Spec("browser_wait", "POST /v1/browser/page/wait", "wait", "wait",
			"Wait for the state of an element, a load state, a URL, an idle network, a download, a function that "+
				"returns true, a request, a response, or a fixed time."), s.Wait),
	}
}

// WaitIn is an event to wait for.
type WaitIn struct {
	Type       string   `json:"type" doc:"Type of event" enum:"selector,load,url,network_idle,download,function,response,request,timeout"`
	Selector   *string  `json:"selector" doc:"For selector: the element"`
	State      *string  `json:"state" doc:"For selector: attached, detached, visible or hidden. For load: load, domcontentloaded, networkidle"`
	URL        *string  `json:"url" doc:"For url: exact URL, glob such as **/done, or /regex/"`
	SavePath   *string  `json:"save_path" doc:"For download: path of a copy of the file"`
	Timeout    float64  `json:"timeout" doc:"Timeout in seconds; for timeout: duration of the wait" default:"30"`
	Expression *string  `json:"expression" doc:"For function: JavaScript; the wait ends when its value is truthy"`
	Polling    *float64 `json:"polling" doc:"For function: polling interval in milliseconds; default: 100"`
	URLPattern *string  `json:"url_pattern" doc:"For request and response: part of the URL, glob such as **/api/*, or /regex/"`
	Tab        *int     `json:"tab" doc:"Index of the tab; default: the active tab" minimum:"0"`
}

// Waited describes the event. Which fields are set depends on the type.
type Waited struct {
	Found  *bool   `json:"found,omitempty"`
	URL    string  `json:"url,omitempty"`
	Path   string  `json:"path,omitempty"`
	Name   string  `json:"suggested_filename,omitempty"`
	Size   *int64  `json:"size,omitempty"`
	Result any     `json:"result,omitempty"`
	Status int     `json:"status,omitempty"`
	Method string  `json:"method,omitempty"`
	Slept  float64 `json:"slept,omitempty" doc:"Seconds waited"`
}

// Wait waits for an event.
func (s *Service) Wait(ctx context.Context, in WaitIn) (*Waited, error) {
	require := func(name string, v *string) error {
		if v == nil || *v == "" {
			return op.Errorf(op.Invalid, "waiting for %q requires %q", in.Type, name)
		}
		return nil
	}
	out := &Waited{}
	var wait func(ctx context.Context, t *tab.Tab) error
	var err error
	switch in.Type {
	case "selector":
		err = require("selector", in.Selector)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitSelector(ctx, t, in, out) }
	case "load":
		state, ok := tab.LoadState(strings.ToLower(op.Value(in.State)))
		if !ok {
			return nil, op.Errorf(op.Invalid, "invalid state %q; use load, domcontentloaded or networkidle", *in.State)
		}
		wait = func(ctx context.Context, t *tab.Tab) error {
			err := t.AwaitLoad(ctx, state)
			out.URL = t.URL()
			return err
		}
	case "url":
		err = require("url", in.URL)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitURL(ctx, t, *in.URL, out) }
	case "network_idle":
		wait = func(ctx context.Context, t *tab.Tab) error {
			out.URL = t.URL()
			return t.AwaitIdle(ctx, 500*time.Millisecond)
		}
	case "download":
		wait = func(ctx context.Context, t *tab.Tab) error { return s.waitDownload(ctx, t, in, out) }
	case "function":
		err = require("expression", in.Expression)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitFunction(ctx, t, in, out) }
	case "request", "response":
		if in.URLPattern == nil {
			in.URLPattern = in.URL
		}
		err = require("url_pattern", in.URLPattern)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitRequest(ctx, t, in, out) }
	case "timeout":
		return sleep(ctx, in.Timeout)
	}
	if err != nil {
		return nil, err
	}
	options := driver.Options{Wait: true, AllowFailed: in.Type == "download"}
	err = s.d.VisitWith(ctx, driver.Where{Tab: in.Tab, Timeout: &in.Timeout}, options, func(ctx context.Context, t *tab.Tab) error {
		err := wait(ctx, t)
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && driver.Responds(ctx, t) {
			return op.Errorf(op.Unavailable, "timed out after %v s waiting for %s; the URL of the page is %q", in.Timeout, in.subject(), t.URL())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (in WaitIn) subject() string {
	for _, v := range []*string{in.Selector, in.URL, in.URLPattern, in.Expression, in.State} {
		if v != nil && *v != "" {
			return in.Type + " " + driver.Shorten(*v, 100)
		}
	}
	return in.Type
}

func sleep(ctx context.Context, s float64) (*Waited, error) {
	timer := time.NewTimer(driver.Seconds(s))
	defer timer.Stop()
	select {
	case <-timer.C:
		return &Waited{Slept: s}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pollTime is the interval in which the state of an element is checked.
const pollTime = 30 * time.Millisecond

func waitSelector(ctx context.Context, t *tab.Tab, in WaitIn, out *Waited) error {
	state := op.Value(in.State)
	if state == "" {
		state = "visible"
	}
	holds, ok := map[string]func(locate.State) bool{
		"attached": func(s locate.State) bool { return s.Attached }, "detached": func(s locate.State) bool { return !s.Attached },
		"visible": func(s locate.State) bool { return s.Visible }, "hidden": func(s locate.State) bool { return !s.Visible },
	}[state]
	if !ok {
		return op.Errorf(op.Invalid, "invalid state %q; use attached, detached, visible or hidden", state)
	}
	return driver.Poll(ctx, pollTime, func() (bool, error) {
		now, err := locate.Probe(ctx, t, *in.Selector)
		if err != nil && !tab.IsStale(err) {
			return false, err
		}
		found := err == nil && holds(now)
		if found {
			attached := now.Attached
			out.Found = &attached
		}
		return found, nil
	})
}

func waitURL(ctx context.Context, t *tab.Tab, pattern string, out *Waited) error {
	match, err := tab.URLMatcher(pattern, false)
	if err != nil {
		return err
	}
	if err := t.AwaitURL(ctx, match); err != nil {
		return err
	}
	err = t.AwaitLoad(ctx, tab.Load)
	out.URL = t.URL()
	return err
}

func waitFunction(ctx context.Context, t *tab.Tab, in WaitIn, out *Waited) error {
	every := 100 * time.Millisecond
	if in.Polling != nil {
		every = max(driver.Seconds(*in.Polling/1000), 5*time.Millisecond)
	}
	return driver.Poll(ctx, every, func() (bool, error) {
		v, err := locate.RunScript(ctx, t, *in.Expression)
		if err != nil {
			if tab.IsStale(err) {
				return false, nil
			}
			return false, err
		}
		switch string(v) {
		case "", "null", "false", "0", `""`, `"NaN"`:
			return false, nil
		}
		out.Result = v
		return true, nil
	})
}

func waitRequest(ctx context.Context, t *tab.Tab, in WaitIn, out *Waited) error {
	match, err := tab.URLMatcher(*in.URLPattern, true)
	if err != nil {
		return err
	}
	r, err := t.AwaitRequest(ctx, t.Marked(), func(r *tab.Request) bool {
		return match(r.URL) && (in.Type == "request" || r.Status != 0)
	})
	if err != nil {
		return err
	}
	out.URL, out.Method, out.Status = r.URL, r.Method, r.Status
	return nil
}

func (s *Service) waitDownload(ctx context.Context, t *tab.Tab, in WaitIn, out *Waited) error {
	d, err := t.Browser().AwaitDownload(ctx)
	if err != nil {
		return err
	}
	if d.State != "completed" {
		return op.Errorf(op.Unavailable, "the download of %q was canceled or failed", d.URL)
	}
	path := d.Path
	if path == "" {
		path = filepath.Join(s.d.Downloads(), d.Name)
	}
	if in.SavePath != nil && *in.SavePath != "" {
		to, err := s.d.OutputPath(*in.SavePath)
		if err != nil {
			return err
		}
		if err := copyFile(path, to); err != nil {
			return op.Errorf(op.Denied, "cannot copy the download to %q: %w", to, err)
		}
		path = to
	}
	info, err := os.Stat(path)
	if err != nil {
		return op.Errorf(op.NotFound, "the downloaded file does not exist: %w", err)
	}
	size := info.Size()
	out.Path, out.Name, out.URL, out.Size = path, d.Name, d.URL, &size
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
