// Package workbench serves programs that have pages of their own, VS Code and JupyterLab, below a path of the sandbox.
//
// It owns their processes, the sockets that they listen on, and their installation. A program starts on the first
// visit, behind a page that is there at once, is replaced when it dies, which the next visit is told, and stops when
// nobody is connected. Programs trust whoever reaches their socket, so it is in a folder that only the sandbox's user
// can open: who comes through the server has been authenticated, and who may only read is refused, since these
// programs run code.
package workbench

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service.
type Config struct {
	Runner    *proc.Runner
	Home      string
	Workspace string
	State     string // folder for sockets, unless its path is too long
	// Components are the folders where components are looked for. The first one is where they are installed.
	Components []string
	Pages      fs.FS         // has the page that is shown while a program starts
	Idle       time.Duration // after which a program that nobody is connected to stops; 0: never
	Venv       string        // Python environment that may have JupyterLab
	NoCode     bool          // VS Code is disabled
	NoLab      bool          // JupyterLab is disabled
	Log        *slog.Logger
}

// Service runs the programs.
type Service struct {
	cfg      Config
	programs []*program
	life     context.Context // ends with the service
	end      context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // requests, and what they have begun
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: c}
	s.life, s.end = context.WithCancel(context.Background())
	if !c.NoCode {
		s.programs = append(s.programs, newCodeServer(s))
	}
	if !c.NoLab {
		s.programs = append(s.programs, newLab(s))
	}
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	const tag = "component"
	list := []op.Op{
		op.New(op.Spec{Name: "component_list", Route: "GET /v1/sandbox/components", Tag: tag, ReadOnly: true,
			NoTool: true, Columns: []string{"name", "title", "path", "state", "why"},
			Doc: "List the components that can be installed, such as VS Code, with their states."}, s.List),
		op.New(op.Spec{Name: "component_install", Route: "POST /v1/sandbox/components/{name}/install", Tag: tag, NoTool: true,
			Doc: "Install a component. One that is installed already is left alone. The installation continues if the caller leaves."}, s.Install),
	}
	for _, p := range s.programs {
		list = append(list, op.Handle(op.Spec{Name: p.operation, Content: op.ContentSite,
			Route: p.path + "/{path...}", Also: []string{p.path}, Tag: tag, Doc: p.doc}, p))
	}
	return list
}

// Components returns the names of the programs that are not disabled.
func (s *Service) Components() (names []string) {
	for _, p := range s.programs {
		names = append(names, p.name)
	}
	return names
}

func (s *Service) find(name string) (*program, bool) {
	i := slices.IndexFunc(s.programs, func(p *program) bool { return p.name == name })
	if i < 0 {
		return nil, false
	}
	return s.programs[i], true
}

// Close ends all requests, installations and programs.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	for _, p := range s.programs {
		p.component.Stop()
	}
	s.work.Wait()
	for _, p := range s.programs {
		p.component.Stop() // a request that was under way may have started it again
	}
	return nil
}

var errStopping = errors.New("the sandbox is stopping")

// begin counts a piece of work, which ends with done; false if the service is closed.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Add(1)
	}
	return !s.closed
}
