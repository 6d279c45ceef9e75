package observe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// processOps lists the operations on processes.
func (s *Service) processOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "process_list", Route: "GET /v1/sandbox/processes", Tag: "sandbox",
			ReadOnly: true, NoTool: true, Verb: "process list",
			Doc: "List the processes of the sandbox, the busiest first."}, s.List),
		op.New(op.Spec{Name: "process_signal", Route: "POST /v1/sandbox/processes/{pid}/signal", Tag: "sandbox",
			Destructive: true, NoTool: true, Verb: "process signal",
			Doc: "Send a signal to a process of the sandbox."}, s.Signal),
	}
}

const (
	maxListed  = 1000
	maxCommand = 300
)

// Running is a process of the list.
type Running struct {
	PID     int     `json:"pid"`
	Parent  int     `json:"parent" doc:"PID of its parent"`
	Started string  `json:"started" doc:"Identifies the process together with its PID"`
	User    string  `json:"user"`
	Name    string  `json:"name"`
	Command string  `json:"command" doc:"Command line, truncated"`
	State   string  `json:"state" doc:"As in ps: R, S, D, T or Z"`
	CPU     float64 `json:"cpu" doc:"Cores in use since the previous list, or since its start"`
	Memory  int64   `json:"memory" doc:"Resident memory in bytes"`
	Age     float64 `json:"age_seconds"`
	Server  bool    `json:"server" doc:"Whether it is part of the sandbox itself and cannot be ended"`
}

// List lists the processes.
func (s *Service) List(ctx context.Context, _ op.None) ([]Running, error) {
	sample, err := s.measureRates(ctx)
	if err != nil {
		return nil, err
	}
	own := s.ownProcesses()
	out := []Running{}
	for _, p := range sample.Processes {
		if p.RSS == 0 && op.Value(p.PPID) == 2 { // a thread of the kernel
			continue
		}
		r := Running{PID: p.PID, Parent: op.Value(p.PPID), Started: startOf(p), User: p.User, Name: p.Comm,
			Command: s.commandOf(p), State: op.Value(p.State), CPU: op.Value(p.CPUPercent) / 100, Memory: p.RSS,
			Age: op.Value(p.Uptime), Server: own[p.PID]}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Running) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.PID, b.PID))
	})
	return out[:min(len(out), maxListed)], nil
}

func startOf(p Process) string { return strconv.FormatUint(p.key.start, 10) }

// commandOf returns the command line of a process, or its name if it has none.
func (s *Service) commandOf(p Process) string {
	b, err := os.ReadFile(filepath.Join(s.cfg.Proc, strconv.Itoa(p.PID), "cmdline"))
	if err != nil || len(b) == 0 {
		return p.Comm
	}
	text := strings.ToValidUTF8(string(bytes.ReplaceAll(bytes.TrimRight(b, "\x00"), []byte{0}, []byte{' '})), "\uFFFD")
	if len(text) > maxCommand {
		text = strings.ToValidUTF8(text[:maxCommand], "") + "…"
	}
	return text
}

// ownProcesses returns the PIDs of this server and of its parents, without which the sandbox ends.
func (s *Service) ownProcesses() map[int]bool {
	own := map[int]bool{1: true}
	for pid := os.Getpid(); pid > 1 && !own[pid]; {
		own[pid] = true
		p, ok := readProcess(filepath.Join(s.cfg.Proc, strconv.Itoa(pid)), pid, 0)
		if !ok {
			break
		}
		pid = op.Value(p.PPID)
	}
	return own
}

// SignalIn is a signal for a process.
type SignalIn struct {
	PID     int    `path:"pid" doc:"PID of the process" minimum:"1"`
	Signal  string `json:"signal" default:"TERM" enum:"TERM,KILL,INT,HUP,STOP,CONT" doc:"Signal to send"`
	Started string `json:"started" default:"" doc:"Only if the process with this PID has this value in the list"`
}

// SignalOut is the process that got the signal.
type SignalOut struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// Signal sends a signal. A descriptor of the process ensures that no other process with the same PID gets it.
func (s *Service) Signal(_ context.Context, in SignalIn) (SignalOut, error) {
	if s.ownProcesses()[in.PID] {
		return SignalOut{}, op.Errorf(op.Conflict, "process %d is part of the sandbox itself; stop or delete the sandbox instead", in.PID)
	}
	gone := op.Errorf(op.NotFound, "no such process: %d; it has ended", in.PID)
	fd, err := unix.PidfdOpen(in.PID, 0)
	switch {
	case errors.Is(err, unix.ENOSYS): // an old kernel
		fd = -1
	case err != nil:
		return SignalOut{}, gone
	default:
		defer unix.Close(fd)
	}
	p, ok := readProcess(filepath.Join(s.cfg.Proc, strconv.Itoa(in.PID)), in.PID, 0)
	if !ok || in.Started != "" && in.Started != startOf(p) {
		return SignalOut{}, gone
	}
	sig := unix.SignalNum("SIG" + in.Signal)
	if fd >= 0 {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	} else {
		err = syscall.Kill(in.PID, sig)
	}
	switch {
	case errors.Is(err, unix.ESRCH):
		return SignalOut{}, gone
	case errors.Is(err, unix.EPERM):
		return SignalOut{}, op.Errorf(op.Denied, "process %d belongs to another user; end it with sudo", in.PID)
	case err != nil:
		return SignalOut{}, op.Errorf(op.Unavailable, "cannot send the signal: %w", err)
	}
	return SignalOut{in.PID, p.Comm}, nil
}
