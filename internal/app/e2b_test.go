package app

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/guest/e2b/envd"
	"github.com/cove-sandbox/cove/internal/guest/watch"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// envdServer is E2B's daemon on a socket. Writes to a socket can be read at once.
type envdServer struct {
	t    *testing.T
	path string
}

func newEnvdServer(t *testing.T) envdServer {
	t.Helper()
	home := t.TempDir()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}})
	watches := watch.New(watch.Config{Home: home, Workspace: home})
	daemon := envd.New(envd.Config{Runner: runner, Home: home, Watches: watchAdapter{watches}})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: daemon.Ops()[0].Handler}
	go server.Serve(l)
	t.Cleanup(func() {
		server.Close()
		daemon.Close()
		watches.Close()
		runner.Close()
	})
	return envdServer{t, path}
}

// send sends a request on a new connection, and returns the connection and its response.
func (s envdServer) send(target, media, body string) (net.Conn, *http.Response) {
	s.t.Helper()
	c, err := net.Dial("unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST %s%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		envd.Path, target, media, len(body), body)
	res, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: got %+v and error %v, want 200", target, res, err)
	}
	return c, res
}

// unread returns the number of bytes that can be read from a connection at once.
func unread(t *testing.T, c net.Conn) (n int) {
	t.Helper()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEventsPrecedeResponse: the stream of a watcher has the events of an operation before the client has its response.
func TestEventsPrecedeResponse(t *testing.T) {
	t.Parallel()
	s := newEnvdServer(t)
	dir := t.TempDir()
	body := fmt.Sprintf(`{"path":%q}`, dir)
	frame := string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...))
	stream, res := s.send("/filesystem.Filesystem/WatchDir", "application/connect+json", frame)
	next := func() string {
		t.Helper()
		head := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, head); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(res.Body, message); err != nil {
			t.Fatal(err)
		}
		return string(message)
	}
	if got := next(); !strings.Contains(got, "start") {
		t.Fatalf("got %s, want the start", got)
	}
	for i := range 50 {
		name := fmt.Sprintf("f%02d", i)
		s.send("/files?path="+filepath.Join(dir, name), "application/octet-stream", "x")
		if unread(t, stream) == 0 {
			t.Errorf("file %d: got the response before the events, want the events first", i)
		}
		for got := ""; !strings.Contains(got, "WRITE"); {
			if got = next(); !strings.Contains(got, `"`+name+`"`) {
				t.Fatalf("file %d: got %s, want events of %s", i, got, name)
			}
		}
	}
}

// TestWatchHelper: the helper that watches folders of other users reports changes, those before a request before its answer, and
// ends with its input.
func TestWatchHelper(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, requests := io.Pipe()
	reports, out := io.Pipe()
	ended := make(chan error, 1)
	help := func(dir string, in io.Reader, out io.Writer) error {
		return Help([]string{"watch", fmt.Sprintf(`{"path":%q,"recursive":true}`, dir)}, in, out)
	}
	go func() { ended <- help(dir, in, out); out.Close() }()
	from := json.NewDecoder(reports)
	type report struct {
		Error   map[string]any
		Changes []envd.Change
		Flushed bool
	}
	next := func() (r report) {
		t.Helper()
		if err := from.Decode(&r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := next(); r.Error != nil || r.Changes != nil {
		t.Fatalf("got %+v, want an empty report", r)
	}
	for i := range 20 {
		name := fmt.Sprintf("f%02d", i)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		go io.WriteString(requests, "\n")
		var seen []string
		for {
			r := next()
			if r.Flushed {
				break
			}
			for _, c := range r.Changes {
				if seen = append(seen, c.Name); c.Entry == nil {
					t.Errorf("%s: got no entry, want one", c.Name)
				}
			}
		}
		if len(seen) == 0 || seen[0] != name {
			t.Errorf("change %d: got %q before the answer, want %s", i, seen, name)
		}
	}
	requests.Close()
	if err := <-ended; err != nil {
		t.Errorf("got %v, want no error at the end of the input", err)
	}
	var failed strings.Builder
	err := help(filepath.Join(dir, "none"), strings.NewReader(""), &failed)
	if err != nil || !strings.Contains(failed.String(), `"not_found"`) {
		t.Errorf("missing folder: got %s and error %v, want a report of the error", &failed, err)
	}
}
