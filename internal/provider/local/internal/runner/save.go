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

// saving is the progress of pausing a sandbox to disk.
type saving string

const (
	// saveBegun: it runs and is being written. If a hub finds it ended, its image shows whether it is complete.
	saveBegun saving = "begun"
	// saveDone: it does not run, and saved/ is complete.
	saveDone saving = "done"
)

// Names in the folder saved. Only image is written by the user of the sandbox.
const (
	savedName   = "saved"
	imageName   = "image"     // by gVisor
	specName    = "spec.json" // gVisor's configuration of the image
	hostName    = "host"      // version of the host's packages
	programName = "program-"  // the hub's programs, which may be replaced later
)

// imageFiles are the files that gVisor writes, in this order.
var imageFiles = []string{"pages_meta.img", "pages.img", "checkpoint.img"}

// Saver pauses sandboxes to disk and resumes them.
type Saver struct{ runner *Runner }

// Saver returns the Saver of a Runner.
func (r *Runner) Saver() Saver { return Saver{r} }

// Check returns why sandboxes cannot be paused to disk here; nil if they can.
func (s Saver) Check() error {
	switch {
	case rootless():
		return errors.New("requires gVisor, which requires root")
	case s.runner.cfg.Runsc == "":
		return errors.New("requires gVisor; install runsc, or set its path with --runsc")
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
			"only sandboxes with isolation %s can be paused to disk", sandbox.ErrUnsupported, sb.Spec.Name, GVisor)
	}
	if err := r.disks.CheckSpace(); err != nil {
		return err
	}
	if sb.State == sandbox.Paused {
		if err := b.thaw(ctx); err != nil {
			return err
		}
		if err := r.change(row, func(sb *sandbox.Sandbox) { sb.State = sandbox.Running }); err != nil {
			return err
		}
	}
	return s.save(ctx, row)
}

// saveTimeout bounds the writing of a sandbox, which must not be interrupted.
const saveTimeout = 10 * time.Minute

// save writes a running sandbox to disk. If that fails, it continues to run.
func (s Saver) save(ctx context.Context, row *sandbox.Row[*box]) error {
	r, b := s.runner, row.Data
	if err := r.launcher.prepareSave(b); err != nil {
		return errors.Join(err, b.dropSave())
	}
	// Recorded first, so that the next hub can continue if this one dies.
	b.rec.Save = saveBegun
	if err := r.save(b); err != nil {
		return err
	}
	// The end of the request must not interrupt the write, because the sandbox is ending.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	if err := socket.Save(ctx, b.sockets, b.path(savedName, imageName)); errors.Is(err, control.ErrNotSaved) {
		return errors.Join(fmt.Errorf("%w: %w; the sandbox continues to run", sandbox.ErrState, err), b.dropSave(), r.save(b))
	} else if err != nil && !b.hasEnded() {
		return err // it may still end; see fail
	}
	return s.finish(ctx, row)
}

// finish records a sandbox as paused, after its processes were saved and ended.
func (s Saver) finish(ctx context.Context, row *sandbox.Row[*box]) error {
	r, b := s.runner, row.Data
	if b.run != nil {
		<-b.run.Done() // its init has written its last record
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

// hasEnded reports whether all processes of the sandbox have ended.
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

// prepareSave writes everything that a restore requires in addition to the image.
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

// savedPrograms returns the programs to run; for a saved sandbox, the saved copies.
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

// hostPackages identifies the version of the host's programs, which a sandbox without an image shares: a saved process
// requires the files that it had mapped.
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

// gvisor returns the configuration of gVisor, without its socket and restore.
func (l *launcher) gvisor(b *box) gvisor.Config {
	return gvisor.Config{Runsc: l.cfg.Runsc, Bundle: filepath.Join(b.sockets, "gvisor")}
}

// addGVisor runs the program under gVisor. It restores a saved sandbox.
func (l *launcher) addGVisor(cfg *isolate.Config, b *box, spec sandbox.Spec) error {
	g := l.gvisor(b)
	g.OwnSocket = !l.defaults.usesDoor(spec) && spec.Server.Port == 0
	if b.rec.Save == saveDone {
		before, err := os.ReadFile(b.path(savedName, hostName))
		if err != nil {
			return err
		}
		if string(before) != hostPackages(b) {
			return fmt.Errorf("%w: packages were installed or removed on the host after the sandbox was paused to "+
				"disk, and its processes may use their files; "+
				"stop and start it, which keeps its disk but not its processes", sandbox.ErrState)
		}
		if g.Spec, err = os.ReadFile(b.path(savedName, specName)); err != nil {
			return err
		}
		g.Image = b.path(savedName, imageName)
	}
	return gvisor.Wrap(cfg, g)
}

// saveIsComplete reports whether gVisor has written all files.
func (b *box) saveIsComplete() bool {
	for _, name := range imageFiles {
		if info, err := os.Lstat(b.path(savedName, imageName, name)); err != nil || info.Size() == 0 {
			return false
		}
	}
	exit, ok := isolate.ReadExit(b.path(exitName))
	return ok && exit.Saved && b.rec.Save != ""
}

// dropSave deletes the saved memory and processes.
func (b *box) dropSave() error {
	b.rec.Save = ""
	err := tree.Remove(b.path(savedName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// resume resumes a sandbox that is paused to disk. If that fails, it stays saved.
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
	err = r.watcher.checkUsage(row.Data)
	if err == nil {
		err = r.start(ctx, row)
	}
	if err != nil {
		row.Data.rec.Save = saveDone
		err = errors.Join(fmt.Errorf("restore from disk: %w", err), r.change(row, func(sb *sandbox.Sandbox) { *sb = before }))
	}
	return true, err
}
