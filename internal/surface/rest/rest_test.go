package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/cove-sandbox/cove/internal/api/op"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type none struct{}
type sayIn struct {
	Text string `json:"text" doc:"Text"`
	Mode string `json:"mode" doc:"Mode" default:"ok"`
}
type sayOut struct {
	Text string   `json:"text"`
	List []string `json:"list"`
}
type pathIn struct {
	ID string `path:"id" doc:"Id"`
	N  int    `query:"n" doc:"N" default:"1"`
}
type uploadIn struct {
	File *op.File `form:"file" doc:"File"`
	Path string   `form:"path" doc:"Path"`
	Note string   `form:"note,omitempty" doc:"Note"`
}

func say(ctx context.Context, in sayIn) (sayOut, error) {
	switch in.Mode {
	case "panic":
		panic("oh")
	case "ours":
		return sayOut{}, errors.New("a secret detail")
	case "missing":
		return sayOut{}, &op.Error{Code: op.NotFound, Msg: "no such thing; make one", Hint: "try again", Data: map[string]any{"path": "/x"}}
	case "big":
		return sayOut{Text: strings.Repeat("compress me ", 1000)}, nil
	case "hint":
		op.Say(ctx, "said")
		op.Hint(ctx, "next time louder")
	}
	return sayOut{Text: in.Text}, nil
}

func upload(_ context.Context, in uploadIn) (sayOut, error) {
	b, err := io.ReadAll(in.File)
	return sayOut{Text: in.Path + ":" + in.File.Name + ":" + string(b) + ":" + in.Note}, err
}

func count(_ context.Context, in pathIn, send func(op.Event) error) error {
	if in.ID == "none" {
		return op.Errorf(op.NotFound, "no stream %s", in.ID)
	}
	for i := range in.N {
		if err := send(op.Event{ID: in.ID, Name: "tick", Data: i}); err != nil {
			return err
		}
	}
	if in.ID == "breaks" {
		return op.Errorf(op.Unavailable, "it broke")
	}
	return nil
}

func echo(ctx context.Context, _ none, c op.Conn) error {
	for {
		b, text, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if string(b) == "bye" {
			return nil
		}
		if err := c.Write(ctx, b, text); err != nil {
			return err
		}
	}
}

func fetch(_ context.Context, in pathIn) (*op.Blob, error) {
	switch in.ID {
	case "missing":
		return nil, op.Errorf(op.NotFound, "no such file")
	case "breaks":
		return &op.Blob{Size: 100, Body: io.NopCloser(io.MultiReader(strings.NewReader("part"), badReader{}))}, nil
	}
	return &op.Blob{Type: "text/plain", Name: "grüße.txt", ETag: `"1"`, Body: seekable{strings.NewReader("0123456789")}}, nil
}

type badReader struct{}

func (badReader) Read([]byte) (int, error) { return 0, errors.New("disk gone") }

// logBuffer is a log that the server writes and the test reads concurrently.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t *testing.T) (*httptest.Server, *logBuffer) {
	t.Helper()
	spec := func(name, route string, style op.Style) op.Spec {
		return op.Spec{Name: name, Content: op.ContentAPI, Route: route, Tag: "t", Doc: "Doc.", Style: style}
	}
	upl := spec("upload", "POST /v1/upload", op.Enveloped)
	var table *op.Table
	table = op.NewTable([]op.Op{
		op.New(spec("say", "POST /v1/say", op.Enveloped), say),
		op.New(spec("res", "POST /v1/res", op.Resource), say),
		op.New(upl, upload),
		op.Stream[pathIn, int](spec("count", "GET /v1/count/{id}", op.Enveloped), count),
		op.Duplex(spec("echo", "GET /v1/ws", op.Enveloped), echo),
		op.New(spec("fetch", "GET /v1/fetch/{id}", op.Enveloped), fetch),
	}, Docs("T", "1", func() *op.Table { return table }, Guest, fstest.MapFS{"docs/index.html": {Data: []byte("<p>docs")}}))
	log := &logBuffer{}
	s := httptest.NewServer(New(Config{Table: table, MaxBody: 1 << 20, Log: slog.New(slog.NewTextHandler(log, nil))}))
	t.Cleanup(func() { s.Close(); http.DefaultClient.CloseIdleConnections() })
	return s, log
}

func do(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// TestRouting compares the server with an http.ServeMux of the same routes.
func TestRouting(t *testing.T) {
	spec := func(name, route string, also ...string) op.Spec {
		return op.Spec{Name: name, Content: op.ContentAPI, Route: route, Also: also, Tag: "t", Doc: "Doc."}
	}
	var list []op.Op
	plain := http.NewServeMux()
	for _, s := range []op.Spec{
		spec("post", "POST /v1/a"), spec("get", "GET /v1/a", "GET /v1/also"), spec("one", "GET /v1/a/{id}"),
		spec("special", "GET /v1/a/special"), spec("any", "/v1/any"),
		spec("tree", "GET /v1/tree/"), spec("root", "GET /{$}"), spec("rest", "/v1/rest/{path...}"),
		spec("escaped", "GET /v1/with-dash_and.dot"), spec("head", "HEAD /v1/headed"), spec("headed", "GET /v1/headed"),
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Op", s.Name+" "+r.PathValue("id")+r.PathValue("path"))
		})
		list = append(list, op.Handle(s, h))
		for _, route := range append([]string{s.Route}, s.Also...) {
			plain.Handle(route, h)
		}
	}
	ours := New(Config{Table: op.NewTable(list)})
	for _, path := range []string{
		"/", "/v1/a", "/v1/a/", "/v1/a?x=1", "/v1/%61", "/v1%2Fa", "/v1//a", "/v1/./a", "/v1/x/../a", "/v1/a/special",
		"/v1/a/sp%65cial", "/v1/a/other", "/v1/a/x%2Fy", "/v1/also", "/v1/any", "/v1/any/",
		"/v1/tree", "/v1/tree/", "/v1/tree/x", "/v1/rest/a/b", "/v1/rest", "/v1/with-dash_and.dot",
		"/v1/with%2Ddash_and.dot", "/v1/headed", "/v1/none", "/V1/A", "/v1/a%20", "/v1/a%00", "//v1/a",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "OPTIONS", "get"} {
			want, got := httptest.NewRecorder(), httptest.NewRecorder()
			plain.ServeHTTP(want, httptest.NewRequest(method, path, nil))
			if _, pattern := plain.Handler(httptest.NewRequest(method, path, nil)); pattern == "" && want.Code == http.StatusTemporaryRedirect {
				want = httptest.NewRecorder() // the mux redirects to a route that does not exist; we reply at once
				want.Code = http.StatusNotFound
			}
			ours.ServeHTTP(got, httptest.NewRequest(method, path, nil))
			for _, h := range []string{"Op", "Allow", "Location"} {
				if w, g := want.Header().Get(h), got.Header().Get(h); w != g {
					t.Errorf("%s %s: got %s %q, want %q as from the mux", method, path, h, g, w)
				}
			}
			if want.Code != got.Code {
				t.Errorf("%s %s: got %d, want %d as from the mux", method, path, got.Code, want.Code)
			}
		}
	}
}

func TestReplies(t *testing.T) {
	s, log := start(t)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"success", "POST", "/v1/say", `{"text":"hi"}`, 200,
			`{"success":true,"message":"Operation successful","data":{"text":"hi","list":[]},"hint":null}`},
		{"message and hint", "POST", "/v1/say", `{"text":"hi","mode":"hint"}`, 200, `"message":"said"`},
		{"resource", "POST", "/v1/res", `{"text":"<b>"}`, 200, `{"text":"<b>","list":[]}`},
		{"failed operation", "POST", "/v1/say", `{"text":"","mode":"missing"}`, 200,
			`{"success":false,"message":"no such thing; make one","data":{"path":"/x"},"hint":"try again"}`},
		{"failed resource", "POST", "/v1/res", `{"text":"","mode":"missing"}`, 404, `"detail":"no such thing; make one"`},
		{"our fault", "POST", "/v1/say", `{"text":"","mode":"ours"}`, 500, `under request ID `},
		{"panic", "POST", "/v1/say", `{"text":"","mode":"panic"}`, 500, `under request ID `},
		{"input", "POST", "/v1/say", `{"text":5}`, 422, `{"detail":[{"type":"string_type","loc":["body","text"],"msg":`},
		{"no body", "POST", "/v1/say", ``, 422, `"type":"missing"`},
		{"too large", "POST", "/v1/say", `{"text":"` + strings.Repeat("x", 2<<20) + `"}`, 413, `larger than the limit`},
		{"unknown route", "GET", "/v1/none", ``, 404, `Not Found`},
		{"wrong method", "GET", "/v1/say", ``, 405, `Method Not Allowed: use POST`},
		{"not a websocket", "GET", "/v1/ws", ``, 426, `WebSocket endpoint`},
		{"blob missing", "GET", "/v1/fetch/missing", ``, 404, `no such file`},
		{"stream missing", "GET", "/v1/count/none", ``, 200, `"success":false`},
		{"docs", "GET", "/v1/docs", ``, 200, `<p>docs`},
		{"llms", "GET", "/llms.txt", ``, 200, "`POST /v1/say` (tool `say`): Doc. Fields (* required): `text`*, `mode`."},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, body := do(t, c.method, s.URL+c.path, c.body)
			if res.StatusCode != c.status || !strings.Contains(body, c.want) {
				t.Errorf("got %d %s\nwant %d %s", res.StatusCode, body, c.status, c.want)
			}
			if strings.Contains(body, "secret") {
				t.Errorf("got %s, want no internal error in it", body)
			}
			if id := res.Header.Get("X-Request-Id"); id == "" || c.status == 500 && !strings.Contains(body, id) {
				t.Errorf("got request ID %q and body %s, want the ID in both", id, body)
			}
		})
	}
	for _, want := range []string{"a secret detail", "request panicked", "rest_test.go"} { // the last is in the stack
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

func TestGzipWhereItHelps(t *testing.T) {
	s, _ := start(t)
	res, body := do(t, "POST", s.URL+"/v1/say", `{"text":"","mode":"big"}`, "Accept-Encoding", "br, gzip")
	if res.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("got encoding %q, want gzip", res.Header.Get("Content-Encoding"))
	}
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || !json.Valid(b) {
		t.Errorf("got error %v and %.100q, want JSON", err, b)
	}
	for _, accept := range []string{"identity", "gzip;q=0"} {
		if res, _ := do(t, "POST", s.URL+"/v1/say", `{"text":"","mode":"big"}`, "Accept-Encoding",
			accept); res.Header.Get("Content-Encoding") != "" {
			t.Errorf("Accept-Encoding %q: got encoding %q, want none", accept, res.Header.Get("Content-Encoding"))
		}
	}
}

func TestDownload(t *testing.T) {
	s, _ := start(t)
	res, body := do(t, "GET", s.URL+"/v1/fetch/a", "", "Range", "bytes=2-4")
	if res.StatusCode != 206 || body != "234" {
		t.Errorf("range: got %d %q, want 206 234", res.StatusCode, body)
	}
	if d := res.Header.Get("Content-Disposition"); !strings.Contains(d, "filename*=utf-8''gr%C3%BC%C3%9Fe.txt") {
		t.Errorf("got disposition %q, want the file name in UTF-8", d)
	}
	if res, _ := do(t, "GET", s.URL+"/v1/fetch/a", "", "If-None-Match", `"1"`); res.StatusCode != 304 {
		t.Errorf("If-None-Match: got %d, want 304", res.StatusCode)
	}
	if res, err := http.Get(s.URL + "/v1/fetch/breaks"); err == nil {
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("partial download: got %q without an error, want one", b)
		}
	}
}

func TestStream(t *testing.T) {
	s, _ := start(t)
	res, body := do(t, "GET", s.URL+"/v1/count/x?n=2", "")
	if want := "id: x\nevent: tick\ndata: 0\n\nid: x\nevent: tick\ndata: 1\n\n"; body != want ||
		res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %s %q, want text/event-stream %q", res.Header.Get("Content-Type"), body, want)
	}
	if _, body := do(t, "GET", s.URL+"/v1/count/breaks?n=1", ""); !strings.Contains(body,
		"event: error\ndata: {\"success\":false,\"message\":\"it broke\"") {
		t.Errorf("got %q, want an error event", body)
	}
}

func TestUpload(t *testing.T) {
	s, _ := start(t)
	for _, c := range []struct {
		name   string
		fields []string // name=value, file parts start with @
		want   string
	}{
		{"fields first", []string{"path=/p", "note=n", "@file=data"}, `"text":"/p:f.txt:data:n"`},
		{"file first", []string{"@file=data", "path=/p", "note=n"}, `"text":"/p:f.txt:data:n"`},
		{"unknown parts", []string{"path=/p", "@file=data", "zzz=1"}, `"text":"/p:f.txt:data:"`},
		{"field after the file", []string{"path=/p", "@file=data", "note=n"}, `"text":"/p:f.txt:data:n"`},
		{"field twice", []string{"path=/p", "note=n", "@file=data", "note=m"}, `was sent twice`},
		{"file missing", []string{"path=/p"}, `"loc":["body","file"]`},
		{"field missing", []string{"@file=data"}, `"loc":["body","path"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			w := multipart.NewWriter(&b)
			for _, f := range c.fields {
				name, value, _ := strings.Cut(strings.TrimPrefix(f, "@"), "=")
				if strings.HasPrefix(f, "@") {
					p, _ := w.CreateFormFile(name, "f.txt")
					io.WriteString(p, value)
				} else {
					w.WriteField(name, value)
				}
			}
			w.Close()
			_, body := do(t, "POST", s.URL+"/v1/upload", b.String(), "Content-Type", w.FormDataContentType())
			if !strings.Contains(body, c.want) {
				t.Errorf("got %s, want %s", body, c.want)
			}
		})
	}
	for _, media := range []string{"application/json", "multipart/form-data", "multipart/form-data; boundary=x"} {
		if res, body := do(t, "POST", s.URL+"/v1/upload", "garbage", "Content-Type", media); res.StatusCode != 422 {
			t.Errorf("%s: got %d %s, want 422", media, res.StatusCode, body)
		}
	}
}

func TestDuplex(t *testing.T) {
	s, _ := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, s.URL+"/v1/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.Write(ctx, websocket.MessageText, []byte("hello"))
	if kind, b, err := c.Read(ctx); err != nil || string(b) != "hello" || kind != websocket.MessageText {
		t.Fatalf("got %q and error %v, want hello", b, err)
	}
	c.Write(ctx, websocket.MessageText, []byte("bye"))
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("got %v, want a normal closure", err)
	}
}

// seekable is a body that can be read in ranges.
type seekable struct{ io.ReadSeeker }

func (seekable) Close() error { return nil }
