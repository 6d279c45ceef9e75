package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestLifecycle(t *testing.T) {
	t.Parallel()
	r, ctx := newRig(t), t.Context()
	sb, err := r.Create(ctx, client.CreateOptions{Name: "a", Env: map[string]string{"K": "v"},
		Labels: map[string]string{"l": "1"}, Timeout: 30, IdlePolicy: "pause", MemoryLimit: "512Mi", Ports: []int{3000}})
	if err != nil || sb.Name != "a" || sb.Status != "running" || sb.Env["K"] != "v" || sb.Timeout != 30 ||
		sb.MemoryLimit != "512Mi" || sb.URL != r.server.URL+"/sandbox/a/" || len(sb.Stages) == 0 {
		t.Fatalf("%+v %v", sb, err)
	}
	if _, err := r.Create(ctx, client.CreateOptions{Name: "a"}); !client.Conflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if _, err := r.Get(ctx, "nobody"); !client.NotFound(err) || !strings.Contains(err.Error(), "no sandbox") {
		t.Errorf(`got %v, want a not-found error that contains "no sandbox"`, err)
	}
	if _, err := r.Create(ctx, client.CreateOptions{Environment: "nowhere"}); err == nil || !strings.Contains(err.Error(), "use one of") {
		t.Errorf(`got %v, want an error that contains "use one of"`, err)
	}
	for _, c := range []struct {
		do   func(context.Context, string) (*client.Sandbox, error)
		want string
	}{{r.Pause, "paused"}, {r.Resume, "running"}, {r.Stop, "stopped"}, {r.Start, "running"}, {r.Get, "running"}} {
		if sb, err := c.do(ctx, "a"); err != nil || sb.Status != c.want {
			t.Errorf("got %+v %v, want status %q", sb, err, c.want)
		}
	}
	if sb, err := r.Extend(ctx, "a", client.ExtendOptions{Timeout: -1}); err != nil || sb.ExpiresAt != nil {
		t.Errorf("got %+v %v, want no expiry", sb, err)
	}
	if _, err := r.SetNetwork(ctx, "a", client.Network{Mode: "none"}); err == nil || !strings.Contains(err.Error(), "cannot restrict") {
		t.Errorf(`got %v, want an error that contains "cannot restrict"`, err)
	}
	if list, err := r.List(ctx, client.ListOptions{Labels: []string{"l=1"},
		Status: []string{"running"}}); err != nil || len(list) != 1 || list[0].Name != "a" {
		t.Errorf(`got %+v %v, want 1 entry and first name "a"`, list, err)
	}
	if list, err := r.Environments(ctx); err != nil || list[0].Name != "aio" {
		t.Errorf(`got %+v %v, want first name "aio"`, list, err)
	}
	if info, err := r.Info(ctx); err != nil || !bytes.Contains(info.Abilities, []byte(`"mem"`)) {
		t.Errorf(`got %+v %v, want abilities that contain "mem"`, info, err)
	}
	if _, err := r.Logs(ctx, "a", 10); err == nil {
		t.Error("got logs, want an error: the provider mem has none")
	}
	if list, err := r.Connections(ctx, "a"); err != nil || len(list) != 0 {
		t.Errorf("got %+v %v, want no entries", list, err)
	}
	if err := r.Delete(ctx, "a"); err != nil {
		t.Error(err)
	}
	if err := r.Delete(ctx, "a"); !client.NotFound(err) {
		t.Errorf("got %v, want a not-found error", err)
	}
	// Without the key, the hub discloses nothing.
	anonymous, err := client.New(client.Config{URL: r.server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer anonymous.Close()
	if _, err := anonymous.List(ctx, client.ListOptions{}); err == nil || !strings.Contains(err.Error(), "authentication required") {
		t.Errorf(`got %v, want an error that contains "authentication required"`, err)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "localhost:1", "ftp://x", "http://", "http://x?y", "://"} {
		if _, err := client.New(client.Config{URL: bad}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if s := fmt.Sprintf("%v %#v", client.Config{URL: "http://x", Token: "secret", Key: "secret"},
		client.Config{Token: "secret"}); strings.Contains(s, "secret") {
		t.Errorf(`got %v, want no "secret" in it`, s)
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"success":true,"data":%q}`, r.URL.Path+r.Header.Get("X-Api-Key"))
	})}
	go server.Serve(l)
	defer server.Close()
	g, err := client.NewGuest(client.Config{URL: "unix:" + path, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var got string
	if err := g.Call(t.Context(), "GET", "/x", nil, &got); err != nil || got != "/xk" {
		t.Error(got, err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.create(t, "a")
	for _, c := range []struct {
		command   string
		o         client.ExecOptions
		code      int
		out, errs string
	}{
		{"echo out; echo err >&2; exit 3", client.ExecOptions{}, 3, "out\n", "err\n"},
		{"echo $A; pwd", client.ExecOptions{Dir: "/", Env: map[string]string{"A": "b c"}}, 0, "b c\n/\n", ""},
		{"cat", client.ExecOptions{Stdin: strings.NewReader("grüße\nzwei")}, 0, "grüße\nzwei", ""},
		{"cat; echo end", client.ExecOptions{}, 0, "end\n", ""}, // without input, it reads an end of file
		{"head -c 3", client.ExecOptions{Stdin: strings.NewReader(strings.Repeat("x", 1<<20))}, 0, "xxx", ""},
		{"sleep 100", client.ExecOptions{Timeout: 100 * time.Millisecond}, 143, "", ""},
		{"kill -9 $$", client.ExecOptions{}, 137, "", ""},
	} {
		var out, errs bytes.Buffer
		c.o.Stdout, c.o.Stderr = &out, &errs
		res, err := g.Exec(t.Context(), c.command, c.o)
		if err != nil || res.ExitCode != c.code || out.String() != c.out || errs.String() != c.errs {
			t.Errorf("%s: got %+v %q %q %v, want exit code %d, %q and stderr %q",
				c.command, res, out.String(), errs.String(), err, c.code, c.out, c.errs)
		}
	}
	if _, err := g.Exec(t.Context(), "true", client.ExecOptions{Dir: "/nowhere"}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf(`got %v, want an error that contains "nowhere"`, err)
	}
	if _, err := g.Exec(t.Context(), "cat >/dev/null",
		client.ExecOptions{Stdin: strings.NewReader("\xff\xfe")}); err == nil || !strings.Contains(err.Error(), "not text") {
		t.Errorf(`got %v, want an error that contains "not text"`, err)
	}
	if _, err := r.Guest("nobody").Exec(t.Context(), "true", client.ExecOptions{}); !client.NotFound(err) {
		t.Errorf("got %v, want a not-found error", err)
	}
	var n counter
	if res, err := g.Exec(t.Context(), "head -c 4000000 /dev/zero | tr '\\0' x",
		client.ExecOptions{Stdout: &n}); err != nil || int64(n)+res.Dropped != 4_000_000 {
		t.Errorf("%d bytes, %+v %v", n, res, err)
	}
	full := errors.New("disk full")
	if _, err := g.Exec(t.Context(), "yes", client.ExecOptions{Stdout: failing{full}}); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestExecIsCanceled: the command ends when the caller cancels it.
func TestExecIsCanceled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.create(t, "a")
	ctx, cancel := context.WithCancel(t.Context())
	started := &notice{received: cancel}
	if _, err := g.Exec(ctx, "echo $$; exec sleep 1000", client.ExecOptions{Stdout: started}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	pid := strings.TrimSpace(started.String())
	testenv.Poll(t, "the command has ended", func() bool {
		_, err := os.Stat("/proc/" + pid + "/stat")
		return err != nil
	})
}

// notice calls a function after each write.
type notice struct {
	mu       sync.Mutex
	b        bytes.Buffer
	want     string
	received func()
}

func (n *notice) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.b.Write(b)
	if n.received != nil && strings.Contains(n.b.String(), n.want) {
		n.received()
		n.received = nil
	}
	return len(b), nil
}

func (n *notice) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.String()
}

// TestExecResumesAfterDisconnect: no byte is lost or repeated after a lost connection.
func TestExecResumesAfterDisconnect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.create(t, "a")
	dir := t.TempDir()
	out := &notice{want: "one\n", received: func() {
		go func() {
			r.server.CloseClientConnections()
			os.WriteFile(filepath.Join(dir, "go"), nil, 0o600)
		}()
	}}
	res, err := g.Exec(t.Context(), "echo one; until [ -e go ]; do sleep 0.01; done; echo two; exit 5",
		client.ExecOptions{Dir: dir, Stdout: out})
	if err != nil || res.ExitCode != 5 || out.String() != "one\ntwo\n" {
		t.Errorf(`got %+v %q %v, want exit code 5 and "one\ntwo\n"`, res, out.String(), err)
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.create(t, "a")
	in, keys := io.Pipe()
	resized := make(chan client.Size)
	shown := &notice{want: "> ", received: func() {
		go func() {
			io.WriteString(keys, "echo $((6*7)) grüße; stty size\r")
		}()
	}}
	var session string
	ended := make(chan error, 1)
	go func() {
		code, err := g.Shell(t.Context(), client.ShellOptions{In: in, Out: shown,
			Size: client.Size{Cols: 91, Rows: 31}, Resized: resized, Attached: func(id string) { session = id }})
		if code != 7 {
			err = errors.Join(err, fmt.Errorf("exit code %d", code))
		}
		ended <- err
	}()
	testenv.Poll(t, "the command ran", func() bool { return strings.Contains(shown.String(), "42 grüße\r\n31 91") })
	resized <- client.Size{Cols: 100, Rows: 40}
	testenv.Poll(t, "the size has changed", func() bool {
		io.WriteString(keys, "stty size\r")
		return strings.Contains(shown.String(), "40 100")
	})
	if session == "" {
		t.Error("got no session name, want one")
	}
	io.WriteString(keys, "exit 7\r")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	in.Close()
	// The end of the input detaches from the session, which continues to run.
	first, type1 := io.Pipe()
	seen := &notice{want: "> ", received: func() { go io.WriteString(type1, "X=still; echo $X there\r") }}
	left := make(chan error, 1)
	go func() {
		_, err := g.Shell(t.Context(), client.ShellOptions{Session: "b", In: first, Out: seen})
		left <- err
	}()
	testenv.Poll(t, "it was received", func() bool { return strings.Contains(seen.String(), "still there") })
	type1.Close()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	again, more := io.Pipe()
	back := &notice{}
	back.want, back.received = "> ", func() { go io.WriteString(more, "echo $X here; exit\r") }
	if _, err := g.Shell(t.Context(), client.ShellOptions{Session: "b", In: again, Out: back}); err != nil ||
		!strings.Contains(back.String(), "still here") {
		t.Errorf(`got %q %v, want output that contains "still here"`, back.String(), err)
	}
	again.Close()
	if _, err := r.Guest("nobody").Shell(t.Context(), client.ShellOptions{}); !client.NotFound(err) {
		t.Errorf("got %v, want a not-found error", err)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	r, ctx := newRig(t), t.Context()
	g := r.create(t, "a")
	dir := t.TempDir()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	path, size, err := g.Upload(ctx, filepath.Join(dir, "sub", "large"), "large", bytes.NewReader(large))
	if err != nil || path != filepath.Join(dir, "sub", "large") || size != int64(len(large)) {
		t.Fatalf("got %v %v %v, want path %q and size %d", path, size, err, filepath.Join(dir, "sub", "large"), int64(len(large)))
	}
	f, err := g.Download(ctx, path)
	if err != nil || f.Size != size || f.Name != "large" || f.ModTime.IsZero() {
		t.Fatalf(`got %+v %v, want "large" of %d bytes with a modification time`, f, err, size)
	}
	got, err := io.ReadAll(f)
	f.Close()
	if err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes %v", len(got), err)
	}
	// The client wakes a suspended sandbox before it reads the file.
	if _, err := r.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if path, _, err = g.Upload(ctx, dir+"/", "ümlaut.txt", strings.NewReader("x")); err != nil || filepath.Base(path) != "ümlaut.txt" {
		t.Errorf(`got %v %v, want a path that ends with "ümlaut.txt"`, path, err)
	}
	a, err := g.Archive(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	n, err := g.Unpack(ctx, to, a, 1)
	a.Close()
	if err != nil || n != 2 {
		t.Errorf("got %v %v, want 2", n, err)
	}
	if b, err := os.ReadFile(filepath.Join(to, "sub", "large")); err != nil || !bytes.Equal(b, large) {
		t.Errorf("got %d bytes and %v, want the %d bytes that were uploaded", len(b), err, len(large))
	}
	if _, err := g.Download(ctx, "/nowhere"); !client.NotFound(err) {
		t.Errorf("got %v, want a not-found error", err)
	}
	broken := errors.New("the source broke")
	if _, _, err := g.Upload(ctx, dir+"/half", "half", io.MultiReader(strings.NewReader("x"), errReader{broken})); err == nil {
		t.Error("got no error for a partial upload, want one")
	}
	if _, err := os.Stat(dir + "/half"); err == nil {
		t.Error("got a partial file, want none")
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// TestEvents: a broken connection is reopened, and no event is missed.
func TestEvents(t *testing.T) {
	t.Parallel()
	r, ctx := newRig(t), t.Context()
	r.create(t, "a")
	var seen []string
	for e, err := range r.Events(ctx, "a", "") {
		if err != nil {
			t.Fatal(err)
		}
		// Recent events may be delivered twice.
		now := e.Type + " " + e.Sandbox.Status
		if len(seen) == 1 && (now == "changed running" || now == "created creating") {
			continue
		}
		if now == "changed deleting" { // the stream may combine the start and the end of a deletion
			continue
		}
		seen = append(seen, now)
		switch len(seen) {
		case 1:
			r.server.CloseClientConnections()
			r.Pause(ctx, "a")
		case 2:
			r.Resume(ctx, "a")
		case 3:
			r.Delete(ctx, "a")
		}
	}
	if !slices.Equal(seen, []string{"existing running", "changed paused", "changed running", "deleted deleting"}) {
		t.Errorf("got %q, want existing running, changed paused, changed running and deleted deleting", seen)
	}
	for _, err := range r.Events(ctx, "a", "") {
		if !client.NotFound(err) {
			t.Errorf("got %v, want a not-found error", err)
		}
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range r.Events(short, "", "") {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}
	for e, err := range r.Events(ctx, "", "elsewhere-1") {
		if err != nil || e.Type != "missed" {
			t.Errorf(`got %v %v, want type "missed"`, e, err)
		}
		break
	}
}
