package envd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newService creates a service with real processes and its own home.
func newService(t *testing.T) *Service {
	t.Helper()
	testenv.Need(t, "bash")
	home := t.TempDir()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}})
	s := New(Config{Runner: runner, Home: home})
	t.Cleanup(func() {
		s.Close()
		s.Close()
		runner.Close()
	})
	return s
}

// call sends a unary call.
func call(t *testing.T, s *Service, method, body string) (int, string) {
	t.Helper()
	return send(t, s, http.MethodPost, "/"+method, body, "Content-Type", "application/json")
}

func send(t *testing.T, s *Service, method, target, body string, header ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// result is the content of the event stream of a process.
type result struct {
	pid         int
	out, errors string
	pty         string
	inOrder     bool // the first event was the start
	end         *ended
	fault       string // error of the stream
}

// start runs a process until it ends.
func start(t *testing.T, s *Service, body string, header ...string) result {
	t.Helper()
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	status, text := send(t, s, http.MethodPost, "/process.Process/Start", string(frame),
		append([]string{"Content-Type", "application/connect+json"}, header...)...)
	if status != http.StatusOK {
		t.Fatalf("start %s: got %d %s, want a stream", body, status, text)
	}
	return decodeEvents(t, text)
}

func decodeEvents(t *testing.T, stream string) (r result) {
	t.Helper()
	for in := strings.NewReader(stream); ; {
		var head [5]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			t.Fatalf("got a stream without an end: %q", stream)
		}
		message := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(in, message); err != nil {
			t.Fatalf("got half a message: %q", stream)
		}
		if head[0] == 2 {
			r.fault = string(message)
			return r
		}
		var e eventOut
		if err := json.Unmarshal(message, &e); err != nil {
			t.Fatalf("got %s: %v", message, err)
		}
		switch {
		case e.Event.Start != nil:
			r.pid, r.inOrder = e.Event.Start.PID, r.out+r.errors+r.pty == "" && r.end == nil
		case e.Event.Data != nil:
			r.out += string(e.Event.Data.Stdout)
			r.errors += string(e.Event.Data.Stderr)
			r.pty += string(e.Event.Data.Pty)
		case e.Event.End != nil:
			r.end = e.Event.End
		}
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	s := newService(t)
	r := start(t, s, `{"process":{"cmd":"/bin/bash","args":["-c","echo out; echo err >&2; echo $V `+
		`$E2B_SANDBOX_ID"],"envs":{"V":"v"}},"stdin":false}`, "E2b-Sandbox-Id", "sb0")
	if r.pid == 0 || r.out != "out\nv sb0\n" || r.errors != "err\n" || r.end == nil || r.end.ExitCode != 0 ||
		!r.end.Exited || r.end.Error != nil || r.fault != "{}" {
		t.Errorf("got %+v %+v, want its output and success", r, r.end)
	}
	// The start event precedes the output, even if the process is faster than the server.
	for i := range 200 {
		if r := start(t, s, `{"process":{"cmd":"/bin/echo","args":["x"]},"stdin":false}`); !r.inOrder || r.out != "x\n" {
			t.Fatalf("command %d: got %+v, want its start first", i, r)
		}
	}
	r = start(t, s, `{"process":{"cmd":"/bin/bash","args":["-c","exit 3"]}}`)
	if r.end == nil || r.end.ExitCode != 3 || r.end.Error == nil || *r.end.Error != "exit status 3" {
		t.Errorf("got %+v, want exit status 3", r.end)
	}
	r = start(t, s, `{"process":{"cmd":"/bin/bash","args":["-c","kill -9 $$"]}}`)
	if r.end == nil || r.end.ExitCode != -1 || r.end.Exited || r.end.Status != "signal: killed" {
		t.Errorf("got %+v, want a kill", r.end)
	}
	r = start(t, s, `{"process":{"cmd":"/bin/bash","args":["-c","stty size"]},"pty":{"size":{"cols":70,"rows":20}}}`)
	if strings.TrimSpace(r.pty) != "20 70" || r.end == nil {
		t.Errorf("got %+v, want the size of the terminal", r)
	}
	r = start(t, s, `{"process":{"cmd":"/bin/sleep","args":["300"]}}`, "Connect-Timeout-Ms", "50")
	if !strings.Contains(r.fault, `"deadline_exceeded"`) {
		t.Errorf("got %+v, want deadline_exceeded", r)
	}
	testenv.Poll(t, "the command is killed", func() bool { return s.Running() == 0 })
}

// A failed start leaves no state, for which Close would wait.
func TestRefusedStarts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for body, want := range map[string]string{
		`{"process":{"cmd":"/bin/true","cwd":"/none"}}`:                 `"invalid_argument"`,
		`{"process":{"cmd":"/bin/true","cwd":"/etc/passwd"}}`:           `"invalid_argument"`,
		`{"process":{"cmd":"/bin/true","envs":{"A=B":"x"}}}`:            `"invalid_argument"`,
		`{"process":{"cmd":"/no/such/program"}}`:                        `"invalid_argument"`,
		`{"process":{"cmd":""}}`:                                        `"code"`,
		`{"process":{"cmd":"/bin/true"},"pty":{"size":{"cols":-1}}}`:    `"invalid_argument"`,
		`{"process":{"cmd":"/bin/true","cwd":"~root/x"}}`:               `"invalid_argument"`,
		`{"process":{"cmd":"/bin/true","cwd":"a\u0000b"}}`:              `"invalid_argument"`,
		`{"process":{"cmd":"/bin/true","args":["x\u0000y"]}}`:           `"code"`,
		`{"process":{"cmd":"/no/such/program"},"pty":{"size":{}}}`:      `"invalid_argument"`,
		`{"process":{"cmd":"/bin/true"},"pty":{"size":{"cols":99999}}}`: `"invalid_argument"`,
	} {
		if r := start(t, s, body); !strings.Contains(r.fault, want) || r.pid != 0 {
			t.Errorf("%s: got %+v, want an error with %s", body, r, want)
		}
	}
	if r := start(t, s, `{"process":{"cmd":"/bin/true"}}`, "Authorization",
		"Basic "+base64.StdEncoding.EncodeToString([]byte("no-such-user:"))); !strings.Contains(r.fault, `"unauthenticated"`) {
		t.Errorf("unknown user: got %+v, want unauthenticated", r)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Close() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the service does not close after starts that were refused")
	}
	if r := start(t, s, `{"process":{"cmd":"/bin/true"}}`); !strings.Contains(r.fault, `"unavailable"`) {
		t.Errorf("after Close: got %+v, want unavailable", r)
	}
}

func TestInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	done := make(chan result, 1)
	go func() { done <- start(t, s, `{"process":{"cmd":"/bin/cat"},"tag":"cat","stdin":true}`) }()
	by := `{"process":{"tag":"cat"}`
	testenv.Poll(t, "the process runs", func() bool { return s.Running() == 1 })
	for _, c := range []struct {
		method, body string
		want         int
	}{
		{"SendInput", by + `,"input":{"stdin":"b25lCg=="}}`, 200},
		{"SendInput", by + `,"input":{"pty":"eA=="}}`, 400},
		{"SendInput", by + `,"input":{"stdin":"%"}}`, 400},
		{"SendInput", `{"process":{"pid":1},"input":{"stdin":"eA=="}}`, 404},
		{"SendInput", `{"process":{}}`, 400},
		{"Update", by + `,"pty":{"size":{"cols":80,"rows":24}}}`, 400},
		{"SendSignal", by + `,"signal":"SIGNAL_SIGSTOP"}`, 400},
		{"SendSignal", by + `,"signal":19}`, 400},
		{"CloseStdin", by + `}`, 200},
	} {
		if status, body := call(t, s, "process.Process/"+c.method, c.body); status != c.want {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.body, status, body, c.want)
		}
	}
	if r := <-done; r.out != "one\n" || r.end == nil || r.end.ExitCode != 0 {
		t.Errorf("got %+v, want the input and success", r)
	}
	if status, body := call(t, s, "process.Process/CloseStdin", by+"}"); status != 404 {
		t.Errorf("after its end: got %d %s, want 404", status, body)
	}
	if status, body := call(t, s, "process.Process/List", "{}"); status != 200 || body != "{}" {
		t.Errorf("got %d %s, want no process", status, body)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	a := account{name: "user", home: "/home/x"}
	for path, want := range map[string]string{
		"": "/home/x", "~": "/home/x", "~/a": "/home/x/a", "a/b": "/home/x/a/b", "/a/../b": "/b", "../y": "/home/y",
		"./a//b/": "/home/x/a/b", "~root": "", "~root/a": "", "a\x00b": "",
	} {
		got, err := a.resolve(path)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: got %q and error %v, want %q", path, got, err, want)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	at := func(name string) string { return "/files?path=" + filepath.Join(dir, name) }
	const octets = "application/octet-stream"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write([]byte("zipped"))
	z.Close()
	var form bytes.Buffer
	m := multipart.NewWriter(&form)
	part, err := m.CreateFormFile("file", filepath.Join(dir, "form/deep/f.txt"))
	if err != nil {
		t.Fatal(err)
	}
	part.Write([]byte("in a form"))
	m.Close()
	for _, c := range []struct {
		what, method, target, body string
		want                       int
		says                       string
		header                     []string
	}{
		{"write", "POST", at("a/b.txt"), "hello", 200, `"name":"b.txt"`, []string{"Content-Type", octets}},
		{"read", "GET", at("a/b.txt"), "", 200, "hello", nil},
		{"range", "GET", at("a/b.txt"), "", 206, "ell", []string{"Range", "bytes=1-3"}},
		{"range past the end", "GET", at("a/b.txt"), "", 416, "", []string{"Range", "bytes=50-"}},
		{"replace", "POST", at("a/b.txt"), "x", 200, "b.txt", []string{"Content-Type", octets}},
		{"read again", "GET", at("a/b.txt"), "", 200, "x", nil},
		{"gzip", "POST", at("z"), zipped.String(), 200, `"z"`, []string{"Content-Type", octets, "Content-Encoding", "gzip"}},
		{"unzipped", "GET", at("z"), "", 200, "zipped", nil},
		{"not gzip", "POST", at("z"), "plain", 400, "gzip", []string{"Content-Type", octets, "Content-Encoding", "gzip"}},
		{"cut gzip", "POST", at("z"), zipped.String()[:zipped.Len()-4], 500, "", []string{"Content-Type", octets, "Content-Encoding", "gzip"}},
		{"other encoding", "POST", at("z"), "x", 400, "br", []string{"Content-Type", octets, "Content-Encoding", "br"}},
		{"form", "POST", "/files", form.String(), 200, "f.txt", []string{"Content-Type", m.FormDataContentType()}},
		{"from the form", "GET", at("form/deep/f.txt"), "", 200, "in a form", nil},
		{"empty form", "POST", "/files", "--x--\r\n", 400, "no part", []string{"Content-Type", "multipart/form-data; boundary=x"}},
		{"no type", "POST", at("z"), "x", 400, "Content-Type", nil},
		{"no path", "POST", "/files", "x", 400, "path is missing", []string{"Content-Type", octets}},
		{"missing", "GET", at("none"), "", 404, "none", nil},
		{"folder", "GET", at("a"), "", 400, "not a file", nil},
		{"over a folder", "POST", at("a"), "x", 400, "folder", []string{"Content-Type", octets}},
		{"below a file", "POST", at("z/y"), "x", 400, "", []string{"Content-Type", octets}},
		{"long metadata", "POST", at("z"), "x", 400, "printable", []string{"Content-Type", octets, "X-Metadata-K", strings.Repeat("x", 5000)}},
		{"home of others", "GET", "/files?path=~root/x", "", 400, "~USER", nil},
		{"init", "POST", "/init", "{}", 404, "no such route", nil},
	} {
		status, body := send(t, s, c.method, c.target, c.body, c.header...)
		if status != c.want || !strings.Contains(body, c.says) {
			t.Errorf("%s: got %d %q, want %d with %q", c.what, status, body, c.want, c.says)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		method, body string
		want         int
	}{
		{"Stat", `{"path":"` + in("a/b.txt") + `"}`, 200},
		{"Stat", `{"path":"` + in("none") + `"}`, 404},
		{"MakeDir", `{"path":"` + in("new/deep") + `"}`, 200},
		{"MakeDir", `{"path":"` + in("new/deep") + `"}`, 409},
		{"MakeDir", `{"path":"` + in("z") + `"}`, 400},
		{"Move", `{"source":"` + in("z") + `","destination":"` + in("far/away/z") + `"}`, 200},
		{"Move", `{"source":"` + in("z") + `","destination":"` + in("y") + `"}`, 404},
		{"ListDir", `{"path":"` + in("far") + `","depth":2}`, 200},
		{"ListDir", `{"path":"` + in("far/away/z") + `"}`, 400},
		{"ListDir", `{"path":"` + in("none") + `"}`, 404},
		{"Remove", `{"path":"` + in("far") + `"}`, 200},
		{"Remove", `{"path":"` + in("far") + `"}`, 200},
	} {
		if status, body := call(t, s, "filesystem.Filesystem/"+c.method, c.body); status != c.want {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.body, status, body, c.want)
		}
	}
}

// Files and folders that root creates for a user belong to that user. Existing folders keep their owner.
func TestCreateForUser(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	for _, c := range []struct{ verb, to, body string }{{"mkdir", "a/b", ""}, {"write", "c/d/file", "text"}} {
		request, err := json.Marshal(helpIn{Path: filepath.Join(dir, c.to), Owner: &owner{1234, 1235}})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = Help([]string{c.verb, string(request)}, strings.NewReader(c.body), &out, nil)
		if err != nil || strings.Contains(out.String(), "error") {
			t.Fatalf("%s: got %s %v, want success", c.verb, &out, err)
		}
	}
	for name, want := range map[string]uint32{"": 0, "a": 1234, "a/b": 1234, "c": 1234, "c/d": 1234, "c/d/file": 1234} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Uid; got != want {
			t.Errorf("owner of %q: got %d, want %d", name, got, want)
		}
	}
}

// A subscriber that does not read is disconnected, and its queue is limited.
func TestSlowSubscribers(t *testing.T) {
	t.Parallel()
	var p topic
	slow, gone := p.subscribe(), p.subscribe()
	gone.leave()
	piece := event{Data: &data{Stdout: make([]byte, 8<<20)}}
	for range maxQueue/(8<<20) + 1 {
		slow.push(piece)
	}
	if _, err := slow.next(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "not read in time") {
		t.Errorf("got %v, want an error about slow reading", err)
	}
	p.finish(event{End: &ended{ExitCode: 7}})
	late := p.subscribe()
	if e, err := late.next(t.Context(), nil); err != nil || e.End == nil || e.End.ExitCode != 7 {
		t.Errorf("late: got %+v and error %v, want the end", e, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := late.next(ctx, nil); err == nil {
		t.Error("got an event after the end, want none")
	}
	if got := keepAlive(connect.Caller{Header: http.Header{"Keepalive-Ping-Interval": {"-5"}}}); got != 90*time.Second {
		t.Errorf("got keep-alives every %v, want the default of 90s", got)
	}
}
