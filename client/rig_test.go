package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/api/health"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/file"
	"github.com/cove-sandbox/cove/internal/guest/port"
	"github.com/cove-sandbox/cove/internal/guest/shell"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/provider/mem"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// reservedPort is a port of the server of a sandbox.
const reservedPort = 8080

// inside is the server of a sandbox, with real shells and files.
type inside struct {
	http.Handler
	close []func() error
}

func (i *inside) Pause()  {}
func (i *inside) Resume() {}
func (i *inside) Close() error {
	for _, f := range i.close {
		f()
	}
	return nil
}

func newInside(dir string) (*inside, error) {
	home := filepath.Join(dir, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(home, ".bashrc"), []byte("PS1='> '\n"), 0o644); err != nil {
		return nil, err
	}
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + home}})
	state := filepath.Join(dir, "state")
	b := bash.New(bash.Config{Runner: runner, Home: home, State: state})
	s := shell.New(shell.Config{Runner: runner, Home: home, State: state})
	f := file.New(file.Config{Runner: runner, Home: home, Workspace: home, State: state})
	ports := port.New(port.Config{Hidden: func(port int) bool { return port == reservedPort }})
	table := op.NewTable(b.Ops(), s.Ops(), f.Ops(), ports.Ops(), health.New(health.Config{}).Ops())
	return &inside{rest.New(rest.Config{Table: table}), []func() error{ports.Close, b.Close, s.Close, f.Close, runner.Close}}, nil
}

// rig is a hub with its client.
type rig struct {
	*client.Client
	server *httptest.Server
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testenv.Need(t, "bash")
	dir := t.TempDir()
	var store mem.Store
	p, err := mem.Open(mem.Config{Store: &store, Run: func(sb sandbox.Sandbox, _ *mem.Disk, _ func(int)) (mem.Guest, error) {
		return newInside(filepath.Join(dir, sb.ID))
	}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.Open(hub.Config{Provider: p})
	if err != nil {
		t.Fatal(err)
	}
	h.Begin(t.Context())
	guard := auth.New(auth.Config{Token: "secret"})
	r := &rig{}
	r.server = httptest.NewServer(rest.New(rest.Config{Table: op.NewTable(h.Ops()), Dialect: rest.Hub, Front: h.Front,
		Guard: guard.Wrap, Caller: h.Caller, Admit: h.Admit,
		Base: func(q *http.Request) *url.URL { return auth.Base(q, nil) }}))
	r.Client, err = client.New(client.Config{URL: r.server.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		list, err := p.List(context.Background(), sandbox.Filter{})
		if err != nil {
			t.Error(err)
		}
		for _, sb := range list {
			p.Delete(context.Background(), sb.ID)
		}
		r.Close()
		r.server.CloseClientConnections()
		r.server.Close()
		h.Close()
		p.Close()
	})
	return r
}

// create creates a sandbox and returns a client of it.
func (r *rig) create(t *testing.T, name string) *client.Guest {
	t.Helper()
	if _, err := r.Create(t.Context(), client.CreateOptions{Name: name}); err != nil {
		t.Fatal(err)
	}
	return r.Guest(name)
}
