// Package diskcopy writes what a container has changed on its disk as an archive, and makes the disk of a new
// container of the same image equal to it.
//
// The archive is a compressed tar. It holds everything below the home, and of the rest of the disk what has changed since the
// container was started. An engine keeps both in one filesystem, of which a container cannot see the layers; but the kernel
// notes when each file was last changed, which nobody inside can falsify. A changed folder is archived with the names that
// stayed as they were in it, so that what is missing is known to be deleted. Other mounts are not followed, neither when
// reading nor when writing; sockets and devices are left out.
//
// It owns no process. It refuses archives whose names lead through links or into other mounts.
package diskcopy

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is the disk of a container.
type Disk struct {
	// Root is where the disk is mounted, and Home the folder below it that is copied whole: another mount, in general.
	Root, Home string
	// Since is when the container was started.
	Since time.Time
	// mounts are the other mounts, whose content is not part of the disk.
	mounts map[string]bool
}

// maxTick bounds the wait for a clock that was set back.
const maxTick = time.Second

// tick returns the next time of the clock that filesystems use: what was changed before has an earlier one. This clock lags behind
// the finer one, which some filesystems use as well: so it must first catch up with that.
func tick() (time.Time, error) {
	var fine, now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_REALTIME, &fine)
	for began := time.Now(); err == nil && time.Since(began) < maxTick; time.Sleep(time.Millisecond) {
		if err = unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); now.Nano() > fine.Nano() {
			break
		}
	}
	return time.Unix(now.Unix()), err
}

// New returns the disk of this process, which has just started.
func New(home string) (*Disk, error) {
	since, err := tick()
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := &Disk{Root: "/", Home: path.Clean(home), Since: since, mounts: map[string]bool{}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			return nil, errors.New("cannot read the mounts of this container")
		}
		if at := unescape(fields[4]); at != "/" && at != d.Home {
			d.mounts[at] = true
		}
	}
	return d, lines.Err()
}

// unescape reads a path of mountinfo, in which some characters are written as octal numbers.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		var c byte
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := fmt.Sscanf(s[i+1:i+4], "%3o", &c); n == 1 && err == nil {
				out.WriteByte(c)
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// covered reports whether a path, as the container sees it, is another mount, or below one.
func (d *Disk) covered(p string) bool {
	for ; p != "/"; p = path.Dir(p) {
		if d.mounts[p] {
			return true
		}
	}
	return false
}

// holdsMount reports whether a path is, or is above, a mount.
func (d *Disk) holdsMount(p string) bool {
	if d.mounts[p] || p == d.Home || strings.HasPrefix(d.Home, p+"/") {
		return true
	}
	for m := range d.mounts {
		if strings.HasPrefix(m, p+"/") {
			return true
		}
	}
	return false
}

// isHome reports whether a path is the home or below it.
func (d *Disk) isHome(p string) bool { return p == d.Home || strings.HasPrefix(p, d.Home+"/") }

// The records of headers that are ours.
const (
	recordStayed = "COVE.stayed" // names in a folder that are folders, or have not changed: who restores it keeps these
	recordSize   = "COVE.size"   // of a file with holes
	recordData   = "COVE.data"   // offset and length of what is not a hole, in turn
	recordAttr   = "SCHILY.xattr."
)

const (
	// maxRecord bounds a record: tar has no room for more than a megabyte of them.
	maxRecord = 768 << 10
	// maxLinks is how many files with several names are recognized as such.
	maxLinks = 100_000
	// maxHoles is how many holes of a file stay such.
	maxHoles = 4096
)
