package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// serve serves a control socket called control in a new folder.
func serve(t *testing.T, s *Server) (dir *os.File) {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	l, err := unixsocket.Listen(dir, "control", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go s.Serve(l)
	return dir
}

func TestDial(t *testing.T) {
	t.Parallel()
	dir := serve(t, &Server{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.WriteString(c, "inside")
			c.Close()
		}
	}()
	c, err := Dial(t.Context(), dir, "control", l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "inside" {
		t.Errorf("got %q, %v, want the server's bytes", got, err)
	}
	if _, err := Dial(t.Context(), dir, "control", testenv.FreePort(t)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port without a server: got %v, want it refused", err)
	}
	if _, err := Dial(t.Context(), dir, "none", 80); err == nil {
		t.Error("a missing control socket: got no error")
	}
}

func TestSave(t *testing.T) {
	t.Parallel()
	image, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	err = Save(t.Context(), serve(t, &Server{}), "control", image)
	if !errors.Is(err, ErrNotSaved) || !strings.Contains(err.Error(), "gVisor") {
		t.Errorf("without gVisor: got %v, want %v", err, ErrNotSaved)
	}
	long := strings.Repeat("x", 2*maxSaveError)
	failing := &Server{Save: func(int) error { return errors.New(long) }}
	err = Save(t.Context(), serve(t, failing), "control", image)
	if !errors.Is(err, ErrNotSaved) || len(err.Error()) > 2*maxSaveError {
		t.Errorf("after an error: got %v, want %v with a truncated reason", err, ErrNotSaved)
	}
	failing.Wait()
	var saved os.FileInfo
	saving := &Server{Save: func(folder int) (err error) {
		saved, err = os.Stat(fmt.Sprintf("/proc/self/fd/%d", folder))
		return err
	}}
	if err := Save(t.Context(), serve(t, saving), "control", image); err != nil {
		t.Fatal(err)
	}
	saving.Wait()
	if want, err := image.Stat(); err != nil || !os.SameFile(saved, want) {
		t.Errorf("got the folder %v, %v, want %v", saved, err, want)
	}
}
