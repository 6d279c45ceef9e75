package network

import (
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

const (
	maxBody   = 1 << 20  // of one response
	maxBodies = 64 << 20 // of all
)

// The supported fields of HTTP Archive (HAR) 1.2.
type (
	archive struct {
		Log log `json:"log"`
	}
	log struct {
		Version string  `json:"version"`
		Creator creator `json:"creator"`
		Pages   []page  `json:"pages"`
		Entries []entry `json:"entries"`
	}
	creator struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	page struct {
		Started time.Time      `json:"startedDateTime"`
		ID      string         `json:"id"`
		Title   string         `json:"title"`
		Timings map[string]any `json:"pageTimings"`
	}
	entry struct {
		Page     string             `json:"pageref"`
		Started  time.Time          `json:"startedDateTime"`
		Time     float64            `json:"time"`
		Request  request            `json:"request"`
		Response response           `json:"response"`
		Cache    map[string]any     `json:"cache"`
		Timings  map[string]float64 `json:"timings"`
		Server   string             `json:"serverIPAddress,omitempty"`
		Type     string             `json:"_resourceType,omitempty"`
	}
	pair struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	request struct {
		Method      string `json:"method"`
		URL         string `json:"url"`
		HTTPVersion string `json:"httpVersion"`
		Cookies     []pair `json:"cookies"`
		Headers     []pair `json:"headers"`
		Query       []pair `json:"queryString"`
		Post        *post  `json:"postData,omitempty"`
		HeadersSize int    `json:"headersSize"`
		BodySize    int    `json:"bodySize"`
	}
	post struct {
		MIME   string `json:"mimeType"`
		Params []pair `json:"params"`
		Text   string `json:"text"`
	}
	response struct {
		Status      int      `json:"status"`
		StatusText  string   `json:"statusText"`
		HTTPVersion string   `json:"httpVersion"`
		Cookies     []cookie `json:"cookies"`
		Headers     []pair   `json:"headers"`
		Content     content  `json:"content"`
		RedirectURL string   `json:"redirectURL"`
		HeadersSize int      `json:"headersSize"`
		BodySize    int64    `json:"bodySize"`
		Error       string   `json:"_error,omitempty"`
	}
	cookie struct {
		Name     string     `json:"name"`
		Value    string     `json:"value"`
		Path     string     `json:"path,omitempty"`
		Domain   string     `json:"domain,omitempty"`
		Expires  *time.Time `json:"expires,omitempty"`
		HTTPOnly bool       `json:"httpOnly"`
		Secure   bool       `json:"secure"`
		SameSite string     `json:"sameSite,omitempty"`
	}
	content struct {
		Size     int64  `json:"size"`
		MIME     string `json:"mimeType"`
		Text     string `json:"text,omitempty"`
		Encoding string `json:"encoding,omitempty"`
	}
)

// newArchive describes the requests of a tab, optionally with the response bodies that the browser still has.
func newArchive(ctx context.Context, t *tab.Tab, bodies bool) archive {
	const ref = "page_1"
	out := log{Version: "1.2", Creator: creator{"aio", "1"}, Entries: []entry{}}
	total := 0
	for _, r := range t.Requests() {
		e := newEntry(r)
		e.Page = ref
		if bodies && r.Done && r.Error == "" && r.Redirect == "" && r.Body <= maxBody && total < maxBodies {
			if b, err := t.ResponseBody(ctx, r); err == nil && len(b) <= maxBody {
				total += len(b)
				e.Response.Content.Size = int64(len(b))
				if utf8.Valid(b) {
					e.Response.Content.Text = string(b)
				} else {
					e.Response.Content.Text, e.Response.Content.Encoding = base64.StdEncoding.EncodeToString(b), "base64"
				}
			}
		}
		out.Entries = append(out.Entries, e)
	}
	began := time.Now().UTC()
	if len(out.Entries) > 0 {
		began = out.Entries[0].Started
	}
	out.Pages = []page{{Started: began, ID: ref, Title: t.URL(), Timings: map[string]any{"onContentLoad": -1, "onLoad": -1}}}
	return archive{out}
}

func newEntry(r tab.Request) entry {
	version := strings.ToUpper(r.Protocol)
	if version == "H2" {
		version = "HTTP/2.0"
	}
	if version == "" {
		version = "unknown"
	}
	e := entry{
		Started: r.Time, Time: max(r.Duration, 0), Cache: map[string]any{}, Server: r.Remote, Type: r.Type,
		Request: request{
			Method: r.Method, URL: r.URL, HTTPVersion: version, Cookies: requestCookies(r.RequestHeaders),
			Headers: pairs(r.RequestHeaders), Query: query(r.URL), HeadersSize: -1, BodySize: len(r.Post),
		},
		Response: response{
			Status: r.Status, StatusText: r.StatusText, HTTPVersion: version,
			Cookies: responseCookies(r.ResponseHeaders), Headers: pairs(r.ResponseHeaders), RedirectURL: r.Redirect,
			Content: content{Size: r.Body, MIME: r.MIME}, HeadersSize: -1, BodySize: r.Size, Error: r.Error,
		},
	}
	if e.Response.Content.MIME == "" {
		e.Response.Content.MIME = "x-unknown"
	}
	e.Server = strings.Trim(e.Server, "[]")
	if r.Post != "" {
		e.Request.Post = &post{MIME: header(r.RequestHeaders, "Content-Type"), Text: r.Post, Params: []pair{}}
	}
	e.Timings = timings(r)
	return e
}

func timings(r tab.Request) map[string]float64 {
	out := map[string]float64{"blocked": -1, "dns": -1, "connect": -1, "ssl": -1, "send": 0, "wait": max(r.Duration, 0), "receive": 0}
	t := r.Timing
	if t == nil {
		return out
	}
	span := func(a, b float64) float64 {
		if a < 0 || b < a {
			return -1
		}
		return b - a
	}
	out["dns"], out["connect"], out["ssl"] = span(t.DNSStart, t.DNSEnd), span(t.ConnectStart, t.ConnectEnd), span(t.SSLStart, t.SSLEnd)
	out["send"], out["wait"] = max(span(t.SendStart, t.SendEnd), 0), max(span(t.SendEnd, t.HeadersEnd), 0)
	out["receive"] = max(r.Duration-t.HeadersEnd, 0)
	return out
}

func pairs(h map[string]string) []pair {
	list := []pair{}
	for _, k := range slices.Sorted(maps.Keys(h)) {
		for v := range strings.SplitSeq(h[k], "\n") {
			list = append(list, pair{k, v})
		}
	}
	return list
}

func header(h map[string]string, name string) string {
	for k, v := range h {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

func query(address string) []pair {
	list := []pair{}
	u, err := url.Parse(address)
	if err != nil {
		return list
	}
	for _, k := range slices.Sorted(maps.Keys(u.Query())) {
		for _, v := range u.Query()[k] {
			list = append(list, pair{k, v})
		}
	}
	return list
}

func requestCookies(h map[string]string) []pair {
	list := []pair{}
	cookies, err := http.ParseCookie(header(h, "Cookie"))
	if err != nil {
		return list
	}
	for _, c := range cookies {
		list = append(list, pair{c.Name, c.Value})
	}
	return list
}

var sameSite = map[http.SameSite]string{http.SameSiteLaxMode: "Lax", http.SameSiteStrictMode: "Strict", http.SameSiteNoneMode: "None"}

func responseCookies(h map[string]string) []cookie {
	list := []cookie{}
	for line := range strings.SplitSeq(header(h, "Set-Cookie"), "\n") {
		c, err := http.ParseSetCookie(line)
		if err != nil {
			continue
		}
		one := cookie{Name: c.Name, Value: c.Value, Path: c.Path, Domain: c.Domain, HTTPOnly: c.HttpOnly,
			Secure: c.Secure, SameSite: sameSite[c.SameSite]}
		if !c.Expires.IsZero() {
			one.Expires = &c.Expires
		}
		list = append(list, one)
	}
	return list
}
