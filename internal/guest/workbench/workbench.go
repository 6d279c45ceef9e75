// Package workbench serves VS Code and JupyterLab under paths of the sandbox.
//
// It owns their processes, the sockets that they listen on, and their installation. A program starts on the first visit, while
// the visitor gets a waiting page. It is restarted after a crash, which the next visit reports, and stops when no client is
// connected. Programs accept every client of their socket, so the socket is in a folder that only the sandbox's user can open.
// The server authenticates clients, and refuses read-only clients, because these programs run code.
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
	// Components are the folders that contain components. New ones are installed into the first folder.
	Components []string
	Pages      fs.FS         // contains the page that is shown while a program starts
	Idle       time.Duration // a program without clients stops after this time; 0 means never
	Venv       string        // Python environment that may contain JupyterLab
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
	work   sync.WaitGroup // requests, installations and starts
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
			Doc: "List the available components, such as VS Code, with their states."}, s.List),
		op.New(op.Spec{Name: "component_install", Route: "POST /v1/sandbox/components/{name}/install", Tag: tag, NoTool: true,
			Doc: "Install a component, unless it is installed already. The installation continues if the caller " +
				"disconnects."}, s.Install),
	}
	for _, p := range s.programs {
		list = append(list, op.Handle(op.Spec{Name: p.operation, Content: op.ContentSite,
			Route: p.path + "/{path...}", Also: []string{p.path}, Tag: tag, Doc: p.doc}, p))
	}
	return list
}

// Components returns the names of the enabled programs.
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
		p.component.Stop() // an in-flight request may have started it again
	}
	return nil
}

var errStopping = errors.New("the sandbox is stopping")

// begin registers work, which ends with s.work.Done. It returns false if the service is closed.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Add(1)
	}
	return !s.closed
}
