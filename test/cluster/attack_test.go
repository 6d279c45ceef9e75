package cluster_test

import (
	"bytes"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack"
	"github.com/cove-sandbox/cove/test/cluster"
)

// dockerMay lists what an engine allows in every container and what is harmless: sudo requires setuid programs, the Go
// runtime reads the limit of its control group, the devices are the usual ones and those of a terminal, some numbers about
// the machine are not secret, and the kernel rejects the ioctls without capabilities. The sandbox's own resolver answers at
// the address of every resolver; package outbound of providertest checks what it answers.
var dockerMay = []string{
	"live without no_new_privs", "no descriptor but the usual", "device nodes",
	"see the host's boot", "see the host's memory", "see the host's load", "see the host's work",
	"ioctl: add a tunnel", "ioctl: ask a driver", "ioctl: add a vlan",
	"dial tcp 8.8.8.8:53", "dial udp 8.8.8.8:53",
}

// testEscape: neither the user, nor root, nor root of a user namespace can escape from sandbox b.
func testEscape(t *testing.T, e *cluster.Engine, h *hub) {
	helper := filepath.Join(t.TempDir(), "helper")
	testenv.Build(t, map[string]string{helper: "../../" + attack.EscapeProgram})
	container := strings.TrimSpace(e.Run(t, nil, "ps", "-q", "--filter", "label=io.cove.name=b"))
	e.Run(t, nil, "cp", helper, container+":/run/helper")
	for _, who := range []struct {
		name, command string
		may           []string
	}{
		{"user", "env -i /run/helper try", nil},
		// Its password files contain only "!", and the first process has the same user.
		{"root by sudo", "sudo -n env -i /run/helper try", []string{"find a password in /etc/shadow",
			"find a password in /etc/gshadow", "write /proc/1/oom_score_adj", "write /proc/1/clear_refs"}},
		{"root of a user namespace", "env -i /run/helper nested", []string{"raise capabilities"}},
	} {
		t.Run(who.name, func(t *testing.T) {
			attack.CheckEscape(t, h.tryEscape(t, "b", who.command), slices.Concat(dockerMay, who.may))
		})
	}
}

// tryEscape runs the escape program in a sandbox with additional arguments, and returns its output.
func (h *hub) tryEscape(t *testing.T, name, command string, args ...string) string {
	t.Helper()
	for _, arg := range append(attack.Outside(t, t.TempDir()), args...) {
		command += " '" + arg + "'"
	}
	var out, errs bytes.Buffer
	g := h.Guest(name)
	defer g.Close()
	if _, err := g.Exec(t.Context(), command, client.ExecOptions{Stdout: &out, Stderr: &errs}); err != nil {
		t.Fatalf("got %v: %s", err, &errs)
	}
	return out.String() + errs.String()
}

// usualSockets uses common socket options, and options of the kernel's packet filters, also with high bits that
// the kernel ignores. It prints unexpected results.
const usualSockets = `
import ctypes, os, socket
tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for s, level, options in [(tcp, 1, [2, 7, 8, 9, 15]), (tcp, 6, [1, 2, 3, 4, 5, 6, 9, 12, 18, 23, 25, 30, 36]),
                          (tcp, 0, [1, 2, 10, 15]), (udp, 17, [1, 103, 104]),
                          (udp, 0, [2, 8, 33, 34]), (six, 41, [16, 26, 49, 62, 66, 67, 70, 72])]:
    for option in options:
        try: s.setsockopt(level, option, s.getsockopt(level, option))
        except OSError as error: print("usual:", level, option, error)
assert tcp.getsockopt(6, 13, 16) is not None # the congestion algorithm
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
libc = ctypes.CDLL(None, use_errno=True)
buffer, size = ctypes.create_string_buffer(b"filter", 256), ctypes.c_uint(84)
write, read = (54, 55) if os.uname().machine == "x86_64" else (208, 209)
for call, length in (write, 84), (read, ctypes.byref(size)):
    for fd, level, option in [(udp, 0, 64), (udp, 0, 96), (six, 41, 64), (six, 41, 68), (tcp, 6, 31), (tcp, 6, 19), (udp, 17, 100)]:
        for high in [0, 1 << 32]:
            ctypes.set_errno(0)
            numbers = [ctypes.c_long(n) for n in (call, fd.fileno(), level + high, option + high)]
            libc.syscall(*numbers, buffer, length)
            if ctypes.get_errno() != 1: print("filter:", call, level, option, high, ctypes.get_errno())
`

// testSockets: the seccomp profile rejects only the options of packet filters.
func testSockets(_ *testing.T, h *hub) {
	h.wantOutput("b", "python3 - <<'EOF'"+usualSockets+"EOF", "")
}

// testSignIn: a hub with tenants rejects requests to a sandbox without a key.
func testSignIn(t *testing.T, h *hub, name string) {
	dial := func() (net.Conn, error) { return net.Dial("unix", h.socket) }
	attack.NewSignIn(t).AttackBelow(t, dial, "/sandbox/"+name)
}
