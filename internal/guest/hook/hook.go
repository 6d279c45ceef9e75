// Package hook runs commands at the start of a sandbox, when it is ready, and before it stops.
// It owns the list of shutdown hooks. Every hook has a timeout.
package hook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// maxHooks limits the number of shutdown hooks.
const maxHooks = 256

// Config of the service. The start hooks come from the environment.
type Config struct {
	Runner      *proc.Runner
	Dir         string // working directory of hooks
	Log         *slog.Logger
	Init        string // run first
	PreServices string // run before any component starts
	PostReady   string // run once the sandbox is ready
	WaitPorts   []int  // must accept connections before the sandbox is ready
	WaitTimeout time.Duration
	Strict      bool   // a failing start hook stops the start
	AtShutdown  []Hook // shutdown hooks that cannot be removed
}

// Service stores and runs hooks.
type Service struct {
	Config
	mu    sync.Mutex
	hooks map[string]Hook
	stage string // current step of the start
	fault string // reason if the start failed
	ready chan struct{}
	once  sync.Once
}

// New returns the service. Nothing runs before Begin.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.WaitTimeout == 0 {
		c.WaitTimeout = 5 * time.Minute
	}
	s := &Service{Config: c, hooks: map[string]Hook{}, stage: "waiting to start", ready: make(chan struct{})}
	for _, h := range c.AtShutdown {
		s.hooks[h.Name] = h
	}
	return s
}

// ParseShutdown reads shutdown hooks from a setting: a shell command, or a JSON list of
// commands or hooks.
func ParseShutdown(text string, timeout time.Duration) ([]Hook, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var items []json.RawMessage
	if !strings.HasPrefix(text, "[") {
		return fillHooks([]Hook{{Command: text}}, timeout)
	}
	if err := json.Unmarshal([]byte(text), &items); err != nil {
		return nil, fmt.Errorf("invalid shutdown hooks: %w; write a command, or a JSON list of commands or of objects with a command", err)
	}
	list := make([]Hook, len(items))
	for i, item := range items {
		if err := json.Unmarshal(item, &list[i].Command); err == nil {
			continue
		}
		if err := json.Unmarshal(item, &list[i]); err != nil {
			return nil, fmt.Errorf("invalid shutdown hook %d: %w", i+1, err)
		}
	}
	return fillHooks(list, timeout)
}

// fillHooks completes and validates hooks of a setting.
func fillHooks(list []Hook, timeout time.Duration) ([]Hook, error) {
	if len(list) > maxHooks {
		return nil, fmt.Errorf("too many shutdown hooks: %d; the limit is %d", len(list), maxHooks)
	}
	for i := range list {
		h := &list[i]
		h.Name, h.Event, h.Source = cmp.Or(h.Name, fmt.Sprintf("env-%d", i+1)), "shutdown", sourceEnv
		h.Timeout, h.Priority = cmp.Or(h.Timeout, timeout.Seconds()), cmp.Or(h.Priority, 100)
		if err := checkCommand(*h); err != nil {
			return nil, fmt.Errorf("invalid shutdown hook %q: %w", h.Name, err)
		}
	}
	return list, nil
}

// sourceEnv marks hooks that come from a setting.
const sourceEnv = "env"

func checkCommand(h Hook) error {
	if strings.TrimSpace(h.Command) == "" {
		return op.Errorf(op.Invalid, "command must not be empty")
	}
	if h.Timeout <= 0 || h.Timeout > 3600 {
		return op.Errorf(op.Invalid, "timeout %v is out of range; use more than 0 and at most 3600 seconds", h.Timeout)
	}
	return nil
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_register_hook", Route: "POST /v1/sandbox/hooks", Tag: "sandbox",
			SDK: "sandbox.register_hook", Verb: "sandbox hook-add",
			Doc: "Register a command that runs when the sandbox stops. Hooks run in order of priority, lowest " +
				"first; hooks of equal priority run concurrently. An existing hook of the same name is replaced."}, s.Register),
		op.New(op.Spec{Name: "sandbox_list_hooks", Route: "GET /v1/sandbox/hooks", Tag: "sandbox",
			SDK: "sandbox.list_hooks", ReadOnly: true, Verb: "sandbox hook-list",
			Doc: "List the hooks of an event in the order in which they run."}, s.List),
		op.New(op.Spec{Name: "sandbox_remove_hook", Route: "DELETE /v1/sandbox/hooks/{name}", Tag: "sandbox",
			SDK: "sandbox.remove_hook", Destructive: true, Verb: "sandbox hook-remove",
			Doc: "Remove a hook by name."}, s.Remove),
	}
}

// Close does nothing: the runner ends the processes of hooks.
func (s *Service) Close() error { return nil }

// Hook is a command that runs at an event.
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
	Name     string  `json:"name" doc:"Name of the hook" maxLength:"64" pattern:"^[a-zA-Z0-9_-]+$"`
	Event    string  `json:"event" doc:"Event that runs the hook; only shutdown is supported" default:"shutdown"`
	Command  string  `json:"command" doc:"Shell command to run" maxLength:"4096"`
	Timeout  float64 `json:"timeout" doc:"Seconds after which the hook is killed" default:"10"`
	Priority int     `json:"priority" doc:"Lower priorities run first; equal ones run concurrently" default:"100"`
}

// Register adds or replaces a hook.
func (s *Service) Register(ctx context.Context, in RegisterIn) (Hook, error) {
	h := Hook{Name: in.Name, Event: in.Event, Command: in.Command, Timeout: in.Timeout, Priority: in.Priority, Source: "api"}
	if err := checkEvent(h.Event); err != nil {
		return Hook{}, err
	}
	if err := checkCommand(h); err != nil {
		return Hook{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, old := s.hooks[h.Name]
	if was.Source == sourceEnv {
		return Hook{}, op.Errorf(op.Denied, "hook %q comes from the sandbox's settings and cannot be replaced; choose another name", h.Name)
	}
	if !old && len(s.hooks) >= maxHooks {
		return Hook{}, op.Errorf(op.Exhausted, "hook limit reached (%d); remove one first", maxHooks)
	}
	s.hooks[h.Name] = h
	if old {
		op.Say(ctx, "Hook %s replaced", h.Name)
	} else {
		op.Say(ctx, "Hook %s registered", h.Name)
	}
	return h, nil
}

func checkEvent(event string) error {
	if event != "shutdown" {
		return op.Errorf(op.Invalid, "unknown event %q; use shutdown", event)
	}
	return nil
}

// ListIn names the event.
type ListIn struct {
	Event string `query:"event" doc:"Event whose hooks to list" default:"shutdown"`
}

// List returns the hooks in the order in which they run.
func (s *Service) List(_ context.Context, in ListIn) ([]Hook, error) {
	if err := checkEvent(in.Event); err != nil {
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

// Removed names the removed hook.
type Removed struct {
	Name string `json:"name"`
}

// Remove removes a hook.
func (s *Service) Remove(ctx context.Context, in RemoveIn) (Removed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hooks[in.Name]
	if !ok {
		return Removed{}, op.Errorf(op.NotFound, "no such hook: %q; list hooks with GET /v1/sandbox/hooks", in.Name)
	}
	if h.Source == sourceEnv {
		return Removed{}, op.Errorf(op.Denied, "hook %q comes from the sandbox's settings and cannot be removed", in.Name)
	}
	delete(s.hooks, in.Name)
	op.Say(ctx, "Hook %s removed", in.Name)
	return Removed(in), nil
}

// Shutdown runs the shutdown hooks in order of priority.
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
				_ = s.run(ctx, h.Name, h.Command, op.Seconds(h.Timeout))
			})
		}
		wait.Wait()
		list = list[n:]
	}
}

// startTimeout limits start hooks, which may install packages.
const startTimeout = 30 * time.Minute

// Begin runs the start hooks and waits for the ports. It returns after the last hook; the server
// responds in the meantime.
func (s *Service) Begin(ctx context.Context) {
	for _, h := range []struct{ name, command string }{{"init", s.Init}, {"pre_services", s.PreServices}} {
		s.setStage("running the hook " + h.name)
		if err := s.runStartHook(ctx, h.name, h.command); err != nil {
			s.fail(err)
			return
		}
	}
	if err := s.awaitPorts(ctx); err != nil {
		s.fail(err)
		return
	}
	s.once.Do(func() { close(s.ready) })
	s.setStage("running the hook post_ready")
	if err := s.runStartHook(ctx, "post_ready", s.PostReady); err != nil {
		s.fail(err)
		return
	}
	s.setStage("")
}

func (s *Service) runStartHook(ctx context.Context, name, command string) error {
	if command == "" {
		return nil
	}
	err := s.run(ctx, name, command, startTimeout)
	if err != nil && !s.Strict {
		s.Log.Warn("start hook failed; the start continues", "hook", name, "error", err)
		return nil
	}
	return err
}

func (s *Service) setStage(stage string) {
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

// State returns the readiness, which is ready, starting or failed, with the current step or reason.
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

// run runs one command and logs its truncated output.
func (s *Service) run(ctx context.Context, name, command string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	res, err := s.Runner.Run(ctx, proc.Command{Path: "/bin/bash", Args: []string{"-c", command}, Dir: s.Dir, Limit: 4 << 10})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("hook %q timed out after %v", name, limit)
	} else if err != nil {
		err = fmt.Errorf("hook %q: %w", name, err)
	} else if res.Exit.Code != 0 {
		err = fmt.Errorf("hook %q failed with exit code %d", name, res.Exit.Code)
	}
	s.Log.Info("hook ran", "hook", name, "error", err, "stdout", string(res.Stdout), "stderr", string(res.Stderr))
	return err
}

// awaitPorts waits until each port accepts a connection.
func (s *Service) awaitPorts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.WaitTimeout)
	defer cancel()
	for _, port := range s.WaitPorts {
		s.setStage(fmt.Sprintf("waiting for port %d", port))
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
