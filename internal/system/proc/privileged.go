package proc

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// privilegedTimeout bounds a signal through sudo.
const privilegedTimeout = 10 * time.Second

// signalPrivileged signals those processes of the group, or of the session, that belong to
// another user: commands that run with sudo. It uses sudo, too, because this process may not signal
// them. If no process can gain privileges, there are no such commands.
func (p *Process) signalPrivileged(sig syscall.Signal) {
	if os.Geteuid() == 0 {
		return
	}
	if locked, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || locked == 1 {
		return
	}
	table, err := processes()
	if err != nil {
		return
	}
	p.mu.Lock()
	members := p.claim().members(table)
	p.mu.Unlock()
	args := []string{"-n", "--", "sh", "-c", `kill "$@"`, "sh", "-" + strconv.Itoa(int(sig))}
	found := false
	for _, m := range members {
		if isForeign(m.pid) {
			args, found = append(args, strconv.Itoa(m.pid)), true
		}
	}
	if !found {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), privilegedTimeout)
	defer cancel()
	// The caller checks which processes remain.
	if _, err := p.r.Run(ctx, Command{Path: "sudo", Args: args, Dir: "/"}); err != nil {
		p.r.log.Warn("cannot signal a process of another user", "path", p.path, "error", err)
	}
}

// isForeign reports whether a process belongs to another user.
func isForeign(pid int) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && int(st.Uid) != os.Geteuid()
}
