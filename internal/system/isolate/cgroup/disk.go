package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// setDiskRate bounds reads from and writes to a device; rate 0 removes the bound. With v1,
// buffered writes count only if the filesystem attributes them to a group, as btrfs does.
func (g *Group) setDiskRate(device string, rate int64) error {
	switch {
	case device == "":
		return nil
	case g.v2("io"):
		return write(g.file("io", "io.max"), fmt.Sprintf("%s rbps=%s wbps=%[2]s", device, orMax(rate)))
	case g.dirs["io"] == "" && (rate == 0 || g.io == ""):
		return nil // it is not bounded, or cannot be bounded
	case g.dirs["io"] == "":
		if err := g.enterIO(); err != nil {
			return err
		}
	}
	value := device + " " + strconv.FormatInt(rate, 10)
	return errors.Join(write(g.file("io", "blkio.throttle.read_bps_device"), value),
		write(g.file("io", "blkio.throttle.write_bps_device"), value))
}

// enterIO creates the v1 group for disk I/O and moves the processes of the group into it.
func (g *Group) enterIO() error {
	if err := mkdir(g.io); err != nil {
		return err
	}
	for {
		pids, err := g.Procs()
		if err != nil {
			return err
		}
		inside, err := os.ReadFile(filepath.Join(g.io, "cgroup.procs"))
		if err != nil {
			return err
		}
		moved := strings.Fields(string(inside))
		// New children of moved processes are in the group, so this ends.
		pids = slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(moved, strconv.Itoa(pid)) })
		if len(pids) == 0 {
			g.dirs["io"] = g.io
			return nil
		}
		for _, pid := range pids {
			if err := write(filepath.Join(g.io, "cgroup.procs"), strconv.Itoa(pid)); ignoreGone(err) != nil {
				return err
			}
		}
	}
}

// DeviceOf returns the number ("major:minor") of the disk of a path, or "" if its rate
// cannot be bounded.
func DeviceOf(path string) string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return ""
	}
	var st unix.Stat_t
	if source := findSource(string(mounts), path); source == "" || unix.Stat(source, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	at := filepath.Join("/sys/dev/block", number)
	if exists(filepath.Join(at, "partition")) {
		// The kernel bounds only whole disks. The folder of a partition is in that of its disk.
		real, err := filepath.EvalSymlinks(at)
		if err != nil {
			return ""
		}
		whole, err := os.ReadFile(filepath.Join(filepath.Dir(real), "dev"))
		if err != nil {
			return ""
		}
		number = strings.TrimSpace(string(whole))
	}
	return number
}

// findSource returns what is mounted at the nearest mount point above a path.
func findSource(mountinfo, path string) string {
	var best, source string
	for line := range strings.Lines(mountinfo) {
		head, tail, ok := strings.Cut(line, " - ")
		at, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(at) < 5 || len(kind) < 2 {
			continue
		}
		point := unescape(at[4])
		// A later mount at the same point covers the earlier one.
		if len(point) >= len(best) && (point == path || strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")) {
			best, source = point, unescape(kind[1])
		}
	}
	return source
}

// unescape decodes the kernel's escapes in its list of mounts.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
