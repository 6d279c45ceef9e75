package port

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func listen(t *testing.T, address string) (net.Listener, int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

func find(list []Port, port int) *Port {
	if i := slices.IndexFunc(list, func(p Port) bool { return p.Port == port }); i >= 0 {
		return &list[i]
	}
	return nil
}

func TestPortsAreListedWithTheirProcess(t *testing.T) {
	t.Parallel()
	_, v4 := listen(t, "127.0.0.1:0")
	_, v6 := listen(t, "[::1]:0")
	_, own := listen(t, "127.0.0.1:0")
	s := New(Config{Hidden: func(port int) bool { return port == own }})
	defer s.Close()
	list := s.Open()
	for port, address := range map[int]string{v4: "127.0.0.1", v6: "::1"} {
		p := find(list, port)
		if p == nil || p.Address != address || p.PID == nil || *p.PID != os.Getpid() || p.Process == "" || p.Command == "" || p.Preview == "" {
			t.Errorf("port %d: got %+v, want it with address %s and this process", port, p, address)
		}
	}
	if p := find(list, own); p != nil {
		t.Errorf("got %+v, want the sandbox's own port hidden", p)
	}
}

// TestPortsOfTheSandboxItselfAreInternal: of the server only its own ports, of the browser also those of its children.
func TestPortsOfTheSandboxItselfAreInternal(t *testing.T) {
	t.Parallel()
	_, mine := listen(t, "127.0.0.1:0")
	for name, c := range map[string]struct {
		cfg  Config
		want bool
	}{
		"the server":         {Config{Server: os.Getpid()}, true},
		"a child of Owned":   {Config{Owned: func() []int { return []int{os.Getppid()} }}, true},
		"a child of Server":  {Config{Server: os.Getppid()}, false},
		"another program":    {Config{Server: 1, Owned: func() []int { return []int{1 << 30} }}, false},
		"nothing configured": {Config{}, false},
	} {
		s := New(c.cfg)
		if p := find(s.Open(), mine); p == nil || p.Internal != c.want {
			t.Errorf("%s: got %+v, want internal %v", name, p, c.want)
		}
		s.Close()
	}
}

// TestResolverIsNotListed: a program on the same port of another address is.
func TestResolverIsNotListed(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	const line = "   0: %s:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 %d 1\n"
	table := fmt.Sprintf(line+line, "3500007F", 1, "0100007F", 2)
	if err := errors.Join(os.Mkdir(filepath.Join(proc, "net"), 0o700),
		os.WriteFile(filepath.Join(proc, "net/tcp"), []byte(table), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Proc: proc})
	defer s.Close()
	if got := s.Open(); len(got) != 1 || got[0].Address != "127.0.0.1" || got[0].Port != 53 {
		t.Errorf("got %+v, want only the port of the program", got)
	}
}

func TestStreamReportsChanges(t *testing.T) {
	t.Parallel()
	s := New(Config{Every: 10 * time.Millisecond})
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events := make(chan op.Event, 1000)
	done := make(chan error, 1)
	go func() {
		done <- s.Watch(ctx, op.None{}, func(e op.Event) error {
			select {
			case events <- e:
			default:
			}
			return nil
		})
	}()
	await := func(name string, port int) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if c := e.Data.(Change); e.Name == name && (c.Port == nil || c.Port.Port == port) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("got no event %s of port %d, want one", name, port)
			}
		}
	}
	await("ports", 0)
	l, port := listen(t, "127.0.0.1:0")
	await("open", port)
	l.Close()
	await("close", port)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzSocket(f *testing.F) {
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1")
	f.Fuzz(func(t *testing.T, line string) {
		if k, ok := parseSocket(line); ok && !k.at.IsValid() {
			t.Errorf("%q: got %v, want a valid address", line, k)
		}
	})
}

// TestShow: a caller learns which ports are reserved.
func TestShow(t *testing.T) {
	t.Parallel()
	s := New(Config{Hidden: func(port int) bool { return port == 8080 }})
	defer s.Close()
	for port, want := range map[int]bool{8080: true, 5432: false} {
		if got, err := s.Show(t.Context(), ShowIn{Port: port}); err != nil || got != (State{port, want}) {
			t.Errorf("port %d: got %+v, %v, want reserved %v", port, got, err, want)
		}
	}
}
