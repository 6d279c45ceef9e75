package runner

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// sudoName is the copy of the program sudo, in a separate folder below the state folder, which only root can enter. It
// belongs to root inside; with ID-mapped mounts, that is root of the host on disk.
const sudoName = "programs.sudo/sudo"

// sudoInside is its path inside sandboxes.
const sudoInside = isolate.Programs + "/sudo"

// installSudo copies the program with its mode. It replaces the file itself, because atomicfile keeps owner and mode of
// an old file, and this file may change both. Without root, the program only explains why it cannot become root.
func (l *launcher) installSudo() error {
	if l.cfg.Sudo == "" {
		return nil
	}
	src, err := os.Open(l.cfg.Sudo)
	if err != nil {
		return err
	}
	defer src.Close()
	dir := filepath.Dir(l.sudoPath())
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return fmt.Errorf("install sudo: %w", err)
	}
	to, err := os.CreateTemp(l.cfg.Dir, ".sudo-")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name())
	_, err = io.Copy(to, src)
	if err = errors.Join(err, to.Close(), l.disks.Chown(to.Name(), 0)); err != nil {
		return fmt.Errorf("install sudo: %w", err)
	}
	mode := 0o755 | os.ModeSetuid
	if rootless() {
		mode = 0o755
	}
	if err := errors.Join(os.Chmod(to.Name(), mode), os.Rename(to.Name(), l.sudoPath())); err != nil {
		return fmt.Errorf("install sudo: %w", err)
	}
	return nil
}

func (l *launcher) sudoPath() string { return filepath.Join(l.cfg.Dir, sudoName) }

// addSudo lets programs inside become root, unless the spec forbids it.
func (l *launcher) addSudo(cfg *isolate.Config, spec sandbox.Spec) {
	if l.cfg.Sudo == "" {
		return
	}
	cfg.Setuid = !spec.NoRoot && !rootless()
	cfg.Binds = append(cfg.Binds, isolate.Bind{
		Source: isolate.Dir{Path: l.sudoPath(), Mapped: l.disks.Mapping().State}, Target: sudoInside, ReadOnly: true, Setuid: true, Hidden: true})
}
