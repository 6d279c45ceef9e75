package fleet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// provider has one sandbox, and an egress listener that opens when let is closed.
type provider struct {
	sandbox.Provider
	sb      sandbox.Sandbox
	path    string
	let     chan struct{} // closed: Egress returns
	opened  atomic.Int64
	watches error
}

func (p *provider) Abilities() sandbox.Abilities { return sandbox.Abilities{Egress: true} }

func (p *provider) Get(_ context.Context, id string) (sandbox.Sandbox, error) {
	if id != p.sb.ID {
		return sandbox.Sandbox{}, sandbox.ErrNotFound
	}
	return p.sb, nil
}

func (p *provider) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	if !f.Match(p.sb) {
		return nil, nil
	}
	return []sandbox.Sandbox{p.sb}, nil
}

func (p *provider) Egress(ctx context.Context, _ string) (net.Listener, error) {
	p.opened.Add(1)
	select {
	case <-p.let:
		return net.Listen("unix", p.path)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	select {
	case <-p.let:
		events := make(chan sandbox.Event)
		context.AfterFunc(ctx, func() { close(events) })
		return events, nil
	default:
		return nil, p.watches
	}
}

type noSecrets struct{}

func (noSecrets) Credentials(sandbox.Spec) []egress.Credential     { return nil }
func (noSecrets) Provision(context.Context, sandbox.Sandbox) error { return nil }
func (noSecrets) Gone(string)                                      {}
func (noSecrets) Acted(string, sandbox.Sandbox)                    {}
func (noSecrets) Swept(context.Context)                            {}
func call(subject string) context.Context {
	return op.WithCall(context.Background(), &op.Call{Subject: subject, Role: "user"})
}
func network(mode sandbox.NetworkMode) sandbox.Network { return sandbox.Network{Mode: mode} }

func newFleet(t *testing.T) (*Fleet, *provider) {
	t.Helper()
	p := &provider{path: filepath.Join(t.TempDir(), "egress"), let: make(chan struct{}), watches: errors.New("no events")}
	p.sb = sandbox.Sandbox{ID: "sb-1", State: sandbox.Running, Created: time.Now(),
		Spec: sandbox.Spec{Name: "a", Owner: "anna", Network: network(sandbox.NetworkOpen)}}
	f := New(Config{Provider: p, Secrets: noSecrets{}, Observer: noSecrets{}, Tombstones: &tombstone.Log{},
		History: history.New(), Tasks: task.New(), WakeWait: time.Second,
		Metrics: metric.New(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	t.Cleanup(func() {
		f.Tasks.Cancel()
		f.Tasks.Wait()
		f.Close()
	})
	return f, p
}

// TestSlowProviderHoldsNothingUp: while the provider opens the egress listener of a
// sandbox, the sandbox can be used. Rules that change during that time take effect.
func TestSlowProviderHoldsNothingUp(t *testing.T) {
	t.Parallel()
	f, p := newFleet(t)
	done := make(chan struct{})
	go func() { defer close(done); f.Observe(p.sb) }()
	testenv.Poll(t, "the provider is asked", func() bool { return p.opened.Load() == 1 })
	b, err := f.Enter(t.Context(), p.sb, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	f.Touch(p.sb.ID)
	if n := f.OpenRequests(p.sb); n != 1 {
		t.Errorf("got %d in-flight requests, want 1", n)
	}
	b.Leave()
	b.mu.Lock()
	b.sb.Spec.Network = network(sandbox.NetworkNone)
	b.mu.Unlock()
	close(p.let)
	<-done
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.proxy == nil || b.rules.Mode != sandbox.NetworkNone || p.opened.Load() != 1 {
		t.Errorf("got proxy %v with rules %q after %d listeners, want one with the latest rules", b.proxy != nil, b.rules.Mode, p.opened.Load())
	}
}

// TestForgottenWhileOpening: if a sandbox is deleted while its egress proxy is being
// opened, no listener remains.
func TestForgottenWhileOpening(t *testing.T) {
	t.Parallel()
	f, p := newFleet(t)
	done := make(chan struct{})
	go func() { defer close(done); f.Observe(p.sb) }()
	testenv.Poll(t, "the provider is asked", func() bool { return p.opened.Load() == 1 })
	b := f.known(p.sb.ID)
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	close(p.let)
	<-done
	if c, err := net.Dial("unix", p.path); err == nil {
		c.Close()
		t.Error("the listener of a deleted sandbox is open")
	}
}

// TestFault: a fleet reports a fault as long as it cannot watch its provider.
func TestFault(t *testing.T) {
	t.Parallel()
	f, p := newFleet(t)
	f.Tasks.Go(f.watchProvider)
	testenv.Poll(t, "the failure shows", func() bool { return errors.Is(f.Fault(), p.watches) })
	close(p.let)
	testenv.Poll(t, "it works again", func() bool { return f.Fault() == nil })
}

// TestFind: a name refers to the caller's own sandbox, and is cached only as long as
// the sandbox has it.
func TestFind(t *testing.T) {
	t.Parallel()
	f, p := newFleet(t)
	for range 2 {
		if sb, err := f.Find(call("anna"), "a"); err != nil || sb.ID != p.sb.ID {
			t.Errorf("got %v %v, want the sandbox", sb.ID, err)
		}
		for _, name := range []string{"a", p.sb.ID, "../a"} {
			if sb, err := f.Find(call("bert"), name); err == nil {
				t.Errorf("another owner found %s by %q", sb.ID, name)
			}
		}
	}
	p.sb.Spec.Name = "b"
	if sb, err := f.Find(call("anna"), "a"); err == nil {
		t.Errorf("got %s by its old name, want none", sb.ID)
	}
	if sb, err := f.Find(call("anna"), "b"); err != nil || sb.ID != p.sb.ID {
		t.Errorf("got %v %v, want the sandbox by its new name", sb.ID, err)
	}
	f.directory.mu.Lock()
	defer f.directory.mu.Unlock()
	if len(f.directory.ids) != 1 {
		t.Errorf("got %v cached, want one name", f.directory.ids)
	}
}
