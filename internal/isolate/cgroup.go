package isolate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroups is a place of our own in the machine's control groups, in whichever
// hierarchies (v1, v2 or both) carry the controllers we use. It only ever
// touches groups below that place.
type Cgroups struct {
	unified string            // our group in the v2 hierarchy, "" if there is none
	dirs    map[string]string // controller to our group in the hierarchy that carries it
	missing []string
}

// The controllers that limits need. The freezer is a file of every v2 group and
// a controller in v1.
var controllers = []string{"memory", "cpu", "pids", "freezer"}

// OpenCgroups makes or finds the group called name. Parent is the path of a v2
// group that was delegated to us; if it is empty name is put at the top of the
// mounted hierarchies. What cannot be had is told by Missing and is no error.
func OpenCgroups(name, parent string) (*Cgroups, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	v2, v1 := cgroupMounts(string(mounts))
	if parent != "" {
		v2, v1 = parent, nil
	}
	c := &Cgroups{dirs: map[string]string{}}
	why := map[string]error{}
	if v2 != "" {
		if err := c.openUnified(filepath.Join(v2, name)); err != nil {
			why["unified"] = err
		}
	}
	for _, ctrl := range controllers {
		mount, ok := v1[ctrl]
		if _, done := c.dirs[ctrl]; done || !ok {
			continue
		}
		dir := filepath.Join(mount, name)
		if err := mkdir(dir); err != nil {
			why[ctrl] = err
			continue
		}
		c.dirs[ctrl] = dir
	}
	for _, ctrl := range controllers {
		if c.dirs[ctrl] == "" {
			c.missing = append(c.missing, lack(ctrl, errors.Join(why[ctrl], why["unified"])))
		}
	}
	return c, nil
}

func lack(ctrl string, why error) string {
	if why != nil {
		return fmt.Sprintf("no %s control: %v; run as root or delegate a cgroup v2 group with the memory, cpu and pids controllers", ctrl, why)
	}
	return fmt.Sprintf("no %s control: the kernel or the parent group does not offer that cgroup controller", ctrl)
}

// cgroupMounts finds where the v2 hierarchy and each v1 controller are mounted.
func cgroupMounts(mountinfo string) (v2 string, v1 map[string]string) {
	v1 = map[string]string{}
	for line := range strings.Lines(mountinfo) {
		head, tail, ok := strings.Cut(line, " - ")
		at, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(at) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			if v2 == "" {
				v2 = at[4]
			}
		case "cgroup":
			for opt := range strings.SplitSeq(kind[2], ",") {
				if slices.Contains(controllers, opt) && v1[opt] == "" {
					v1[opt] = at[4]
				}
			}
		}
	}
	return v2, v1
}

func (c *Cgroups) openUnified(dir string) error {
	if err := mkdir(dir); err != nil {
		return err
	}
	offered, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var failed []error
	for _, ctrl := range strings.Fields(string(offered)) {
		if !slices.Contains(controllers, ctrl) {
			continue
		}
		if err := write(filepath.Join(dir, "cgroup.subtree_control"), "+"+ctrl); err != nil {
			failed = append(failed, err)
			continue
		}
		c.dirs[ctrl] = dir
	}
	c.unified = dir
	// Kernels before 5.2 have a v2 hierarchy that cannot freeze.
	if probe := filepath.Join(dir, "cgroup.freeze"); exists(probe) {
		c.dirs["freezer"] = dir
	}
	return errors.Join(failed...)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Has says whether a controller (memory, cpu, pids, freezer) can be used.
func (c *Cgroups) Has(ctrl string) bool { return c.dirs[ctrl] != "" }

// Missing says in sentences which controllers cannot be used, and why.
func (c *Cgroups) Missing() []string { return slices.Clone(c.missing) }

// places lists our group in each hierarchy once.
func (c *Cgroups) places() []string {
	var dirs []string
	if c.unified != "" {
		dirs = append(dirs, c.unified)
	}
	for _, ctrl := range controllers {
		if d := c.dirs[ctrl]; d != "" && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// IDs lists the groups there are, so that orphans can be found.
func (c *Cgroups) IDs() []string {
	var ids []string
	for _, place := range c.places() {
		entries, _ := os.ReadDir(place)
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	return ids
}

// Make creates the group of one sandbox and sets its limits. A group of that
// name left by an earlier run is used as it is.
func (c *Cgroups) Make(id string, l Limits) (*Group, error) {
	g := c.Group(id)
	for _, dir := range g.places() {
		if err := mkdir(dir); err != nil {
			g.rmdir()
			return nil, fmt.Errorf("make control group: %w", err)
		}
	}
	if err := g.Set(l); err != nil {
		g.rmdir()
		return nil, err
	}
	return g, nil
}

// Group returns the group of one sandbox, which need not exist.
func (c *Cgroups) Group(id string) *Group {
	g := &Group{dirs: map[string]string{}}
	if c.unified != "" {
		g.unified = filepath.Join(c.unified, id)
	}
	for ctrl, dir := range c.dirs {
		g.dirs[ctrl] = filepath.Join(dir, id)
	}
	return g
}

// Close removes our place if no sandbox is left in it.
func (c *Cgroups) Close() error {
	var errs []error
	for _, dir := range c.places() {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
