package rootfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// coverFiles covers files of /proc that describe the whole machine and that programs need,
// with files that contain as little as possible. The clocks, the sysinfo call and the kernel's
// version still describe the machine.
func (b *Builder) coverFiles() (err error) {
	// One tmpfs for all these files, including meminfo.
	if b.coverDir, _, err = b.mountNew("tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return err
	}
	id, err := newBootID()
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"loadavg": "0.00 0.00 0.00 1/1 1\n",
		"stat":    b.idleStat(),
		// Programs use it to detect a restart of the machine: each run is a boot.
		"sys/kernel/random/boot_id": id,
	} {
		if err := b.coverFile(name, text); err != nil {
			return fmt.Errorf("cover /proc/%s: %w", name, err)
		}
	}
	return nil
}

// coverMemory shows the sandbox's limit as the machine's memory, if it has one.
func (b *Builder) coverMemory() error {
	if b.Limits.Memory <= 0 || b.runtime {
		return nil
	}
	kb := b.Limits.Memory >> 10
	var text strings.Builder
	for _, f := range []struct {
		name string
		kb   int64
	}{
		{"MemTotal", kb}, {"MemFree", kb}, {"MemAvailable", kb}, {"Buffers", 0}, {"Cached", 0}, {"SwapCached", 0}, {"Active", 0}, {"Inactive", 0},
		{"SwapTotal", 0}, {"SwapFree", 0}, {"Dirty", 0}, {"Writeback", 0}, {"AnonPages", 0}, {"Mapped", 0},
		{"Shmem", 0}, {"Slab", 0}, {"SReclaimable", 0}, {"SUnreclaim", 0},
	} {
		fmt.Fprintf(&text, "%-16s%8d kB\n", f.name+":", f.kb)
	}
	return b.coverFile("meminfo", text.String())
}

// coverFile covers a file of /proc with a text, if it exists.
func (b *Builder) coverFile(name, text string) error {
	var st unix.Stat_t
	if unix.Fstatat(b.proc, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil //nolint:nilerr // not every kernel has every file
	}
	at := path.Join(b.coverDir, path.Base(name))
	if err := os.WriteFile(at, []byte(text), 0o444); err != nil {
		return err
	}
	fd, err := clone(unix.AT_FDCWD, at, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	return b.cover(name, fd)
}

// idleStat returns the statistics of idle processors. It keeps the time of the
// boot, from which programs compute when a process began.
func (b *Builder) idleStat() string {
	var text strings.Builder
	idle := " 0 0 0 0 0 0 0 0 0 0\n"
	text.WriteString("cpu " + idle)
	for i := range runtime.NumCPU() {
		fmt.Fprintf(&text, "cpu%d%s", i, idle)
	}
	text.WriteString("intr 0\nctxt 0\n")
	if at := b.bootTime(); at != "" {
		fmt.Fprintf(&text, "btime %s\n", at)
	}
	text.WriteString("processes 1\nprocs_running 1\nprocs_blocked 0\n")
	return text.String()
}

// bootTime returns when the machine was started, in seconds since 1970, or "".
func (b *Builder) bootTime() string {
	fd, err := Open(b.proc, "stat", unix.O_RDONLY)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), "stat")
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	_, rest, _ := bytes.Cut(text, []byte("\nbtime "))
	at, _, _ := bytes.Cut(rest, []byte("\n"))
	return string(at)
}

func newBootID() (string, error) {
	var id [16]byte
	if _, err := unix.Getrandom(id[:], 0); err != nil {
		return "", err
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), nil
}
