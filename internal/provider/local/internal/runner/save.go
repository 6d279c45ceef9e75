package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/gvisor"
)

// saving is how far a sandbox is with being saved.
type saving string

const (
	// saveBegun: it runs and is being written. If it has ended when a hub finds it, its image
	// says whether it is complete.
	saveBegun saving = "begun"
	// saveDone: nothing of it runs, and saved/ has it all.
	saveDone saving = "done"
)

// What is in a sandbox's folder saved: only image is written by the sandbox's own user.
const (
	savedName   = "saved"
	imageName   = "image"     // by gVisor
	specName    = "spec.json" // what the image was made under
	hostName    = "host"      // the state of the host's packages
	programName = "program-"  // our programs, which may be replaced meanwhile
)

// imageFiles are what gVisor writes, the last of them last.
var imageFiles = []string{"pages_meta.img", "pages.img", "checkpoint.img"}

// Saver pauses sandboxes to disk and brings them back.
type Saver struct{ runner *Runner }

// Saver returns what pauses to disk.
func (r *Runner) Saver() Saver { return Saver{r} }

// Check returns why sandboxes cannot be paused to disk here, if they cannot.
func (s Saver) Check() error {
	switch {
	case rootless():
		return errors.New("it takes gVisor, which needs root")
	case s.runner.cfg.Runsc == "":
		return errors.New("it takes gVisor; install runsc, or name it with --runsc")
	}
	return nil
}

// PauseToDisk implements sandbox.Saver.
func (s Saver) PauseToDisk(ctx context.Context, id string) error {
	r := s.runner
	ctx, done, err := r.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := r.table.AcquireIdle(ctx, id)
	if err != nil {
		return err
	}
	defer row.Release()
	b, sb := row.Data, row.Sandbox()
	switch {
	case b.rec.Save == saveDone:
		return nil
	case sb.State != sandbox.Running && sb.State != sandbox.Paused:
		return fmt.Errorf("%w: sandbox %q is %s", sandbox.ErrState, sb.Spec.Name, sb.State)
	case s.Check() != nil:
		return fmt.Errorf("%w: pause to disk: %w", sandbox.ErrUnsupported, s.Check())
	case sb.Spec.Isolation != GVisor:
		return fmt.Errorf("%w: pause to disk: sandbox %q shares the host's kernel, which cannot write processes to disk; "+
			"only sandboxes that were created with isolation %s can be paused to disk", sandbox.ErrUnsupported, sb.Spec.Name, GVisor)
	}
	if err := r.disks.CheckSpace(); err != nil {
		return err
	}
	if sb.State == sandbox.Paused {
		if err := b.group.Thaw(ctx); err != nil {
			return err
		}
		if err := r.change(row, func(sb *sandbox.Sandbox) { sb.State = sandbox.Running }); err != nil {
			return err
		}
	}
	return s.save(ctx, row)
}

// saveTimeout bounds the writing of a sandbox, which must not be given up half-way.
const saveTimeout = 10 * time.Minute

// save writes a running sandbox to disk. If that fails, it goes on.
func (s Saver) save(ctx context.Context, row *sandbox.Row[*box]) error {
	r, b := s.runner, row.Data
	if err := r.launcher.prepareSave(b); err != nil {
		return errors.Join(err, b.dropSave())
	}
	// Recorded first: if we die meanwhile the next hub can tell what it finds.
	b.rec.Save = saveBegun
	if err := r.save(b); err != nil {
		return err
	}
	// Whoever asked may go away: what has begun to end is written completely.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	if err := socket.Save(ctx, b.sockets, b.path(savedName, imageName)); errors.Is(err, control.ErrNotSaved) {
		return errors.Join(fmt.Errorf("%w: %w; the sandbox goes on", sandbox.ErrState, err), b.dropSave(), r.save(b))
	} else if err != nil && !b.hasEnded() {
		return err // it may end yet: see fail
	}
	return s.finish(ctx, row)
}

// finish records a sandbox as paused, after its processes were saved and ended.
func (s Saver) finish(ctx context.Context, row *sandbox.Row[*box]) error {
	r, b := s.runner, row.Data
	if b.run != nil {
		<-b.run.Done() // with the last of its init's records
	}
	if !b.saveIsComplete() {
		r.fail(ctx, row)
		return fmt.Errorf("%w: the sandbox ended while it was paused to disk: %s", sandbox.ErrState, row.Sandbox().Message)
	}
	if err := errors.Join(syncFiles(b.path(savedName)), syncFiles(b.path(savedName, imageName)), b.kill(ctx)); err != nil {
		return err
	}
	b.rec.Save = saveDone
	return r.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Paused, "paused to disk" })
}

// hasEnded reports whether nothing of the sandbox runs.
func (b *box) hasEnded() bool {
	select {
	case <-b.run.Done():
		return true
	default:
		return false
	}
}

// syncFiles writes the files in a folder to the disk.
func syncFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() {
			err = errors.Join(err, record.Sync(dir, e.Name()))
		}
	}
	return err
}

// prepareSave writes everything that a restore needs beside the image.
func (l *launcher) prepareSave(b *box) error {
	if err := tree.Remove(b.path(savedName)); err != nil {
		return err
	}
	spec, err := l.gvisor(b).ReadSpec()
	if err != nil {
		return err
	}
	err = errors.Join(os.MkdirAll(b.path(savedName, imageName), 0o700),
		os.WriteFile(b.path(savedName, specName), spec, 0o600),
		os.WriteFile(b.path(savedName, hostName), []byte(hostPackages(b)), 0o600))
	for i, m := range l.programs.binds {
		if err == nil && m.program {
			err = copyFile(m.Source, b.savedProgram(i))
		}
	}
	if err != nil {
		return err
	}
	root := int(l.ids.of(b.rec.Slot).Base)
	return os.Lchown(b.path(savedName, imageName), root, root)
}

func (b *box) savedProgram(i int) string {
	return b.path(savedName, fmt.Sprintf("%s%d", programName, i))
}

// copyFile copies a program. The image refers to its content.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Chmod(0o755), dst.Close())
}

// savedPrograms returns the programs to run: those that a saved sandbox was running.
func (b *box) savedPrograms(list []bind) []bind {
	if b.rec.Save != saveDone {
		return list
	}
	list = slices.Clone(list)
	for i, m := range list {
		if m.program {
			list[i].Source = b.savedProgram(i)
		}
	}
	return list
}

// hostPackages tells the programs that a sandbox without an image shares with the host from
// others: a saved process must find the files that it had mapped.
func hostPackages(b *box) string {
	if b.rec.Image != nil {
		return ""
	}
	st, err := os.Stat("/var/lib/dpkg/status")
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d bytes, %v", st.Size(), st.ModTime().UnixNano())
}

// gvisor says how the sandbox is run under gVisor; how it is served and what is restored is
// left open.
func (l *launcher) gvisor(b *box) gvisor.Config {
	return gvisor.Config{Runsc: l.cfg.Runsc, Bundle: filepath.Join(b.sockets, "gvisor")}
}

// addGVisor puts gVisor between the program and the kernel, and has it restore a saved
// sandbox.
func (l *launcher) addGVisor(cfg *isolate.Config, b *box, spec sandbox.Spec) error {
	g := l.gvisor(b)
	g.OwnSocket = !l.defaults.usesDoor(spec) && spec.Server.Port == 0
	if b.rec.Save == saveDone {
		before, err := os.ReadFile(b.path(savedName, hostName))
		if err != nil {
			return err
		}
		if string(before) != hostPackages(b) {
			return fmt.Errorf("%w: packages were installed or removed on the host since the sandbox was paused to "+
				"disk, and its processes may use files of theirs; "+
				"stop it and start it again, which loses its processes and keeps its disk", sandbox.ErrState)
		}
		if g.Spec, err = os.ReadFile(b.path(savedName, specName)); err != nil {
			return err
		}
		g.Image = b.path(savedName, imageName)
	}
	return gvisor.Wrap(cfg, g)
}

// saveIsComplete reports whether gVisor has written everything.
func (b *box) saveIsComplete() bool {
	for _, name := range imageFiles {
		if info, err := os.Lstat(b.path(savedName, imageName, name)); err != nil || info.Size() == 0 {
			return false
		}
	}
	exit, ok := isolate.ReadExit(b.path(exitName))
	return ok && exit.Saved && b.rec.Save != ""
}

// dropSave forgets what was saved.
func (b *box) dropSave() error {
	b.rec.Save = ""
	err := tree.Remove(b.path(savedName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// resume brings a sandbox back that is paused to disk, if it is. If that fails, it stays
// saved.
func (s Saver) resume(ctx context.Context, id string) (saved bool, err error) {
	r := s.runner
	ctx, done, err := r.table.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	row, err := r.table.AcquireIdle(ctx, id)
	if err != nil {
		return false, err
	}
	defer row.Release()
	if row.Data.rec.Save != saveDone {
		return false, nil
	}
	before := row.Sandbox()
	err = r.watcher.checkRoom(row.Data)
	if err == nil {
		err = r.start(ctx, row)
	}
	if err != nil {
		row.Data.rec.Save = saveDone
		err = errors.Join(fmt.Errorf("restore from disk: %w", err), r.change(row, func(sb *sandbox.Sandbox) { *sb = before }))
	}
	return true, err
}
