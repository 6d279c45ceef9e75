package containerinit

import (
	"bufio"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is the disk of a container. It can be saved as an archive, and made equal to the disk of
// another container of the same image by restoring its archive.
//
// The archive is a compressed tar. It contains everything below the home and, of the rest of the
// disk, what has changed since the container was started. An engine keeps both in one
// filesystem, and a container cannot see its layers; but the kernel records when each file last
// changed, and no process inside can falsify that. A changed folder is archived with the names
// of its unchanged entries, so that a restore can delete all others. Other mounts are neither read
// nor written; sockets and devices are not archived. Archives whose names lead through links or into
// other mounts are refused.
type disk struct {
	// root is where the disk is mounted. home is the folder below it that is copied completely,
	// usually another mount.
	root, home string
	// since is when the container was started.
	since time.Time
	// mounts lists the other mounts, whose content is not part of the disk.
	mounts map[string]bool
}

// maxTick bounds the wait for a clock that was set back.
const maxTick = time.Second

// tick returns the next time of the clock of filesystems: all earlier changes have an earlier time. This
// clock lags behind the finer clock, which some filesystems use, too, so tick waits until it catches up.
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

// newDisk returns the disk of this process, which has just started.
func newDisk(home string) (*disk, error) {
	since, err := tick()
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := &disk{root: "/", home: path.Clean(home), since: since, mounts: map[string]bool{}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			return nil, errors.New("parse /proc/self/mountinfo: too few fields")
		}
		if at := unescape(fields[4]); at != "/" && at != d.home {
			d.mounts[at] = true
		}
	}
	return d, lines.Err()
}

// unescape decodes a path of mountinfo, in which some characters are octal numbers.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// covered reports whether a path of the container is on another mount.
func (d *disk) covered(p string) bool {
	for ; p != "/"; p = path.Dir(p) {
		if d.mounts[p] {
			return true
		}
	}
	return false
}

// holdsMount reports whether a path is, or is above, a mount.
func (d *disk) holdsMount(p string) bool {
	if d.mounts[p] || p == d.home || strings.HasPrefix(d.home, p+"/") {
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
func (d *disk) isHome(p string) bool { return p == d.home || strings.HasPrefix(p, d.home+"/") }

// The tar records of this format.
const (
	recordStayed = "COVE.stayed" // names in a folder that are folders or unchanged; a restore keeps them
	recordSize   = "COVE.size"   // of a file with holes
	recordData   = "COVE.data"   // alternating offsets and lengths of the data between holes
	recordAttr   = "SCHILY.xattr."
)

const (
	// maxRecord bounds a record: the records of a tar header are limited to one megabyte.
	maxRecord = 768 << 10
	// maxLinks is the maximum number of files whose hard links are preserved.
	maxLinks = 100_000
	// maxHoles is the maximum number of holes of a file that are preserved.
	maxHoles = 4096
)
