package containerinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/proc"
	"github.com/cove-sandbox/cove/internal/system/referee"
	"github.com/cove-sandbox/cove/internal/system/seccomp"
)

// EnterVerb is the verb with which this program prepares the process of the server: it installs the filter that passes
// connections of programs to the first process.
const EnterVerb = "enter"

// entry is what the first process sends to the program of EnterVerb.
type entry struct {
	User         *proc.User `json:"user,omitempty"`
	Capabilities uint64     `json:"capabilities"`
	Files        uint64     `json:"files,omitempty"`  // see Plan; the first process has the files of all connections
	Routed       bool       `json:"routed,omitempty"` // the network has a route
}

// maxEntry bounds an encoded entry.
const maxEntry = 64 << 10

// connectPrograms connects programs that use no proxy to the hub's egress proxy. It returns false if they cannot be intercepted.
func connectPrograms(cfg *proc.InitConfig, plan Plan, log *slog.Logger) bool {
	e, r := entry{User: cfg.User, Files: plan.Files}, referee.Config{Copies: true}
	switch root := os.Geteuid() == 0; {
	case plan.Tunnel == nil && root:
		// The network has no route, and the program becomes root of a user namespace to install the filter.
		e.Capabilities, r.Egress = proc.Capabilities(), filepath.Join(HubDir, EgressName)
		// The engine mounts this file, so it is not part of the image. Some engines do not, and the folder may be missing.
		if err := os.WriteFile("/etc/resolv.conf", []byte(isolate.ResolverFile), 0o644); err != nil {
			log.Warn("cannot set the resolver of this sandbox", "error", err)
		}
	case plan.Tunnel != nil && !root && noNewPrivileges():
		e.Capabilities, e.Routed = math.MaxUint64, true // there are none to drop
		r.Open = plan.Tunnel.open
	default:
		return false
	}
	cfg.Enter = &proc.Enter{Argv: []string{"/proc/self/exe", EnterVerb}, Root: !e.Routed,
		Supervise: func(conn int) error { return supervise(conn, e, r) },
		Without:   func() { limitFiles(plan.Files, log) }}
	return true
}

// noNewPrivileges reports whether programs cannot gain privileges. Then every process may install a filter.
func noNewPrivileges() bool {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && set == 1
}

// supervise receives the descriptor of calls from the program of EnterVerb, and decides on them.
func supervise(conn int, e entry, cfg referee.Config) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := unix.Write(conn, text); err != nil {
		return fmt.Errorf("send user: %w", err)
	}
	reply, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(conn, reply, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fmt.Errorf("receive calls: %w", err)
	}
	if oobn == 0 {
		return fmt.Errorf("receive calls: %s", reply[:n])
	}
	list, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(list) != 1 {
		return errors.Join(errors.New("receive calls: no descriptor"), err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil {
		return fmt.Errorf("receive calls: %w", err)
	}
	cfg.Listener = fds[0]
	r, err := referee.New(cfg)
	if err != nil {
		return err
	}
	if _, err := unix.Write(conn, []byte{1}); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	go r.Run()
	return nil
}

// enter installs the filter and replaces this program by the server in args. It returns only if that fails.
func enter(args []string) error {
	runtime.LockOSThread() // filters and capabilities belong to threads
	unix.CloseOnExec(proc.EnterFD)
	buf := make([]byte, maxEntry)
	n, err := unix.Read(proc.EnterFD, buf)
	if err != nil {
		return fmt.Errorf("receive user: %w", err)
	}
	var e entry
	if err := json.Unmarshal(buf[:n], &e); err != nil {
		return fmt.Errorf("receive user: %w", err)
	}
	listener, err := installNotifications(e.Routed)
	if err != nil {
		_, _ = unix.Write(proc.EnterFD, []byte(err.Error())) // the first process starts the server without this program
		return err
	}
	if err := unix.Sendmsg(proc.EnterFD, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("send calls: %w", err)
	}
	unix.Close(listener)
	if n, err := unix.Read(proc.EnterFD, buf); n != 1 {
		return errors.Join(io.ErrUnexpectedEOF, err)
	}
	limitFiles(e.Files, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	return proc.Entered(e.User, e.Capabilities, args, os.Environ())
}

func installNotifications(routed bool) (int, error) {
	filter := seccomp.ContainerNotifications
	if routed {
		filter = seccomp.PodNotifications
	}
	program, err := filter()
	if err != nil {
		return -1, err
	}
	return seccomp.Notify(program)
}
