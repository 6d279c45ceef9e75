package page

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// WaitIn says what to wait for.
type WaitIn struct {
	Type       string   `json:"type" doc:"What to wait for" enum:"selector,load,url,network_idle,download,function,response,request,timeout"`
	Selector   *string  `json:"selector" doc:"For selector: the element"`
	State      *string  `json:"state" doc:"For selector: attached, detached, visible (default) or hidden. For load: load (default), domcontentloaded or networkidle"`
	URL        *string  `json:"url" doc:"For url: the address, exactly, as a glob such as **/done, or as /regex/"`
	SavePath   *string  `json:"save_path" doc:"For download: where to copy the file"`
	Timeout    float64  `json:"timeout" doc:"Seconds to wait; for timeout: how long to sleep" default:"30"`
	Expression *string  `json:"expression" doc:"For function: JavaScript whose value becomes true"`
	Polling    *float64 `json:"polling" doc:"For function: milliseconds between two tries; default: 100"`
	URLPattern *string  `json:"url_pattern" doc:"For request and response: the URL as a part, a glob such as **/api/*, or /regex/"`
	Tab        *int     `json:"tab" doc:"Index of the tab; default: the active one" minimum:"0"`
}

// Waited is what came. Which fields are set depends on the type.
type Waited struct {
	Found  *bool   `json:"found,omitempty"`
	URL    string  `json:"url,omitempty"`
	Path   string  `json:"path,omitempty"`
	Name   string  `json:"suggested_filename,omitempty"`
	Size   *int64  `json:"size,omitempty"`
	Result any     `json:"result,omitempty"`
	Status int     `json:"status,omitempty"`
	Method string  `json:"method,omitempty"`
	Slept  float64 `json:"slept,omitempty" doc:"Seconds slept"`
}

// Wait waits.
func (s *Service) Wait(ctx context.Context, in WaitIn) (*Waited, error) {
	need := func(name string, v *string) error {
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
		err = need("selector", in.Selector)
		wait = func(ctx context.Context, t *tab.Tab) error { return s.waitSelector(ctx, t, in, out) }
	case "load":
		state, ok := loadStates[strings.ToLower(op.Value(in.State))]
		if !ok {
			return nil, op.Errorf(op.Invalid, "invalid state %q; use load, domcontentloaded or networkidle", *in.State)
		}
		wait = func(ctx context.Context, t *tab.Tab) error {
			err := t.AwaitLoad(ctx, state)
			out.URL = t.URL()
			return err
		}
	case "url":
		err = need("url", in.URL)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitURL(ctx, t, *in.URL, out) }
	case "network_idle":
		wait = func(ctx context.Context, t *tab.Tab) error {
			out.URL = t.URL()
			return t.AwaitIdle(ctx, 500*time.Millisecond)
		}
	case "download":
		wait = func(ctx context.Context, t *tab.Tab) error { return s.waitDownload(ctx, t, in, out) }
	case "function":
		err = need("expression", in.Expression)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitFunction(ctx, t, in, out) }
	case "request", "response":
		if in.URLPattern == nil {
			in.URLPattern = in.URL
		}
		err = need("url_pattern", in.URLPattern)
		wait = func(ctx context.Context, t *tab.Tab) error { return waitRequest(ctx, t, in, out) }
	case "timeout":
		return sleep(ctx, in.Timeout)
	}
	if err != nil {
		return nil, err
	}
	err = s.visitFor(asWait(ctx), Where{in.Tab, &in.Timeout}, 0, in.Type == "download", func(ctx context.Context, t *tab.Tab) error {
		err := wait(ctx, t)
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && s.responds(ctx, t) {
			return op.Errorf(op.Unavailable, "timed out after %v s waiting for %s; the page is at %q", in.Timeout, in.subject(), t.URL())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// responds reports whether the page still answers, so that the wait and not the page is the problem.
func (s *Service) responds(ctx context.Context, t *tab.Tab) bool {
	if t.Check() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	return t.Call(ctx, "Runtime.evaluate", map[string]any{"expression": "1"}, nil) == nil
}

func (in WaitIn) subject() string {
	for _, v := range []*string{in.Selector, in.URL, in.URLPattern, in.Expression, in.State} {
		if v != nil && *v != "" {
			return in.Type + " " + shorten(*v, 100)
		}
	}
	return in.Type
}

func sleep(ctx context.Context, s float64) (*Waited, error) {
	timer := time.NewTimer(seconds(s))
	defer timer.Stop()
	select {
	case <-timer.C:
		return &Waited{Slept: s}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pollTime is how often the page is asked for the state of an element.
const pollTime = 30 * time.Millisecond

func (s *Service) waitSelector(ctx context.Context, t *tab.Tab, in WaitIn, out *Waited) error {
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
	return poll(ctx, pollTime, func() (bool, error) {
		now, err := locate.Probe(ctx, t, *in.Selector)
		if err != nil && !tab.Gone(err) {
			return false, err
		}
		found := err == nil && holds(now)
		if found {
			there := now.Attached
			out.Found = &there
		}
		return found, nil
	})
}

// poll calls ok until it returns true, an error, or ctx ends.
func poll(ctx context.Context, every time.Duration, ok func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func waitURL(ctx context.Context, t *tab.Tab, pattern string, out *Waited) error {
	match, err := urlMatcher(pattern, false)
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
		every = max(seconds(*in.Polling/1000), 5*time.Millisecond)
	}
	return poll(ctx, every, func() (bool, error) {
		v, err := locate.RunScript(ctx, t, *in.Expression)
		if err != nil {
			if tab.Gone(err) {
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
	match, err := urlMatcher(*in.URLPattern, true)
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
		path = filepath.Join(s.cfg.Browser.Downloads(), d.Name)
	}
	if in.SavePath != nil && *in.SavePath != "" {
		to, err := s.outputPath(*in.SavePath)
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
		return op.Errorf(op.NotFound, "the downloaded file is gone: %w", err)
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

// urlMatcher understands /regex/, globs and plain text, which is the whole URL or, if part is set, a part of it.
func urlMatcher(pattern string, part bool) (func(string) bool, error) {
	if len(pattern) > 2 && pattern[0] == '/' && pattern[len(pattern)-1] == '/' {
		re, err := regexp.Compile(pattern[1 : len(pattern)-1])
		if err != nil {
			return nil, op.Errorf(op.Invalid, "invalid regular expression %q: %w", pattern, err)
		}
		return re.MatchString, nil
	}
	if strings.ContainsAny(pattern, "*{") {
		re, err := regexp.Compile(globToRegexp(pattern))
		if err != nil {
			return nil, op.Errorf(op.Invalid, "invalid pattern %q", pattern)
		}
		return re.MatchString, nil
	}
	if part {
		return func(u string) bool { return strings.Contains(u, pattern) }, nil
	}
	return func(u string) bool {
		return u == pattern || strings.TrimSuffix(u, "/") == strings.TrimSuffix(pattern, "/")
	}, nil
}

// globToRegexp translates a glob for URLs: ** is anything, * anything but a slash, {a,b} either.
func globToRegexp(glob string) string {
	var b strings.Builder
	b.WriteString("^")
	group := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '*' && strings.HasPrefix(glob[i:], "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case c == '*' && strings.HasPrefix(glob[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '{':
			b.WriteString("(?:")
			group++
		case c == '}' && group > 0:
			b.WriteString(")")
			group--
		case c == ',' && group > 0:
			b.WriteString("|")
		case c == '\\' && i+1 < len(glob):
			i++
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	b.WriteString("$")
	return b.String()
}
