package isolate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// Spare is an init that was started in advance. It waits in its own namespaces for a setup
// and takes a few MiB. It ends with Close, and with the process that prepared it.
type Spare struct {
	ids    IDs
	group  *cgroup.Group
	conn   *net.UnixConn
	h      *Handle
	owners *os.File // see openOwners
}

// Prepare starts a spare in the control group of its future sandbox: moving it later
// would take as long as starting it. See Config.Argv for argv. It needs root.
func Prepare(ctx context.Context, argv []string, ids IDs, group *cgroup.Group) (*Spare, error) {
	if len(argv) == 0 || ids.Count == 0 || os.Geteuid() != 0 {
		return nil, errors.New("isolate: a spare requires Argv, a range of IDs and root")
	}
	s := &starter{cfg: Config{Argv: argv, IDs: ids, Group: group}, spare: true}
	h, entered, err := s.spawn()
	if err != nil {
		s.close()
		return nil, err
	}
	owners, err := s.hostOwners()
	spare := &Spare{ids, group, s.conn, h, owners}
	if err := errors.Join(err, group.Add(h.rec.PID, entered), s.waitThread(ctx)); err != nil {
		spare.Close()
		return nil, fmt.Errorf("isolate: %w", err)
	}
	return spare, nil
}

// Close ends the spare.
func (s *Spare) Close() error {
	s.conn.Close()
	if s.owners != nil {
		s.owners.Close()
	}
	s.h.Kill()
	select {
	case <-s.h.Done():
	case <-time.After(10 * time.Second):
	}
	return s.h.Close()
}

// usable reports whether the spare still waits and matches a sandbox.
func (s *Spare) usable(cfg *Config) bool {
	select {
	case <-s.h.Done():
		return false
	default:
		return s.ids == cfg.IDs && cfg.Group != nil && slices.Equal(s.group.Folders(), cfg.Group.Folders())
	}
}

// takeInit returns the init of the sandbox: the spare, or a new one.
func (s *starter) takeInit(ctx context.Context) (h *Handle, entered []string, err error) {
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
	s.conn, s.owners, s.fromSpare = spare.conn, spare.owners, true
	return spare.h, spare.group.Folders(), nil
}

// filesForSpare returns the files that a spare receives with its setup; other inits start
// with them.
func (c *Config) filesForSpare() []*os.File {
	files := []*os.File{c.Exit, c.Log[0], c.Log[1], c.Control}
	if c.Listen != nil {
		files = append(files, c.Listen)
	}
	return files
}
