package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// capabilityNames are indexed by capability number.
var capabilityNames = strings.Fields(`chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable
	net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot
	sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease
	audit_write audit_control setfcap mac_override mac_admin syslog wake_alarm block_suspend audit_read
	perfmon bpf checkpoint_restore`)

// hostSecret is the name prefix of a file that a test creates in the host's program folder while other tests run.
const hostSecret = ".cove-test-"

// Root in a sandbox has the capabilities, IDs, devices and mounts that docs/security.md lists.
func TestRootInside(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := func(row string) string {
		_, rest, _ := strings.Cut(string(text), "| "+row+" | ")
		_, rest, _ = strings.Cut(rest, "`")
		list, _, _ := strings.Cut(rest, "`")
		return list
	}
	secret := filepath.Join("/usr/local", hostSecret+fmt.Sprint(os.Getpid()))
	if err := os.WriteFile(secret, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(secret) })
	h := serveHub(t)
	h.must(t, "create", "alpha")
	root := func(command string) string { return h.must(t, "exec", "alpha", "--", "sudo sh -c '"+command+"'") }

	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		bits, err := strconv.ParseUint(strings.TrimSpace(root("grep "+set+": /proc/self/status | cut -f2")), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i, name := range capabilityNames {
			if bits&(1<<i) != 0 {
				names = append(names, name)
			}
		}
		if got, want := strings.Join(names, " "), documented("capabilities"); got != want {
			t.Errorf("%s: got %q, want %q", set, got, want)
		}
	}
	var inside, outside, count int
	if _, err := fmt.Sscan(root("cat /proc/self/uid_map"), &inside, &outside, &count); err != nil || inside != 0 ||
		outside < 2_000_000_000 || count != 65536 {
		t.Errorf("IDs: got %d %d %d, %v, want 65536 from 2000000000 up", inside, outside, count, err)
	}
	if got, want := strings.Join(strings.Fields(root("for f in /dev/*; do test -c $f && ! test -L $f && echo $f; "+
		"done; true")), " "), documented("devices"); got != want {
		t.Errorf("devices: got %q, want %q", got, want)
	}
	var writable, setuid []string
	for line := range strings.Lines(root("cat /proc/self/mountinfo")) {
		f := strings.Fields(line)
		at, options := f[4], strings.Split(f[5], ",")
		if !slices.Contains(options, "nosuid") {
			setuid = append(setuid, at)
		}
		// Masked files are /dev/null.
		hidden := strings.HasPrefix(at, "/proc/") || strings.HasPrefix(at, "/dev/") && !slices.Contains([]string{"/dev/pts", "/dev/shm"}, at)
		if slices.Contains(options, "rw") && !hidden {
			writable = append(writable, at)
		}
		if !slices.Contains(options, "nodev") && !hidden && at != "/dev" && at != "/dev/pts" {
			t.Errorf("devices work below %s", at)
		}
	}
	slices.Sort(writable)
	if got, want := strings.Join(writable, " "), documented("writable mounts"); got != want {
		t.Errorf("writable mounts: got %q, want %q", got, want)
	}
	if got := strings.Join(setuid, " "); got != documented("setuid programs") {
		t.Errorf("mounts with setuid: got %q, want %q", got, documented("setuid programs"))
	}
	h.verify(t, "alpha",
		check{"sudo cp /usr/bin/id /tmp/id && sudo chmod 4755 /tmp/id && /tmp/id -u", "1000"},
		check{"sudo test -e " + secret + " || echo hidden", "hidden"},
		check{"sudo mount -t tmpfs x /mnt 2>/dev/null || echo held; sudo mknod /tmp/n b 8 0 2>/dev/null || echo " +
			"held; sudo hostname x 2>/dev/null || echo held; sudo dmesg 2>/dev/null || echo held; sudo touch " +
			"/run/bin/sudo 2>/dev/null || echo held", "held\nheld\nheld\nheld\nheld"},
		check{"sudo cat /etc/shadow | cut -d: -f2 | sort -u", "*"},
		check{"sudo cat /proc/1/environ /proc/1/mem 2>/dev/null || echo held; sudo kill -KILL 1; echo alive", "held\nalive"},
	)
}
