package info

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newService(t *testing.T, path string) *Service {
	t.Helper()
	r := proc.New(proc.Config{Env: []string{"PATH=" + path, "HOME=" + t.TempDir()}})
	t.Cleanup(func() { r.Close() })
	return New(Config{Version: "1.2.3-4-gabc", User: "gem", Home: "/home/gem", Workspace: "/w", TZ: "Europe/Berlin", Runner: r})
}

func TestContextIsReadFromTheMachine(t *testing.T) {
	testenv.Need(t, "python3", "node")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	s := newService(t, "/usr/bin:/bin")
	for range 2 { // the second result uses cached versions
		c, err := s.Context(t.Context(), op.None{})
		if err != nil {
			t.Fatal(err)
		}
		if c.Version != "v1.2.3.4" || c.HomeDir != "/home/gem" || *c.Workspace != "/w" || !c.Success {
			t.Errorf("%+v, want Version \"v1.2.3.4\", HomeDir \"/home/gem\", Workspace \"/w\", Success true", c)
		}
		d := c.Detail
		if !slices.Contains(d.System.OccupiedPorts, port) || d.System.Timezone != "Europe/Berlin" || d.System.OS == "" {
			t.Errorf(`%+v, want occupied ports with %q, timezone "Europe/Berlin" and an OS`, d.System, port)
		}
		if len(d.Runtime.Python) == 0 || !strings.HasPrefix(*d.Runtime.Python[0].Ver, "3.") || len(d.Runtime.NodeJS) == 0 {
			t.Errorf("got %+v, want Python 3 and Node.js", d.Runtime)
		}
		for _, want := range []string{"Sandbox v1.2.3.4", "User: gem, home /home/gem", port, *d.Runtime.Python[0].Ver, "tar"} {
			if !strings.Contains(c.Data, want) {
				t.Errorf("%q is missing from\n%s", want, c.Data)
			}
		}
	}
}

func TestAnEmptyMachine(t *testing.T) {
	s := newService(t, t.TempDir())
	c, err := s.Context(t.Context(), op.None{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Detail.Runtime.Python)+len(c.Detail.Runtime.NodeJS)+len(c.Detail.Utils) != 0 || !strings.Contains(c.Data, "not installed") {
		t.Errorf("%+v, want no Utils, Data containing \"not installed\"", c.Detail)
	}
	for name, f := range map[string]func(context.Context, op.None) ([]Package, error){"python": s.Python, "node": s.Node} {
		if _, err := f(t.Context(), op.None{}); err == nil || !strings.Contains(err.Error(), "apt-get install") {
			t.Errorf("%s: %v, want an error containing \"apt-get install\"", name, err)
		}
	}
}

func TestPackages(t *testing.T) {
	testenv.Need(t, "python3", "node")
	s := newService(t, "/usr/bin:/bin")
	list, err := s.Node(t.Context(), op.None{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == "" || p.Version == "" {
			t.Errorf("%+v, want a name and a version", p)
		}
	}
	// A virtual environment with one invented package.
	venv := t.TempDir()
	site := filepath.Join(venv, "site")
	meta := filepath.Join(site, "Toy-1.5.dist-info")
	if err := os.MkdirAll(meta, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(meta, "METADATA"), []byte("Metadata-Version: 2.1\nName: Toy\nVersion: 1.5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nPYTHONPATH=" + site + " exec /usr/bin/python3 \"$@\"\n"
	if err := os.MkdirAll(filepath.Join(venv, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.WriteProgram(t, filepath.Join(venv, "bin/python"), []byte(script))
	s.Venv = venv
	list, err = s.Python(t.Context(), op.None{})
	if err != nil || !slices.Contains(list, Package{"Toy", "1.5"}) {
		t.Errorf("%v %v, want list containing %v", list, err, Package{"Toy", "1.5"})
	}
}

func TestVersion(t *testing.T) {
	for in, want := range map[string]string{"0.1.0": "v0.1.0.0", "v1.2.3": "v1.2.3.0", "1.2.3-4-gabc": "v1.2.3.4",
		"1.2": "v1.2.0.0", "": "v0.0.0.0", "abc": "v0.0.0.0"} {
		if got := Version(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
