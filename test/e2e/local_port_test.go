package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestTheOutboundProxyRefusesOtherUsers: through the proxy, they could reach servers that accept only its user.
func TestTheOutboundProxyRefusesOtherUsers(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "curl")
	h := serveHub(t)
	for _, c := range []struct{ users, want string }{{"", "000"}, {"65534", "200"}} {
		port := testenv.FreePort(t)
		serve(t, fmt.Sprintf("AIO_OUTLET=127.0.0.1:%d", port), "AIO_LOCAL_USERS="+c.users)
		for _, scheme := range []string{"http", "socks5h"} {
			proxy := fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
			for _, tunnel := range []string{"--no-proxytunnel", "--proxytunnel"} {
				args := []string{"-s", "-o", "/dev/null", "-w", "%{http_code}", "--noproxy", "", tunnel, "-x", proxy, h.URL + "/api/v1/sandbox"}
				if out := as(t, nobody, "curl", args...); out != c.want {
					t.Errorf("local_users %q, %s %s as nobody: got %s, want %s", c.users, scheme, tunnel, out, c.want)
				}
				if out := as(t, 0, "curl", args...); out != "200" {
					t.Errorf("local_users %q, %s %s as root: got %s, want 200", c.users, scheme, tunnel, out)
				}
			}
		}
	}
}

// TestNoPortAdmitsAnotherLocalUser: no port and no socket of a local sandbox, a hub or a sandbox of
// the hub accepts a second user while all services run.
func TestNoPortAdmitsAnotherLocalUser(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	testenv.Need(t, "chromium", "Xtigervnc", "node")
	components, err := filepath.EvalSymlinks(testenv.NeedFile(t, "../../.tools/components"))
	if err != nil {
		t.Fatal(err)
	}
	h, s := serveHub(t, "--components", components), serve(t, append(useVenv(t), "AIO_COMPONENTS="+components)...)
	h.must(t, "create", "a")
	for _, dir := range []string{s.Home, filepath.Dir(s.Home), filepath.Dir(h.State)} { // as is common for home folders
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	useEverything(t, s, "")
	useEverything(t, h.server, "/sandbox/a")
	tried := 0
	for _, root := range []struct {
		name string
		of   *server
		dir  string
	}{{"aio", s, s.Home}, {"hub", h.server, h.State}} {
		for _, l := range listeners(t, root.of.cmd.Process.Pid, root.dir) {
			tried++
			t.Logf("%s: %s of %s", root.name, l, l.program)
			l.try(t, h.addr())
		}
	}
	if tried < 6 {
		t.Errorf("tried %d ports and sockets, want at least the servers, their sockets, the proxy and the display", tried)
	}
}

// useVenv lets kernels find their packages.
func useVenv(t *testing.T) []string {
	t.Helper()
	venv, err := filepath.EvalSymlinks("../../.venv")
	if err == nil {
		venv, err = filepath.Abs(venv)
	}
	if err != nil {
		return nil
	}
	return []string{"AIO_VENV=" + venv}
}

// useEverything starts all programs that open ports: the browser, the display, kernels, terminals and workbenches.
func useEverything(t *testing.T, s *server, at string) {
	t.Helper()
	for _, path := range []string{"/v1/browser/info", "/v1/browser/screenshot", "/json/version"} {
		if status, out := s.get(t, at+path); status != 200 {
			t.Errorf("%s%s: got %d %.200s, want 200", at, path, status, out)
		}
	}
	for path, body := range map[string]string{
		"/v1/jupyter/execute": `{"code":"print(1)"}`, "/v1/nodejs/execute": `{"code":"console.log(1)"}`,
		"/v1/bash/exec": `{"command":"echo 1"}`, "/v1/shell/exec": `{"command":"echo 1"}`,
	} {
		if status, out := s.post(t, at+path, body); status != 200 {
			t.Errorf("%s%s: got %d %.200s, want 200", at, path, status, out)
		}
	}
	for _, path := range []string{"/code-server/", "/jupyter/lab", "/vnc/"} {
		testenv.Poll(t, at+path+" is served", func() bool {
			status, _ := s.get(t, at+path)
			return status == 200
		})
	}
}

// listener is a socket at which a program listens.
type listener struct {
	network, address string
	program          string
	pid              int
	foreign          bool // in another network namespace than ours
}

func (l listener) String() string {
	if l.foreign {
		return fmt.Sprintf("%s %s in the network of process %d", l.network, l.address, l.pid)
	}
	return l.network + " " + l.address
}

// try sends, as another user, requests that would succeed for an authorized user.
func (l listener) try(t *testing.T, target string) {
	t.Helper()
	if l.foreign {
		onThreadOf(nobody, func() {
			if f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", l.pid)); err == nil {
				f.Close()
				t.Errorf("%s: another user may open the network, want it refused", l)
			}
		})
		return
	}
	host, port, _ := net.SplitHostPort(target)
	number, _ := strconv.Atoi(port)
	request := func(line, more string) string {
		return line + " HTTP/1.1\r\nHost: " + l.host() + "\r\nConnection: close\r\n" + more + "\r\n"
	}
	const command = `{"command":"id","code":"1"}`
	body := fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(command))
	socks := append(append([]byte("\x05\x01\x00\x05\x01\x00\x01"), net.ParseIP(host).To4()...), byte(number>>8), byte(number))
	for name, send := range map[string]string{
		"GET":            request("GET /", ""),
		"list":           request("GET /api/v1/sandbox", ""),
		"DevTools":       request("GET /json/version", ""),
		"command":        request("POST /v1/bash/exec", body) + command,
		"CONNECT":        request("CONNECT "+target, ""),
		"absolute":       request("GET http://"+target+"/api/v1/sandbox", ""),
		"SOCKS5":         string(socks),
		"X11":            "l\x00\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"VNC":            "RFB 003.008\n\x01",
		"server's hello": "",
	} {
		reply, ok := l.ask(t, send)
		noRequest := !strings.Contains(send, " HTTP/") && bytes.HasPrefix(reply, []byte("HTTP/1.1 400 "))
		if ok && !refused(reply) && !noRequest {
			t.Errorf("%s of %s, %s: another user got %.200q, want nothing or a refusal", l, l.program, name, reply)
		}
	}
}

func (l listener) host() string {
	if l.network == "unix" {
		return "localhost"
	}
	return l.address
}

// ask returns the reply to another user; ok is false if it cannot connect.
func (l listener) ask(t *testing.T, send string) (reply []byte, ok bool) {
	t.Helper()
	var c net.Conn
	onThreadOf(nobody, func() { c, _ = net.Dial(l.network, l.address) })
	if c == nil {
		return nil, false
	}
	defer c.Close()
	limit := 5 * time.Second // a server that waits for a valid request has not accepted the user
	c.SetDeadline(time.Now().Add(limit))
	io.WriteString(c, send)
	b := make([]byte, 4<<10)
	n, _ := io.ReadAtLeast(c, b, 1)
	return b[:n], true
}

// refused reports whether a reply is empty or denies access.
func refused(reply []byte) bool {
	line, _, _ := bytes.Cut(reply, []byte("\r\n"))
	return len(reply) == 0 || bytes.HasPrefix(line, []byte("HTTP/1.1 401")) || bytes.HasPrefix(line, []byte("HTTP/1.1 403")) ||
		isX11Failure(reply)
}

// isX11Failure reports whether an X server rejected the connection: status 0, the length of the
// reason, and protocol version 11. The reason may follow in another packet.
func isX11Failure(reply []byte) bool {
	return len(reply) >= 4 && reply[0] == 0 && reply[2] == 11 && reply[3] == 0
}

// onThreadOf runs f on a thread that belongs to another user and ends with it.
func onThreadOf(uid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread must not be used again
		for _, call := range []uintptr{unix.SYS_SETGROUPS, unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			args := [3]uintptr{uintptr(uid), uintptr(uid), uintptr(uid)}
			if call == unix.SYS_SETGROUPS {
				args = [3]uintptr{}
			}
			if _, _, errno := syscall.RawSyscall(call, args[0], args[1], args[2]); errno != 0 {
				panic(errno)
			}
		}
		f()
	}()
	<-done
}

// listeners returns the listening sockets of a program, of its descendants, and of processes whose
// environment contains its folder.
func listeners(t *testing.T, pid int, dir string) (list []listener) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range family(t, pid, dir) {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p))
		if err != nil {
			continue // the process has ended
		}
		inodes := sockets(p)
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p))
		for _, table := range []string{"tcp", "tcp6", "unix"} {
			for inode, address := range listening(p, table) {
				if !inodes[inode] || seen[ns+inode] {
					continue
				}
				seen[ns+inode] = true
				l := listener{network: strings.TrimSuffix(table, "6"), address: address,
					program: strings.TrimSpace(string(name)), pid: p, foreign: ns != own}
				if l.network == "unix" && !strings.HasPrefix(address, "@") && l.foreign {
					l.foreign, l.address = false, fmt.Sprintf("/proc/%d/root%s", p, address) // a socket file has no network namespace
				}
				list = append(list, l)
			}
		}
	}
	return list
}

// family returns a process, its descendants, and the processes whose environment contains dir.
func family(t *testing.T, root int, dir string) (list []int) {
	t.Helper()
	parent := map[int]int{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		stat, err := os.ReadFile(d + "/stat")
		if err != nil {
			continue
		}
		var state string
		var up int
		fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &up)
		parent[pid] = up
		if environ, _ := os.ReadFile(d + "/environ"); bytes.Contains(environ, []byte(dir)) {
			list = append(list, pid)
		}
	}
	for pid := range parent {
		for up, depth := pid, 0; up > 1 && depth < 50; up, depth = parent[up], depth+1 {
			if up == root {
				list = append(list, pid)
				break
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// sockets returns the inodes of a process's sockets.
func sockets(pid int) map[string]bool {
	found := map[string]bool{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil && strings.HasPrefix(link, "socket:[") {
			found[strings.Trim(link, "socket:[]")] = true
		}
	}
	return found
}

// listening returns the addresses of the listening sockets in a table, by inode.
func listening(pid int, table string) map[string]string {
	found := map[string]string{}
	f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
	if err != nil {
		return found
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		w := strings.Fields(lines.Text())
		switch {
		case table == "unix" && len(w) == 8 && w[3] == "00010000":
			found[w[6]] = w[7]
		case table != "unix" && len(w) > 9 && w[3] == "0A":
			host, port, _ := strings.Cut(w[1], ":")
			n, _ := strconv.ParseUint(port, 16, 16)
			address := "127.0.0.1"
			if table == "tcp6" && strings.Trim(host, "0") != "" {
				address = "::1"
			}
			found[w[9]] = net.JoinHostPort(address, strconv.FormatUint(n, 10))
		}
	}
	return found
}
