package app

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/api/health"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/bind"
	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// blueprint is the input from which a sandbox is built.
type blueprint struct {
	cfg config.Aio
	src config.Source
	// relay passes connections of programs to the proxy.
	relay *relay.Relay
}

// build returns the sandbox, or a pending one if init is set.
func (b blueprint) build(version string, log *slog.Logger) (host.Program, error) {
	if b.cfg.Init {
		return newPending(b, version, log)
	}
	cfg, environ := useProxy(b.relay, b.cfg, b.src.Environ)
	a := &Aio{cfg: cfg, version: version, log: log, relay: b.relay}
	env := a.childEnv(environ)
	if err := a.build(newRunner(cfg, env, log), env); err != nil {
		return nil, err
	}
	a.attach()
	return a, nil
}

// initVariable makes a sandbox pending. Children must not inherit it.
const initVariable = "AIO_INIT"

// pending is a sandbox that starts before its settings are known. Until POST /v1/sandbox/init
// provides them, it serves only its health and that call: no service is built, no process started,
// no file written. Then everything is built from the new settings, as if the server had started
// with them.
type pending struct {
	blueprint
	version string
	log     *slog.Logger
	gate    *Aio // authenticates callers and has the table of the pending sandbox
	runner  *proc.Runner

	release func(address string) // closes an inside address

	handlers atomic.Pointer[handlers]
	bound    chan struct{} // closed when the settings are known

	mu     sync.Mutex
	aio    *Aio // nil while it is pending
	closed bool
}

type handlers struct{ outside, inside http.Handler }

func newPending(b blueprint, version string, log *slog.Logger) (*pending, error) {
	p := &pending{blueprint: b, version: version, log: log, runner: newRunner(b.cfg, []string{}, log), bound: make(chan struct{}),
		release: func(string) {}}
	p.gate = &Aio{cfg: b.cfg, version: version, log: log}
	if err := p.gate.newGuard(); err != nil {
		return nil, err
	}
	p.gate.Table = op.NewTable(
		health.New(health.Config{Version: version, Started: time.Now()}).Ops(),
		bind.New(bind.Config{Home: b.cfg.Home, Prepare: p.prepare}).Ops(),
		[]op.Op{op.Handle(op.Spec{Name: "waiting", Content: op.ContentAPI, Route: "/{path...}", Tag: "sandbox",
			Doc: "Rejects all other requests until the sandbox is initialized."}, http.HandlerFunc(rejectPending))},
	)
	c := rest.Config{Table: p.gate.Table, Log: log, MaxBody: int64(b.cfg.BodyLimit), HidePath: auth.HidePass}
	inside := rest.New(c)
	if !p.gate.private() {
		c.Guard = p.gate.guard.Wrap
	}
	p.handlers.Store(&handlers{outside: rest.New(c), inside: p.gate.guardLoopback(inside)})
	return p, nil
}

func rejectPending(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "the sandbox is not initialized yet; retry after POST /v1/sandbox/init", http.StatusServiceUnavailable)
}

// prepare builds the sandbox with the new settings and returns the function that activates it.
func (p *pending) prepare(s bind.Settings) (bind.Commit, error) {
	src := p.src
	src.Environ = applySettings(src.Environ, s)
	var cfg config.Aio
	if _, err := config.Load(&cfg, src); err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	if s.Workdir != "" {
		cfg.Workspace = s.Workdir
	}
	for _, f := range []struct{ key, before, after string }{
		{"listen", p.cfg.Listen, cfg.Listen}, {"loopback", p.cfg.Loopback, cfg.Loopback},
		{"user", p.cfg.User, cfg.User}, {"state", p.cfg.State, cfg.State}, {"runtime", p.cfg.Runtime, cfg.Runtime},
		{"egress", p.cfg.Egress, cfg.Egress}, {"outlet", p.cfg.Outlet, cfg.Outlet},
	} {
		closes := f.key == "loopback" && f.after == ""
		if f.before != f.after && !closes {
			return nil, op.Errorf(op.Invalid, "the setting %q of a running sandbox cannot be changed; create a sandbox with it", f.key)
		}
	}
	cfg.Init = true // initVariable was removed from the environment
	cfg, environ := useProxy(p.relay, cfg, src.Environ)
	next := &Aio{cfg: cfg, version: p.version, log: p.log, relay: p.relay}
	env := next.childEnv(environ)
	if err := next.build(p.runner, env); err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	var h handlers
	h.outside, h.inside = next.Handlers()
	return func() (bool, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			return false, op.Errorf(op.Unavailable, "the sandbox is stopping")
		}
		// No process has started, because no service was reachable.
		if err := p.runner.Rebase(env); err != nil {
			return false, err
		}
		p.aio = next
		if cfg.Loopback == "" && p.cfg.Loopback != "" {
			p.release(p.cfg.Loopback)
		}
		next.attach()
		p.handlers.Store(&h)
		close(p.bound)
		return cfg.RunHookInit == "" && cfg.RunHookPreServices == "" && len(cfg.WaitPorts) == 0, nil
	}, nil
}

// applySettings returns the environment with the settings, and without initVariable.
func applySettings(environ []string, s bind.Settings) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		_, replaced := s.Env[name]
		return replaced || name == initVariable || slices.Contains(s.Unset, name)
	})
	for k, v := range s.Env {
		if k != initVariable {
			out = append(out, k+"="+v)
		}
	}
	return out
}

// Handlers implements host.Program. They serve the pending sandbox and, after init, the
// initialized one.
func (p *pending) Handlers() (outside, inside http.Handler) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.handlers.Load().outside.ServeHTTP(w, r) }),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.handlers.Load().inside.ServeHTTP(w, r) })
}

// Inside implements host.Program.
func (p *pending) Inside() []string { return p.gate.Inside() }

// OnRelease implements host.Releaser: the settings may close the loopback address.
func (p *pending) OnRelease(release func(address string)) { p.release = release }

// Begin implements host.Program. It waits for the settings. Before that it builds the sandbox once,
// which makes the call with the settings faster.
func (p *pending) Begin(ctx context.Context) {
	p.runner.Warm()
	for _, o := range p.gate.Table.All() {
		o.In()
	}
	if _, err := p.prepare(bind.Settings{}); err != nil {
		p.log.Warn("cannot build the sandbox with its initial settings", "error", err)
	}
	select {
	case <-ctx.Done():
	case <-p.bound:
		p.current().Begin(ctx)
	}
}

// current returns the initialized sandbox, nil while it is pending.
func (p *pending) current() *Aio {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.aio
}

// Shutdown implements host.Program. A pending sandbox has no shutdown hooks.
func (p *pending) Shutdown(ctx context.Context) {
	if a := p.current(); a != nil {
		a.Shutdown(ctx)
	}
}

// Close implements host.Program. Settings that arrive later are rejected.
func (p *pending) Close() error {
	p.mu.Lock()
	p.closed = true
	a := p.aio
	p.mu.Unlock()
	if a == nil {
		return p.runner.Close()
	}
	return a.Close()
}
