package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountImage mounts a filesystem in a file. If sandboxes of a previous hub still use it, it reuses their loop device: two
// loop devices for one file would corrupt it.
func mountImage(image, at string) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	loop, err := findLoop(f)
	if err == nil && loop == nil {
		loop, err = attachLoop(f)
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", image, err)
	}
	defer loop.Close() // it detaches when it is neither open nor mounted
	// Deleted layers are freed with each commit.
	if err := unix.Mount(loop.Name(), at, "btrfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "commit=5"); err != nil {
		return fmt.Errorf("mount %s: %w", image, err)
	}
	// The file may have grown.
	if err := btrfsNamed(at, btrfsResize, "max"); err != nil {
		return errors.Join(fmt.Errorf("grow %s: %w", image, err), unix.Unmount(at, 0))
	}
	return nil
}

// findLoop returns the loop device that a file is attached to.
func findLoop(f *os.File) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &want); err != nil {
		return nil, err
	}
	attached, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, a := range attached {
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "/sys/block/"), "/")
		loop, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			continue // it was detached, or belongs to another namespace
		}
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if err == nil && info.Device == want.Dev && info.Inode == want.Ino {
			return loop, nil
		}
		loop.Close()
	}
	return nil, nil
}

// attachLoop attaches a file to a free loop device. Others may take it first.
func attachLoop(f *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	var last error
	for range 64 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		// Direct I/O where possible: otherwise pages would be cached twice.
		for _, flags := range []uint32{unix.LO_FLAGS_DIRECT_IO, 0} {
			last = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(f.Fd()), Size: 4096,
				Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | flags}})
			if last == nil {
				return loop, nil
			}
			if errors.Is(last, unix.EBUSY) {
				break
			}
		}
		loop.Close()
		if !errors.Is(last, unix.EBUSY) {
			return nil, fmt.Errorf("configure a loop device: %w", last)
		}
	}
	return nil, fmt.Errorf("configure a loop device: %w", last)
}
