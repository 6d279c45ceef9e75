package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// programsName is the folder, in memory, of the programs that all sandboxes run.
// There they are in pages of 2 MiB: to map one of 20 MB page by page, and to unmap
// it, is a good part of what a process costs that lives for a second.
const programsName = "programs"

// programSpace bounds the folder.
const programSpace = "256m"

// shown is a Bind as sandboxes get it.
type shown struct {
	Bind
	program bool
}

// loadPrograms puts the programs that sandboxes run into memory, where that works;
// they run as well from where they are.
func (p *Provider) loadPrograms() {
	p.init = slices.Clone(p.cfg.Init)
	use := []*string{&p.init[0]}
	p.binds = make([]shown, len(p.cfg.Binds))
	for i, b := range p.cfg.Binds {
		info, err := os.Stat(b.Source)
		p.binds[i] = shown{b, err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0}
		if p.binds[i].program {
			use = append(use, &p.binds[i].Source)
		}
	}
	if rootless() {
		return
	}
	var paths []string
	for _, u := range use {
		paths = append(paths, *u)
	}
	copies, err := openPrograms(p.cfg.Dir, paths)
	if err != nil {
		p.cfg.Log.Info("programs are not kept in memory; sandboxes start a little slower", "error", err)
		return
	}
	for i, u := range use {
		*u = copies[i]
	}
}

// openPrograms copies programs into memory and returns what to use instead of each.
func openPrograms(state string, paths []string) ([]string, error) {
	dir := filepath.Join(state, programsName)
	if err := makePrivate(dir); err != nil {
		return nil, err
	}
	// A hub that was killed leaves it mounted.
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
			return nil, errors.Join(err, closePrograms(state))
		}
		copies = append(copies, c)
	}
	old, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range old {
		if !slices.Contains(copies, f) {
			err = errors.Join(err, os.Remove(f)) // sandboxes that run it keep it
		}
	}
	return copies, err
}

// copyProgram copies a program, always anew: neither its time nor its size tell
// whether it has changed.
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

// isMount tells whether something is mounted on a folder.
func isMount(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &here), unix.Stat(filepath.Dir(dir), &above)); err != nil {
		return false, err
	}
	return here.Dev != above.Dev, nil
}

// closePrograms lets go of the folder; sandboxes that run have mounts of their own.
func closePrograms(state string) error {
	dir := filepath.Join(state, programsName)
	at, err := isMount(dir)
	switch {
	case notThere(err):
		return nil
	case err != nil || !at:
		return err
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}
