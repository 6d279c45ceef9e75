// Package hook runs the commands that a sandbox was told to run at turns of its
// life: at its start, when it is ready, and before it ends. It owns the list of
// shutdown hooks and the run of each; a hook that hangs is ended by its timeout.
package hook

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

// maxHooks bounds the list.
const maxHooks = 256

// Config of the service. The commands at start come from the environment.
type Config struct {
	Runner      *proc.Runner
	Dir         string // where hooks run
	Log         *slog.Logger
	Init        string // run first
	PreServices string // run before any component starts
	PostReady   string // run once the sandbox is ready
	WaitPorts   []int  // must accept connections before the sandbox is ready
	WaitTimeout time.Duration
}

// Service keeps hooks.
type Service struct {
	Config
	mu    sync.Mutex
	hooks map[string]Hook
	stage string
	fault string
	ready chan struct{}
	once  sync.Once
}

// New returns the service; nothing runs before Begin.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.WaitTimeout == 0 {
		c.WaitTimeout = 5 * time.Minute
	}
	return &Service{Config: c, hooks: map[string]Hook{}, stage: "waiting to start", ready: make(chan struct{})}
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_register_hook", Route: "POST /v1/sandbox/hooks", Tag: "sandbox", SDK: "sandbox.register_hook", Verb: "sandbox hook-add",
			Doc: "Register a command that runs when the sandbox stops. Hooks run by priority, lowest first; those of equal priority run together. A hook of the same name is replaced."}, s.Register),
		op.New(op.Spec{Name: "sandbox_list_hooks", Route: "GET /v1/sandbox/hooks", Tag: "sandbox", SDK: "sandbox.list_hooks", ReadOnly: true, Verb: "sandbox hook-list",
			Doc: "List the hooks of an event in the order in which they will run."}, s.List),
		op.New(op.Spec{Name: "sandbox_remove_hook", Route: "DELETE /v1/sandbox/hooks/{name}", Tag: "sandbox", SDK: "sandbox.remove_hook", Destructive: true, Verb: "sandbox hook-remove",
			Doc: "Remove a hook by name."}, s.Remove),
	}
}

// Close has nothing of its own to end: a hook's process belongs to the runner.
func (s *Service) Close() error { return nil }

// Hook is a command and when it runs.
type Hook struct {
	Name     string  `json:"name"`
	Event    string  `json:"event"`
	Command  string  `json:"command"`
	Timeout  float64 `json:"timeout"`
	Priority int     `json:"priority"`
	Source   string  `json:"source"`
}

// RegisterIn is a new hook.
type RegisterIn struct {
	Name     string  `json:"name" doc:"Name by which the hook is listed and removed" maxLength:"64" pattern:"^[a-zA-Z0-9_-]+$"`
	Event    string  `json:"event" doc:"When it runs; there is only shutdown" default:"shutdown"`
	Command  string  `json:"command" doc:"Shell command to run" maxLength:"4096"`
	Timeout  float64 `json:"timeout" doc:"Seconds after which it is ended" default:"10"`
	Priority int     `json:"priority" doc:"Lower runs earlier; equal ones run together" default:"100"`
}

// Register keeps a hook.
func (s *Service) Register(ctx context.Context, in RegisterIn) (Hook, error) {
	h := Hook{Name: in.Name, Event: in.Event, Command: in.Command, Timeout: in.Timeout, Priority: in.Priority, Source: "api"}
	if err := known(h.Event); err != nil {
		return Hook{}, err
	}
	if strings.TrimSpace(h.Command) == "" {
		return Hook{}, op.Errorf(op.Invalid, "the command is empty; say what to run")
	}
	if h.Timeout <= 0 || h.Timeout > 3600 {
		return Hook{}, op.Errorf(op.Invalid, "timeout is %v; it must be above 0 and at most 3600 seconds", h.Timeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, old := s.hooks[h.Name]
	if !old && len(s.hooks) >= maxHooks {
		return Hook{}, op.Errorf(op.Exhausted, "there are already %d hooks; remove one first", maxHooks)
	}
	s.hooks[h.Name] = h
	if old {
		op.Say(ctx, "Hook %s replaced", h.Name)
	} else {
		op.Say(ctx, "Hook %s registered", h.Name)
	}
	return h, nil
}

func known(event string) error {
	if event != "shutdown" {
		return op.Errorf(op.Invalid, "there is no event %q; hooks run at shutdown", event)
	}
	return nil
}

// ListIn names the event.
type ListIn struct {
	Event string `query:"event" doc:"Event whose hooks to list" default:"shutdown"`
}

// List returns hooks in the order of their run.
func (s *Service) List(_ context.Context, in ListIn) ([]Hook, error) {
	if err := known(in.Event); err != nil {
		return nil, err
	}
	return s.sorted(), nil
}

func (s *Service) sorted() []Hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Hook
	for _, h := range s.hooks {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b Hook) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// RemoveIn names the hook.
type RemoveIn struct {
	Name string `path:"name" doc:"Name of the hook"`
}

// Removed tells which hook is gone.
type Removed struct {
	Name string `json:"name"`
}

// Remove forgets a hook.
func (s *Service) Remove(ctx context.Context, in RemoveIn) (Removed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.hooks[in.Name]; !ok {
		return Removed{}, op.Errorf(op.NotFound, "there is no hook %q; GET /v1/sandbox/hooks lists them", in.Name)
	}
	delete(s.hooks, in.Name)
	op.Say(ctx, "Hook %s removed", in.Name)
	return Removed(in), nil
}

// Shutdown runs the shutdown hooks, one priority after the other.
func (s *Service) Shutdown(ctx context.Context) {
	list := s.sorted()
	for len(list) > 0 {
		n := 0
		for n < len(list) && list[n].Priority == list[0].Priority {
			n++
		}
		var wait sync.WaitGroup
		for _, h := range list[:n] {
			wait.Go(func() {
				s.run(ctx, h.Name, h.Command, time.Duration(h.Timeout*float64(time.Second)))
			})
		}
		wait.Wait()
		list = list[n:]
	}
}

// startTimeout bounds the hooks at start, which may install things.
const startTimeout = 30 * time.Minute

// Begin runs the hooks of the start, waits for the ports and opens readiness. It
// returns when all of that is done; the server answers meanwhile.
func (s *Service) Begin(ctx context.Context) {
	for _, h := range []struct{ name, command string }{{"init", s.Init}, {"pre_services", s.PreServices}} {
		s.enter("running the hook " + h.name)
		if err := s.start(ctx, h.name, h.command); err != nil {
			s.fail(err)
			return
		}
	}
	if err := s.wait(ctx); err != nil {
		s.fail(err)
		return
	}
	s.once.Do(func() { close(s.ready) })
	s.enter("running the hook post_ready")
	if err := s.start(ctx, "post_ready", s.PostReady); err != nil {
		s.fail(err)
		return
	}
	s.enter("")
}

func (s *Service) start(ctx context.Context, name, command string) error {
	if command == "" {
		return nil
	}
	return s.run(ctx, name, command, startTimeout)
}

func (s *Service) enter(stage string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage = stage
}

func (s *Service) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err.Error()
	s.Log.Error("start hook failed", "error", err)
}

// State for readiness: ready, starting (what is awaited), failed (why).
func (s *Service) State() (state, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != "" {
		return "failed", s.fault
	}
	select {
	case <-s.ready:
		return "ready", s.stage
	default:
		return "starting", s.stage
	}
}

// run runs one command; its output goes to the log, shortened.
func (s *Service) run(ctx context.Context, name, command string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	res, err := s.Runner.Run(ctx, proc.Command{Path: "/bin/bash", Args: []string{"-c", command}, Dir: s.Dir, Limit: 4 << 10})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("hook %s: ended after its timeout of %v", name, limit)
	} else if err != nil {
		err = fmt.Errorf("hook %s: %w", name, err)
	} else if res.Exit.Code != 0 {
		err = fmt.Errorf("hook %s: exit code %d", name, res.Exit.Code)
	}
	s.Log.Info("hook ran", "hook", name, "error", err, "stdout", string(res.Stdout), "stderr", string(res.Stderr))
	return err
}

// wait polls the ports until each accepts a connection.
func (s *Service) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.WaitTimeout)
	defer cancel()
	for _, port := range s.WaitPorts {
		s.enter(fmt.Sprintf("waiting for port %d", port))
		for !accepts(ctx, port) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("port %d did not accept a connection within %v", port, s.WaitTimeout)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

func accepts(ctx context.Context, port int) bool {
	d := net.Dialer{Timeout: time.Second}
	for _, host := range []string{"127.0.0.1", "::1"} {
		if c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			c.Close()
			return true
		}
	}
	return false
}
