package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A group is the control group of a run in one hierarchy.
type group struct {
	mount string
	dir   string
	v2    bool
}

// groupsOf is the group of a run in each mounted hierarchy.
func groupsOf(run string) []group {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var groups []group
	for line := range strings.Lines(string(mounts)) {
		head, tail, _ := strings.Cut(line, " - ")
		at, kind := strings.Fields(head), strings.Fields(tail)
		if len(at) < 5 || len(kind) < 1 || !strings.HasPrefix(kind[0], "cgroup") {
			continue
		}
		g := group{mount: at[4], dir: filepath.Join(at[4], "cove-run-"+filepath.Base(run)), v2: kind[0] == "cgroup2"}
		if !slices.ContainsFunc(groups, func(o group) bool { return o.mount == g.mount }) {
			groups = append(groups, g)
		}
	}
	return groups
}

// enter creates the group and moves this process there. A read-only hierarchy is not changed.
func (g group) enter() error {
	err := os.Mkdir(g.dir, 0o755)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new v1 group
		if value, err := os.ReadFile(filepath.Join(g.mount, name)); err == nil && !g.v2 {
			if err := os.WriteFile(filepath.Join(g.dir, name), value, 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte("0"), 0o644)
}

// bind makes the group the top of the hierarchy for this mount namespace. In v2, a group with
// groups below has no processes: they move to a separate group.
func (g group) bind() error {
	if _, err := os.Stat(g.dir); err != nil {
		return nil
	}
	if g.v2 {
		leaf := filepath.Join(g.dir, "lane")
		if err := os.Mkdir(leaf, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
		controllers, err := os.ReadFile(filepath.Join(g.dir, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for c := range strings.FieldsSeq(string(controllers)) {
			if err := os.WriteFile(filepath.Join(g.dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
				return err
			}
		}
	}
	return unix.Mount(g.dir, g.mount, "", unix.MS_BIND, "")
}

// removeGroups removes the groups and their descendants.
func removeGroups(groups []group) error {
	var left []error
	for _, g := range groups {
		var dirs []string
		filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error { //nolint:errcheck // best effort
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				left = append(left, err)
			}
		}
	}
	return errors.Join(left...)
}
