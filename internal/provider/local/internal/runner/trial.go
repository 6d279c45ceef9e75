package runner

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// trialName is the ID of the trial sandbox.
const trialName = "trial"

// tryMappings runs a trial sandbox, with ID-mapped mounts if the filesystems support them.
func (l *launcher) tryMappings(ctx context.Context) error {
	mappings := []disk.Mapping{{State: true, Host: true}, {State: true}, {}}
	if rootless() || l.cfg.WithoutIDMaps {
		mappings = mappings[2:]
	}
	var err error
	for _, m := range mappings {
		if err = l.runTrial(ctx, m); !errors.Is(err, isolate.ErrNoIDMap) {
			break
		}
	}
	return err
}

// runTrial runs a sandbox that ends immediately.
func (l *launcher) runTrial(ctx context.Context, m disk.Mapping) (err error) {
	if err := errors.Join(l.disks.Prepare(m), l.installSudo()); err != nil {
		return err
	}
	b := &box{
		dir: filepath.Join(filepath.Dir(l.disks.Sandboxes()), trialName), sockets: l.sockets.Dir(trialName),
		rec: state{Sandbox: sandbox.Sandbox{ID: trialName}},
	}
	if err := tree.Remove(b.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tree.Remove(b.dir), tree.Remove(b.sockets)) }()
	defer func() { err = errors.Join(err, l.disks.Drop(b.rec.Disk)) }()
	if err := l.makeFolder(b); err != nil {
		return err
	}
	cfg, done, err := l.isolation(b, l.defaults.complete(b.rec.Sandbox.Spec, nil))
	if err != nil {
		return err
	}
	defer done()
	cfg.Process.Args = nil
	if b.group, err = l.groups.Create(trialName, cfg.Limits.Group()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.group.Remove(context.WithoutCancel(ctx))) }()
	cfg.Group = b.group
	h, _, err := isolate.Start(ctx, cfg)
	if err != nil {
		return err
	}
	<-h.Done()
	return h.Close()
}
