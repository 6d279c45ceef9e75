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

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/bind"
	"github.com/cove-sandbox/cove/internal/guest/health"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

// setting is what a sandbox is built from.
type setting struct {
	cfg config.Aio
	src config.Source
	// outward leads what it starts to its way out.
	outward func(config.Aio, []string) (config.Aio, []string)
}

// program is the sandbox, or what waits to become it.
func (s setting) program(version string, log *slog.Logger) (host.Program, error) {
	if s.cfg.Init {
		return newLate(s, version, log)
	}
	cfg, environ := s.outward(s.cfg, s.src.Environ)
	return NewAio(cfg, environ, version, log)
}

// initVariable arms a server; no child shall wait likewise.
const initVariable = "AIO_INIT"

// late is a sandbox that was started before anybody knew whose it would be. Until it
// is told, it is nothing but its health and that one call: no service is built, no
// process started, no file written. Then everything is built at once from what it
// was told, as if the server had been started with it; so nothing can be left from
// before, and every setting can come that late.
type late struct {
	setting
	version string
	log     *slog.Logger
	wait    *Aio // signs callers in, and has the table of a waiting sandbox
	runner  *proc.Runner

	now   atomic.Pointer[handlers]
	bound chan struct{} // closed when it is told

	mu     sync.Mutex
	aio    *Aio // nil while it waits
	closed bool
}

type handlers struct{ outside, inside http.Handler }

func newLate(s setting, version string, log *slog.Logger) (*late, error) {
	l := &late{setting: s, version: version, log: log, runner: newRunner(s.cfg, []string{}, log), bound: make(chan struct{})}
	l.wait = &Aio{cfg: s.cfg, version: version, log: log}
	if err := l.wait.signIn(); err != nil {
		return nil, err
	}
	l.wait.Table = op.NewTable(
		health.New(health.Config{Version: version, Started: time.Now()}).Ops(),
		bind.New(bind.Config{Home: s.cfg.Home, Prepare: l.prepare}).Ops(),
		[]op.Op{op.Handle(op.Spec{Name: "waiting", Route: "/{path...}", Tag: "sandbox", Doc: "Everything else comes later."}, http.HandlerFunc(waiting))},
	)
	c := rest.Config{Table: l.wait.Table, Log: log, MaxBody: int64(s.cfg.BodyLimit)}
	inside := rest.New(c)
	if !l.wait.private() {
		c.Guard = l.wait.guard.Wrap
	}
	l.now.Store(&handlers{outside: rest.New(c), inside: inside})
	return l, nil
}

func waiting(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "the sandbox waits to be initialised; ask again when it was", http.StatusServiceUnavailable)
}

// prepare builds the sandbox that the settings ask for.
func (l *late) prepare(s bind.Settings) (bind.Commit, error) {
	src := l.src
	src.Environ = changed(src.Environ, s)
	var cfg config.Aio
	if _, err := config.Load(&cfg, src); err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	if s.Workdir != "" {
		cfg.Workspace = s.Workdir
	}
	for _, f := range []struct{ key, was, is string }{
		{"listen", l.cfg.Listen, cfg.Listen}, {"user", l.cfg.User, cfg.User}, {"state", l.cfg.State, cfg.State}, {"runtime", l.cfg.Runtime, cfg.Runtime},
		{"egress", l.cfg.Egress, cfg.Egress}, {"outlet", l.cfg.Outlet, cfg.Outlet},
	} {
		if f.was != f.is {
			return nil, op.Errorf(op.Invalid, "the setting %s cannot be changed in a sandbox that runs; create one with it", f.key)
		}
	}
	cfg.Init = true // it was
	cfg, environ := l.outward(cfg, src.Environ)
	next := &Aio{cfg: cfg, version: l.version, log: l.log}
	if err := next.build(l.runner); err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	env := next.childEnv(environ)
	var h handlers
	h.outside, h.inside = next.Handlers()
	return func() (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.closed {
			return false, op.Errorf(op.Unavailable, "the sandbox is stopping")
		}
		// Nothing was started, since nobody could reach a service.
		if err := l.runner.Rebase(env); err != nil {
			return false, err
		}
		l.aio = next
		l.now.Store(&h)
		close(l.bound)
		return cfg.RunHookInit == "" && cfg.RunHookPreServices == "" && len(cfg.WaitPorts) == 0, nil
	}, nil
}

// changed is an environment after the settings, armed no more.
func changed(environ []string, s bind.Settings) []string {
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

// Handlers lead to what it is at the moment of a request.
func (l *late) Handlers() (outside, inside http.Handler) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.now.Load().outside.ServeHTTP(w, r) }),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.now.Load().inside.ServeHTTP(w, r) })
}

// Inside is where it will be: the settings that it depends on cannot change.
func (l *late) Inside() string { return l.wait.Inside() }

// Begin waits to be told, then begins. Meanwhile it goes once through what it will
// have to do then, so that the caller who comes need not wait for what only the
// first time takes.
func (l *late) Begin(ctx context.Context) {
	l.runner.Warm()
	for _, o := range l.wait.Table.All() {
		o.In()
	}
	if _, err := l.prepare(bind.Settings{}); err != nil {
		l.log.Warn("the sandbox cannot become what its own settings say", "error", err)
	}
	select {
	case <-ctx.Done():
	case <-l.bound:
		l.told().Begin(ctx)
	}
}

func (l *late) told() *Aio {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.aio
}

// Shutdown runs the shutdown hooks, of which there are none before it is told.
func (l *late) Shutdown(ctx context.Context) {
	if a := l.told(); a != nil {
		a.Shutdown(ctx)
	}
}

// Close ends what there is; what is told later is not begun.
func (l *late) Close() error {
	l.mu.Lock()
	l.closed = true
	a := l.aio
	l.mu.Unlock()
	if a == nil {
		return l.runner.Close()
	}
	return a.Close()
}
