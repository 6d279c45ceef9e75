package runner

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// programsName is a tmpfs with the programs that all sandboxes run, in pages of 2 MiB: mapping 20 MB in small pages
// dominates the cost of a short-lived process.
const programsName = "programs"

// programSpace bounds the folder.
const programSpace = "256m"

// programs are programs of the host that sandboxes run.
type programs struct {
	init  []string
	binds []bind
}

// bind is a Bind; program says that it is an executable file.
type bind struct {
	Bind
	program bool
}

// loadPrograms copies the programs that sandboxes run into memory, if possible; otherwise they run from the original
// path.
func loadPrograms(cfg Config) programs {
	p := programs{init: slices.Clone(cfg.Init), binds: make([]bind, len(cfg.Binds))}
	use := []*string{&p.init[0]}
	for i, b := range cfg.Binds {
		if source, err := filepath.EvalSymlinks(b.Source); err == nil { // mounts do not follow links
			b.Source = source
		}
		info, err := os.Stat(b.Source)
		p.binds[i] = bind{b, err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0}
		if p.binds[i].program {
			use = append(use, &p.binds[i].Source)
		}
	}
	if rootless() {
		return p
	}
	var paths []string
	for _, u := range use {
		paths = append(paths, *u)
	}
	copies, err := mountPrograms(cfg.Dir, paths)
	if err != nil {
		cfg.Log.Info("cannot keep programs in memory; sandboxes start slightly slower", "error", err)
		return p
	}
	for i, u := range use {
		*u = copies[i]
	}
	return p
}

// mountPrograms copies programs into memory and returns the paths of the copies.
func mountPrograms(state string, paths []string) ([]string, error) {
	dir := filepath.Join(state, programsName)
	if err := tree.MakePrivate(dir); err != nil {
		return nil, err
	}
	// A killed hub leaves it mounted.
	if at, err := isMount(dir); err != nil {
		return nil, err
	} else if !at {
		if err := unix.Mount("cove", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "huge=always,mode=0700,size="+programSpace); err != nil {
			return nil, fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	var copies []string
	for _, p := range paths {
		c, err := copyProgram(p, dir)
		if err != nil {
			return nil, errors.Join(err, unmountPrograms(state))
		}
		copies = append(copies, c)
	}
	old, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range old {
		if !slices.Contains(copies, f) {
			err = errors.Join(err, os.Remove(f)) // sandboxes that run it keep it open
		}
	}
	return copies, err
}

// copyProgram copies a program, even if there is a copy: neither time nor size show reliably whether it has changed.
func copyProgram(path, dir string) (string, error) {
	src, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer src.Close()
	to, err := os.CreateTemp(dir, filepath.Base(path)+"-")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, src)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err != nil {
		return "", fmt.Errorf("copy %s: %w", path, err)
	}
	return to.Name(), nil
}

// isMount reports whether a folder is a mount point.
func isMount(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &here), unix.Stat(filepath.Dir(dir), &above)); err != nil {
		return false, err
	}
	return here.Dev != above.Dev, nil
}

// unmountPrograms unmounts the folder. Running sandboxes have their own mounts.
func unmountPrograms(state string) error {
	dir := filepath.Join(state, programsName)
	at, err := isMount(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil || !at:
		return err
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}
