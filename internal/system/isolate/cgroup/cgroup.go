// Package cgroup limits, freezes, measures and kills sandboxes with Linux control
// groups, v1, v2 or both.
//
// It owns one group, in each hierarchy with a controller that it uses, and the groups
// of sandboxes below. It changes no other groups.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the hub's group, which contains one group per sandbox.
type Root struct {
	unified string            // its folder in the v2 hierarchy, "" if there is none
	dirs    map[string]string // its folder by controller, in the hierarchy with the controller
	missing []string
}

// allShare is the share of all sandboxes together under contention, in thousandths of a processor:
// that of eight processes outside.
const allShare = 8000

// controllers lists the used controllers. The freezer is a file of every v2 group and a
// controller in v1.
var controllers = []string{"memory", "cpu", "pids", "freezer", "io"}

// Open creates or finds the group called name. Parent is the path of a v2 group that
// was delegated to the hub. If it is empty, the group is below that of this process, if that was
// delegated to it without root, or else at the top of the mounted hierarchies. An unavailable controller is not an error; see Missing.
func Open(name, parent string) (*Root, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	v2, v1 := findMounts(string(mounts))
	if parent == "" && os.Geteuid() != 0 {
		own, _ := os.ReadFile("/proc/self/cgroup")
		parent = takeDelegated(v2, string(own), os.Getpid())
	}
	if parent != "" {
		v2, v1 = parent, nil
	}
	c := &Root{dirs: map[string]string{}}
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
		if c.dirs[ctrl] == "" && ctrl != "freezer" { // inits freeze with signals instead
			c.missing = append(c.missing, explainMissing(ctrl, errors.Join(why[ctrl], why["unified"])))
		}
	}
	// Otherwise one busy sandbox could use the whole share of all sandboxes.
	if own := (&Group{unified: c.unified, dirs: c.dirs}); c.Has("cpu") {
		if err := own.setShare(allShare); err != nil {
			c.missing = append(c.missing, fmt.Sprintf("all sandboxes together have the CPU share of one process: %v", err))
		}
	}
	return c, nil
}

func explainMissing(ctrl string, why error) string {
	if why != nil {
		return fmt.Sprintf("%s control: %v; run as root, or as systemd-run --user --scope -p Delegate=yes cove hub", ctrl, why)
	}
	return fmt.Sprintf("%s control: the kernel or the parent group does not have that cgroup controller", ctrl)
}

// leaf is the group that the hub moves itself to: a group with controllers for its children must not
// contain processes.
const leaf = "cove-hub"

// takeDelegated returns the folder of the process's own v2 group, if it was delegated to the process alone:
// by systemd-run with Delegate=yes, or in a unit of the user. It moves the process to a group below. Empty: none.
func takeDelegated(mount, own string, pid int) string {
	for line := range strings.Lines(own) {
		at, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok || mount == "" {
			continue
		}
		dir := filepath.Join(mount, at)
		if filepath.Base(dir) == leaf { // a program that replaced the hub
			return filepath.Dir(dir)
		}
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(procs)) != strconv.Itoa(pid) || mkdir(filepath.Join(dir, leaf)) != nil ||
			write(filepath.Join(dir, leaf, "cgroup.procs"), strconv.Itoa(pid)) != nil {
			return ""
		}
		return dir
	}
	return ""
}

// findMounts returns where the v2 hierarchy and each v1 controller are mounted.
func findMounts(mountinfo string) (v2 string, v1 map[string]string) {
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
				if opt == "blkio" {
					opt = "io"
				}
				if slices.Contains(controllers, opt) && v1[opt] == "" {
					v1[opt] = at[4]
				}
			}
		}
	}
	return v2, v1
}

func (c *Root) openUnified(dir string) error {
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

// Has reports whether a controller (memory, cpu, pids, freezer, io) is available.
func (c *Root) Has(ctrl string) bool { return c.dirs[ctrl] != "" }

// Missing returns a sentence for each unavailable controller, with the reason.
func (c *Root) Missing() []string { return slices.Clone(c.missing) }

// folders lists the folder in each hierarchy once.
func (c *Root) folders() []string {
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

// IDs lists the groups of sandboxes.
func (c *Root) IDs() []string {
	var ids []string
	for _, dir := range c.folders() {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	return ids
}

// Create creates the group of a sandbox and sets its limits. It reuses a group that an
// earlier run left.
func (c *Root) Create(id string, l Limits) (*Group, error) {
	g := c.Group(id)
	for _, dir := range g.Folders() {
		if err := mkdir(dir); err != nil {
			g.rmdir()
			return nil, fmt.Errorf("create control group: %w", err)
		}
	}
	if err := g.Set(l); err != nil {
		g.rmdir()
		return nil, err
	}
	return g, nil
}

// Group returns the group of a sandbox, which need not exist.
func (c *Root) Group(id string) *Group {
	g := &Group{dirs: map[string]string{}}
	if c.unified != "" {
		g.unified = filepath.Join(c.unified, id)
	}
	for ctrl, dir := range c.dirs {
		dir = filepath.Join(dir, id)
		if ctrl == "io" && dir != g.unified {
			// Each additional hierarchy slows down the creation of sandboxes.
			if g.io = dir; !exists(dir) {
				continue
			}
		}
		g.dirs[ctrl] = dir
	}
	return g
}

// Close removes the group if it contains no sandbox.
func (c *Root) Close() error {
	var errs []error
	for _, dir := range c.folders() {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
