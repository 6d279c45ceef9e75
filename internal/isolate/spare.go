package isolate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Spare is an init that was started ahead: it waits in namespaces of its own to be
// told what it shall be, and costs a few MiB. It ends when it is closed, and with
// the process that prepared it.
type Spare struct {
	ids   IDs
	group *Group
	conn  *net.UnixConn
	h     *Handle
}

// Prepare starts a spare in the control group that its sandbox will have: to move
// it there later would take as long as to start it. See Config.Argv for argv. It
// needs root.
func Prepare(ctx context.Context, argv []string, ids IDs, group *Group) (*Spare, error) {
	if len(argv) == 0 || ids.Count == 0 || os.Geteuid() != 0 {
		return nil, errors.New("isolate: a spare needs Argv, a range of IDs and root")
	}
	s := &starter{cfg: Config{Argv: argv, IDs: ids, Group: group}, spare: true}
	h, entered, err := s.spawn()
	if err != nil {
		s.close()
		return nil, err
	}
	spare := &Spare{ids, group, s.conn, h}
	if err := errors.Join(group.add(h.rec.PID, entered), s.left(ctx)); err != nil {
		spare.Close()
		return nil, fmt.Errorf("isolate: %w", err)
	}
	return spare, nil
}

// Close ends it.
func (s *Spare) Close() error {
	s.conn.Close()
	s.h.Kill()
	select {
	case <-s.h.Done():
	case <-time.After(10 * time.Second):
	}
	return s.h.Close()
}

// usable tells whether it still waits, for a sandbox like this.
func (s *Spare) usable(cfg *Config) bool {
	select {
	case <-s.h.Done():
		return false
	default:
		return s.ids == cfg.IDs && cfg.Group != nil && slices.Equal(s.group.places(), cfg.Group.places())
	}
}

// begin gives the sandbox its init: the spare, or a new one.
func (s *starter) begin(ctx context.Context) (h *Handle, entered []string, err error) {
	spare := s.cfg.Spare
	if spare != nil && (ctx.Err() != nil || !spare.usable(&s.cfg)) {
		spare.Close()
		spare = nil
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case spare == nil:
		return s.spawn()
	}
	s.conn, s.late = spare.conn, true
	return spare.h, spare.group.places(), nil
}

// lateFiles are those that a spare gets with its setup; others start with them.
func (c *Config) lateFiles() []*os.File {
	files := []*os.File{c.Exit, c.Log[0], c.Log[1], c.Control}
	if c.Listen != nil {
		files = append(files, c.Listen)
	}
	return files
}

// takeLate puts the files that came with the setup where they belong, and returns
// the other descriptors.
func takeLate(fds []int, listens bool) ([]int, error) {
	files := [][]int{{1, 2, fdExit}, {fdLog0}, {fdLog1}, {fdControl}}
	if listens {
		files = append(files, []int{fdListen})
	}
	n := len(fds) - len(files)
	if n < 0 {
		return nil, errors.New("files are missing")
	}
	for i, to := range files {
		for _, fd := range to {
			if err := unix.Dup3(fds[n+i], fd, unix.O_CLOEXEC); err != nil {
				return nil, err
			}
		}
		unix.Close(fds[n+i])
	}
	return fds[:n], nil
}
