package bash

import (
	"container/list"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Statuses of a command.
const (
	pending   = "pending"
	running   = "running"
	completed = "completed"
	timedOut  = "timed_out"
	killed    = "killed"
)

// command is one process and its kept output.
type command struct {
	id       string
	text     string
	session  *Session
	out, err *spool
	bell     *bell
	ended    chan struct{}

	// Guarded by the service's lock.
	holders   int // requests that read its output
	discarded bool
	place     *list.Element // in Service.finished

	mu      sync.Mutex
	p       *proc.Process // nil before it is started, then never changed
	in      *input        // nil: its standard input is empty
	status  string
	exit    *int
	sent    uint64 // signals that were sent on request, as bits
	expired bool   // ended by its hard timeout
	stopped bool   // stop was called; if it has no process yet, it is stopped after its start
	limit   *time.Timer
	ends    [2]int64 // sizes of stdout and stderr when it ended
}

func (s *Service) newCommand(ss *Session, text string) *command {
	b := &bell{}
	s.store.memory.add(len(text))
	return &command{
		id: session.NewID(), text: text, session: ss, status: pending, holders: 1,
		out: s.store.spool(b), err: s.store.spool(b), bell: b, ended: make(chan struct{}),
	}
}

// CommandInfo describes a command.
type CommandInfo struct {
	CommandID string `json:"command_id" doc:"ID of the command"`
	Command   string `json:"command" doc:"The command line"`
	Status    string `json:"status" enum:"pending,running,completed,timed_out,killed" doc:"State of the command"`
	ExitCode  *int   `json:"exit_code" doc:"Exit code; null while the command runs, 128 + n if signal n killed it"`
}

func (c *command) info() CommandInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CommandInfo{CommandID: c.id, Command: c.text, Status: c.status, ExitCode: c.exit}
}

func (c *command) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// begin records the started process.
func (c *command) begin(p *proc.Process, in *os.File) {
	c.mu.Lock()
	c.p, c.status = p, running
	if in != nil {
		c.in = &input{f: in, turn: make(chan struct{}, 1)}
	}
	stopped := c.stopped
	c.mu.Unlock()
	if stopped { // its session was closed during the start
		p.Stop()
	}
}

// stop ends the command and its process group. Its status becomes killed.
func (c *command) stop() {
	c.mu.Lock()
	p := c.p
	c.stopped = true
	c.sent |= 1<<syscall.SIGTERM | 1<<syscall.SIGKILL
	c.mu.Unlock()
	if p != nil {
		p.Stop()
	}
}

// expireAfter ends the command after its hard timeout.
func (s *Service) expireAfter(c *command, d time.Duration) {
	s.tasks.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = time.AfterFunc(d, func() {
		defer s.tasks.Done()
		select {
		case <-c.p.Done(): // its background processes continue
			return
		default:
		}
		c.mu.Lock()
		c.expired = true
		c.mu.Unlock()
		c.p.Stop()
	})
}

// watch settles a command that no request waits for, when it ends.
func (s *Service) watch(c *command) {
	go func() {
		select {
		case <-c.p.Done():
		case <-s.quit:
		}
		s.settle(c)
	}()
}

// settle records the end of a command. It must be called exactly once for every started
// command, when its process has ended or Close has stopped waiting for it.
func (s *Service) settle(c *command) {
	defer s.tasks.Done()
	c.mu.Lock()
	exit := c.p.Exit()
	c.status = completed
	switch {
	case exit.Code < 0: // not even SIGKILL ended it
		c.status = running
	case c.expired:
		c.status = timedOut
	case exit.Code > 128 && exit.Code < 128+64 && c.sent&(1<<(exit.Code-128)) != 0:
		c.status = killed
	}
	if c.status != running {
		c.exit = &exit.Code
	}
	_, c.ends[0] = c.out.extent()
	_, c.ends[1] = c.err.extent()
	limit := c.limit
	c.mu.Unlock()
	if limit != nil && limit.Stop() {
		s.tasks.Done()
	}
	if c.in != nil {
		c.in.f.Close() // fails if a writer has closed it
	}
	s.mu.Lock()
	c.session.Leave()
	if !c.discarded {
		c.place = s.finished.PushBack(c)
	}
	s.mu.Unlock()
	close(c.ended)
}

// release ends a request's use of a command's output.
func (s *Service) release(c *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.holders--
	if c.discarded && c.holders == 0 {
		c.drop()
	}
}

// discard discards a command and, as soon as no request reads it, its output. The lock is
// held, and the caller removes the command from its session.
func (s *Service) discard(c *command) {
	if c.place != nil {
		s.finished.Remove(c.place)
		c.place = nil
	}
	c.discarded = true
	s.store.memory.release(len(c.text))
	if c.holders == 0 {
		c.drop()
	}
}

func (c *command) drop() {
	c.out.drop()
	c.err.drop()
}

// reclaim discards the command that ended first, to free space for the output of others.
// It returns false if no command has ended.
func (s *Service) reclaim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.finished.Front()
	if oldest == nil {
		return false
	}
	c := oldest.Value.(*command)
	s.discard(c)
	c.session.remove(c)
	return true
}

func (ss *Session) remove(c *command) {
	for i, other := range ss.order {
		if other == c {
			ss.order = append(ss.order[:i:i], ss.order[i+1:]...)
			return
		}
	}
}
