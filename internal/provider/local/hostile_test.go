package local_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// setting reads a file of a sandbox's control group, under the first existing name.
func (h *hub) setting(id string, names ...string) string {
	h.t.Helper()
	for _, name := range names {
		for _, pattern := range []string{"/sys/fs/cgroup/*/%s/%s", "/sys/fs/cgroup/*/*/%s/%s"} {
			found, _ := filepath.Glob(fmt.Sprintf(pattern, id, name))
			for _, file := range found {
				if text, err := os.ReadFile(file); err == nil {
					return strings.TrimSpace(string(text))
				}
			}
		}
	}
	h.t.Fatalf("sandbox %s has none of %q", id, names)
	return ""
}

// testHostile: a sandbox that forks, fills memory, disk, inodes and file handles and uses all CPUs cannot exceed its limits,
// and has a lower priority than others.
func testHostile(h *hub) {
	var crowd []sandbox.Sandbox
	for range 10 {
		crowd = append(crowd, h.create(sandbox.Spec{Resources: sandbox.Resources{CPU: 100}}))
	}
	hostile := h.create(sandbox.Spec{Resources: sandbox.Resources{CPU: 1, CPULimit: 1000, MemoryLimit: 64 << 20,
		Pids: 40, Disk: 32 << 20, Files: 128}})
	for _, c := range []struct {
		want  string
		names []string
	}{
		{"40", []string{"pids.max"}},
		{"67108864", []string{"memory.max", "memory.limit_in_bytes"}},
		{"100000", []string{"cpu.cfs_quota_us", "cpu.max"}},
	} {
		if got := h.setting(hostile.ID, c.names...); strings.Fields(got)[0] != c.want {
			h.t.Errorf("%s: got %s, want %s", c.names[0], got, c.want)
		}
	}
	// It may not respond.
	h.try(hostile.ID, http.MethodPost, "/run", `cd; exec >/dev/null 2>&1
(while :; do tail /dev/zero; done) & (while :; do cat /dev/zero > big; rm big; done) &
(i=0; while :; do : > many-$((i+=1)); done) & (for fd in $(seq 10 1000); do eval "exec $fd</dev/null"; done; while :; do :; done) &
while :; do (while :; do :; done) & done & sleep 1`)
	testenv.Poll(h.t, "the hostile sandbox waits for the others", func() bool { return h.setting(hostile.ID, "cpu.idle") == "1" })
	for range 3 {
		for _, sb := range crowd {
			if out := h.sh(sb.ID, "echo hello > ~/x && cat ~/x"); out != "hello\n" {
				h.t.Errorf("a neighbour: got %q, want %q", out, "hello\n")
			}
			if idle := h.setting(sb.ID, "cpu.idle"); idle != "0" {
				h.t.Errorf("a mostly idle neighbour has a low priority: cpu.idle is %s", idle)
			}
		}
		st, err := h.Stats(h.t.Context(), hostile.ID)
		if err != nil || st.Pids > 40 || st.Memory > 64<<20 || st.Disk > 33<<20 {
			h.t.Errorf("the hostile sandbox: got %+v, %v, want at most 40 processes, 64 MiB of memory, 32 MiB of disk", st, err)
		}
	}
	if err := h.Stop(h.t.Context(), hostile.ID); err != nil {
		h.t.Error(err)
	}
	// A sandbox that is idle again, or gets another share, has its normal priority.
	busy := h.create(sandbox.Spec{Resources: sandbox.Resources{CPU: 10}})
	h.sh(busy.ID, "(while :; do :; done) >/dev/null 2>&1 & echo $! > ~/pid")
	testenv.Poll(h.t, "the busy sandbox waits for the others", func() bool { return h.setting(busy.ID, "cpu.idle") == "1" })
	h.sh(busy.ID, "kill $(cat ~/pid)")
	testenv.Poll(h.t, "it has its share again", func() bool { return h.setting(busy.ID, "cpu.idle") == "0" })
	if got := h.setting(busy.ID, "cpu.weight", "cpu.shares"); got != "10" && got != "1" {
		h.t.Errorf("share: got %s, want a hundredth of a CPU", got)
	}
}

// testDiskRate: the disk rate of a sandbox is limited, also in its forks, and changes immediately. A slow machine only makes it
// slower.
func testDiskRate(h *hub) {
	if !slices.Contains(h.Abilities().Limits, "disk_rate") {
		testenv.Lack(h.t, "needs a block device below the state folder, and the control group controller io or blkio")
	}
	const rate = 2 << 20
	bound := func(id string) string {
		return h.setting(id, "io.max", "blkio.throttle.write_bps_device") + h.setting(id, "io.max", "blkio.throttle.read_bps_device")
	}
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{DiskRate: rate}})
	if got := bound(sb.ID); strings.Count(got, "2097152") < 2 {
		h.t.Errorf("got %q, want the rate for reads and writes", got)
	}
	// The kernel allows a burst of a fraction of a second.
	const size, least = 4 << 20, time.Second
	slow := func(what, id, command string) {
		h.t.Helper()
		begin := time.Now()
		h.sh(id, command)
		if took := time.Since(begin); took < least {
			h.t.Errorf("%s of %d bytes took %v, want at least %v", what, size, took, least)
		}
	}
	slow("a write", sb.ID, fmt.Sprintf("head -c %d /dev/urandom > ~/big && sync ~/big", size))
	forks, err := h.Fork(h.t.Context(), sb.ID, []sandbox.Spec{{Resources: sb.Spec.Resources}})
	if err != nil {
		h.t.Fatal(err)
	}
	slow("a write in a fork", forks[0].ID, fmt.Sprintf("head -c %d /dev/urandom > ~/other && sync ~/other", size))
	free := h.create(sandbox.Spec{})
	for _, c := range []struct {
		rate int64
		want string
	}{{rate, "2097152"}, {0, ""}} {
		if _, err := h.Update(h.t.Context(), free.ID, func(s *sandbox.Spec) error { s.Resources.DiskRate = c.rate; return nil }); err != nil {
			h.t.Fatal(err)
		}
		if got := bound(free.ID); !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "2097152") {
			h.t.Errorf("after an update to %d: got %q, want %q", c.rate, got, c.want)
		}
	}
}
