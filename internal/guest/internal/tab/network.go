package tab

import (
	"context"
	"encoding/base64"
	"maps"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Limits of the request log of one tab.
const (
	maxRequests = 2000
	maxPost     = 64 << 10 // of a request body that is kept
	maxHeader   = 32 << 10 // of all headers of one message
)

// Request is a request of a page.
type Request struct {
	ID              string            `json:"id" doc:"Pass it as body_of to read the response body"`
	Method          string            `json:"method"`
	URL             string            `json:"url"`
	Status          int               `json:"status" doc:"HTTP status; 0 if there is no response yet"`
	Type            string            `json:"resource_type" doc:"document, script, xhr, fetch, image, …"`
	RequestHeaders  map[string]string `json:"request_headers"`
	ResponseHeaders map[string]string `json:"response_headers"`
	MIME            string            `json:"mime_type"`
	Size            int64             `json:"size" doc:"Bytes transferred"`
	Duration        float64           `json:"duration_ms" doc:"Milliseconds from the request to the last byte"`
	Time            time.Time         `json:"timestamp"`
	Error           string            `json:"error" doc:"Why it failed, such as net::ERR_CONNECTION_REFUSED; empty if it did not"`
	Post            string            `json:"post_data,omitempty"`
	Cached          bool              `json:"from_cache"`

	Done       bool    `json:"-"`
	StatusText string  `json:"-"`
	Protocol   string  `json:"-"`
	Remote     string  `json:"-"`
	Body       int64   `json:"-"` // bytes of the decoded body
	Redirect   string  `json:"-"`
	Timing     *Timing `json:"-"`

	session cdp.SessionID
	key     string
	start   float64 // monotonic
	Frame   string  `json:"-"`
}

// Timing contains the phases of a request in milliseconds after its start; -1 means none.
type Timing struct {
	RequestTime  float64 `json:"requestTime"`
	DNSStart     float64 `json:"dnsStart"`
	DNSEnd       float64 `json:"dnsEnd"`
	ConnectStart float64 `json:"connectStart"`
	ConnectEnd   float64 `json:"connectEnd"`
	SSLStart     float64 `json:"sslStart"`
	SSLEnd       float64 `json:"sslEnd"`
	SendStart    float64 `json:"sendStart"`
	SendEnd      float64 `json:"sendEnd"`
	HeadersEnd   float64 `json:"receiveHeadersEnd"`
}

// requestLog is the bounded log of a tab's requests.
type requestLog struct {
	list  []*Request
	byKey map[string]*Request // the latest with an id; redirects share theirs
	sent  int                 // number of all requests
	mark  int                 // value of sent when the last action started
	extra map[string]map[string]string
}

func (l *requestLog) add(r *Request) {
	if l.byKey == nil {
		l.byKey, l.extra = map[string]*Request{}, map[string]map[string]string{}
	}
	l.list = append(l.list, r)
	l.byKey[r.key] = r
	l.sent++
	if len(l.list) > maxRequests {
		old := l.list[0]
		l.list = l.list[1:]
		if l.byKey[old.key] == old {
			delete(l.byKey, old.key)
		}
	}
	if len(l.extra) > maxRequests {
		clear(l.extra)
	}
}

// abandon ends the requests of all documents except the one with a loader. The browser does not report their end.
func (l *requestLog) abandon(loader string) {
	for _, r := range l.list {
		if r.ID != loader {
			r.Done = true
		}
	}
}

// downloaded ends the request that became a download.
func (l *requestLog) downloaded(url string) {
	for _, r := range l.list {
		if r.URL == url && r.Type == "document" {
			r.Done = true
		}
	}
}

func key(e cdp.Event, id string) string { return string(e.Session) + " " + id }

type response struct {
	URL        string            `json:"url"`
	Status     int               `json:"status"`
	StatusText string            `json:"statusText"`
	Headers    map[string]string `json:"headers"`
	MIME       string            `json:"mimeType"`
	Protocol   string            `json:"protocol"`
	Remote     string            `json:"remoteIPAddress"`
	FromDisk   bool              `json:"fromDiskCache"`
	Timing     *Timing           `json:"timing"`
	Length     float64           `json:"encodedDataLength"`
}

func (r *Request) respond(p response, at float64) {
	r.Status, r.StatusText, r.MIME, r.Protocol, r.Remote, r.Timing = p.Status, p.StatusText, p.MIME, p.Protocol, p.Remote, p.Timing
	r.Size = int64(p.Length)
	r.Cached = r.Cached || p.FromDisk
	if r.ResponseHeaders == nil {
		r.ResponseHeaders = bounded(p.Headers)
	}
	r.Duration = (at - r.start) * 1000
}

func bounded(h map[string]string) map[string]string {
	size, out := 0, make(map[string]string, len(h))
	for k, v := range h {
		if size += len(k) + len(v); size > maxHeader {
			break
		}
		out[k] = v
	}
	return out
}

func (t *Tab) requestSent(e cdp.Event) {
	p := decode[struct {
		ID       string  `json:"requestId"`
		LoaderID string  `json:"loaderId"`
		FrameID  string  `json:"frameId"`
		Time     float64 `json:"timestamp"`
		Wall     float64 `json:"wallTime"`
		Type     string  `json:"type"`
		Request  struct {
			URL      string            `json:"url"`
			Fragment string            `json:"urlFragment"`
			Method   string            `json:"method"`
			Headers  map[string]string `json:"headers"`
			Post     string            `json:"postData"`
		} `json:"request"`
		Redirect *response `json:"redirectResponse"`
	}](e)
	k := key(e, p.ID)
	if old := t.log.byKey[k]; old != nil && p.Redirect != nil {
		old.respond(*p.Redirect, p.Time)
		old.Done, old.Redirect = true, p.Request.URL
	}
	if strings.HasPrefix(p.Request.URL, "data:") {
		return
	}
	r := &Request{
		ID: p.ID, Method: p.Request.Method, URL: p.Request.URL + p.Request.Fragment, Type: strings.ToLower(p.Type),
		RequestHeaders: bounded(p.Request.Headers), Time: time.UnixMicro(int64(p.Wall * 1e6)).UTC(),
		Post: p.Request.Post[:min(len(p.Request.Post), maxPost)], session: e.Session, key: k, start: p.Time, Frame: p.FrameID,
	}
	t.log.add(r)
	if h := t.log.extra[k]; h != nil {
		maps.Copy(r.RequestHeaders, h)
		delete(t.log.extra, k)
	}
	t.b.notify()
}

func (t *Tab) requestExtra(e cdp.Event) {
	p := decode[struct {
		ID      string            `json:"requestId"`
		Headers map[string]string `json:"headers"`
	}](e)
	k := key(e, p.ID)
	if r := t.log.byKey[k]; r != nil {
		r.RequestHeaders = bounded(p.Headers)
	} else if t.log.extra != nil && len(t.log.extra) < maxRequests {
		t.log.extra[k] = bounded(p.Headers)
	}
}

func (t *Tab) responseReceived(e cdp.Event) {
	p := decode[struct {
		ID       string   `json:"requestId"`
		Time     float64  `json:"timestamp"`
		Type     string   `json:"type"`
		Response response `json:"response"`
	}](e)
	if r := t.log.byKey[key(e, p.ID)]; r != nil {
		r.respond(p.Response, p.Time)
		t.b.notify()
	}
}

func (t *Tab) responseExtra(e cdp.Event) {
	p := decode[struct {
		ID      string            `json:"requestId"`
		Headers map[string]string `json:"headers"`
	}](e)
	if r := t.log.byKey[key(e, p.ID)]; r != nil {
		r.ResponseHeaders = bounded(p.Headers)
	}
}

func (t *Tab) dataReceived(e cdp.Event) {
	p := decode[struct {
		ID     string  `json:"requestId"`
		Length float64 `json:"dataLength"`
	}](e)
	if r := t.log.byKey[key(e, p.ID)]; r != nil {
		r.Body += int64(p.Length)
	}
}

func (t *Tab) loadingFinished(e cdp.Event) {
	p := decode[struct {
		ID     string  `json:"requestId"`
		Time   float64 `json:"timestamp"`
		Length float64 `json:"encodedDataLength"`
	}](e)
	if r := t.log.byKey[key(e, p.ID)]; r != nil {
		r.Done, r.Size, r.Duration = true, int64(p.Length), (p.Time-r.start)*1000
		t.b.notify()
	}
}

func (t *Tab) loadingFailed(e cdp.Event) {
	p := decode[struct {
		ID    string  `json:"requestId"`
		Time  float64 `json:"timestamp"`
		Error string  `json:"errorText"`
	}](e)
	if r := t.log.byKey[key(e, p.ID)]; r != nil {
		r.Done, r.Error, r.Duration = true, p.Error, (p.Time-r.start)*1000
		t.b.notify()
	}
}

func (t *Tab) fromCache(e cdp.Event) {
	p := decode[struct {
		ID string `json:"requestId"`
	}](e)
	if r := t.log.byKey[key(e, p.ID)]; r != nil {
		r.Cached = true
	}
}

// Requests lists the requests of the tab, oldest first.
func (t *Tab) Requests() []Request {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	list := make([]Request, 0, len(t.log.list))
	for _, r := range t.log.list {
		c := *r
		c.RequestHeaders, c.ResponseHeaders = maps.Clone(r.RequestHeaders), maps.Clone(r.ResponseHeaders)
		list = append(list, c)
	}
	return list
}

// Mark records the start of an action: Marked returns the number of requests before it.
func (t *Tab) Mark() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.log.mark = t.log.sent
}

// Marked returns the number of requests before the last action, from which a wait for its requests starts.
func (t *Tab) Marked() int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.log.mark
}

// Sent is the number of requests so far.
func (t *Tab) Sent() int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.log.sent
}

// AwaitRequest waits for a request, after the given number, that satisfies match.
func (t *Tab) AwaitRequest(ctx context.Context, after int, match func(*Request) bool) (Request, error) {
	var found Request
	err := t.b.await(ctx, func() (bool, error) {
		if t.closed {
			return false, ErrClosed
		}
		for i := max(0, len(t.log.list)-(t.log.sent-after)); i < len(t.log.list); i++ {
			if match(t.log.list[i]) {
				found = *t.log.list[i]
				return true, nil
			}
		}
		return false, nil
	})
	return found, err
}

// Busy returns the number of requests in progress except streams, which never end.
func (t *Tab) Busy() int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	n := 0
	for _, r := range t.log.list {
		if !r.Done && r.Type != "websocket" && r.Type != "eventsource" && r.Type != "ping" {
			n++
		}
	}
	return n
}

// AwaitIdle waits until no request was in progress for the duration quiet.
func (t *Tab) AwaitIdle(ctx context.Context, quiet time.Duration) error {
	for {
		err := t.b.await(ctx, func() (bool, error) {
			busy := 0
			for _, r := range t.log.list {
				if !r.Done && r.Type != "websocket" && r.Type != "eventsource" && r.Type != "ping" {
					busy++
				}
			}
			return busy == 0 && t.main != nil && t.main.states[DOMContentLoaded], t.check()
		})
		if err != nil {
			return err
		}
		before := t.Sent()
		timer := time.NewTimer(quiet)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		if t.Sent() == before && t.Busy() == 0 {
			return nil
		}
	}
}

// ResponseBody reads the body of a response if the browser still has it.
func (t *Tab) ResponseBody(ctx context.Context, r Request) ([]byte, error) {
	var out struct {
		Body   string `json:"body"`
		Base64 bool   `json:"base64Encoded"`
	}
	err := t.b.client.Call(ctx, r.session, "Network.getResponseBody", map[string]any{"requestId": r.ID}, &out)
	if err != nil {
		return nil, err
	}
	if out.Base64 {
		return base64.StdEncoding.DecodeString(out.Body)
	}
	return []byte(out.Body), nil
}

// MainStatus is the HTTP status of the page, 0 if it has none.
func (t *Tab) MainStatus() int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if t.main == nil {
		return 0
	}
	for i := len(t.log.list) - 1; i >= 0; i-- {
		if r := t.log.list[i]; r.ID == t.main.loader && r.Redirect == "" {
			return r.Status
		}
	}
	return 0
}
