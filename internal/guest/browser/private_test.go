package browser_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// TestNoOtherUserReachesDevTools checks that no process of the browser listens on a DevTools port, independent of settings
// and profile, while clients use DevTools through the server. Such a port would accept every local user and every page, and
// allow them to read files.
func TestNoOtherUserReachesDevTools(t *testing.T) {
	t.Parallel()
	r := newFixture(t, func(c *browser.Config) {
		c.ExtraArgs = []string{"--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1", "--remote-allow-origins=*"}
	})
	// Older settings of the browser allow a port.
	profile := filepath.Join(r.dir, "browser", "profile")
	must(t, os.MkdirAll(profile, 0o700))
	must(t, os.WriteFile(filepath.Join(profile, "Local State"), []byte(`{"devtools":{"remote_debugging":{"user-enabled":true}}}`), 0o600))
	info, _ := r.info(t)
	c := dial(t, getJSON[entry](t, r.url+"/cdp/json/version").Socket)
	p := r.open(t, c, site(t, nil).URL+"/page")
	if status, _, _ := get(t, "GET", r.url+"/devtools/inspector.html"); status != 200 {
		t.Errorf("the DevTools page has status %d, want 200", status)
	}
	if !strings.Contains(info.CDP, "/cdp/devtools/browser/") {
		t.Errorf("the address for clients is %q, want one below /cdp", info.CDP)
	}

	tree := processTree(r.pidOf(t, "chromium"))
	if len(tree) < 3 {
		t.Fatalf("the browser's processes are %v, want at least 3", tree)
	}
	if found := listeners(t, tree); len(found) > 0 {
		t.Errorf("the browser listens on %v, want no port", found)
	}
	if _, err := os.Stat(filepath.Join(profile, "DevToolsActivePort")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file that names the DevTools port: %v, want none", err)
	}
	// Verify that the check finds a port.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	own := "127.0.0.1:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	if found := listeners(t, []int{os.Getpid()}); !slices.Contains(found, own) {
		t.Errorf("this program listens on %v, want %s among them", found, own)
	}
	// Pages reach DevTools neither at the default port nor at internal URLs of the browser.
	for _, address := range []string{"http://127.0.0.1:9222/json/version", "devtools://devtools/bundled/inspector.html", "chrome://inspect/"} {
		if got := eval[string](t, p, `fetch("`+address+`", {mode: "no-cors"}).then(() => "reached", () => "refused")`); got != "refused" {
			t.Errorf("a page fetches %s: %s, want refused", address, got)
		}
	}
}

// TestClientsEndWithTheBrowser checks that external clients are disconnected when the browser is killed and can reconnect to
// the next one at the same URL.
func TestClientsEndWithTheBrowser(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	address := getJSON[entry](t, r.url+"/cdp/json/version").Socket
	clients := []*cdp.Client{dial(t, address), dial(t, r.blank(t).Socket)}
	must(t, syscall.Kill(r.pidOf(t, "chromium"), syscall.SIGKILL))
	for _, c := range clients {
		select {
		case <-c.Done():
		case <-testContext(t).Done():
			t.Fatal("a client is not notified that the browser has ended")
		}
	}
	must(t, dial(t, address).Call(testContext(t), cdp.Browser, "Browser.getVersion", nil, nil))
}

// processTree returns a process and its descendants.
func processTree(root int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree
}

// listeners returns the addresses on which processes of this network accept TCP connections.
func listeners(t *testing.T, pids []int) []string {
	t.Helper()
	sockets := map[string]bool{}
	for _, pid := range pids {
		files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
		for _, f := range files {
			if link, err := os.Readlink(f); err == nil && strings.HasPrefix(link, "socket:[") {
				sockets[strings.Trim(link, "socket:[]")] = true
			}
		}
	}
	if len(sockets) == 0 {
		t.Fatalf("processes %v have no sockets, want some", pids)
	}
	var found []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		must(t, err)
		for _, line := range strings.Split(string(b), "\n")[1:] {
			const local, state, listen, inode = 1, 3, "0A", 9
			if f := strings.Fields(line); len(f) > inode && f[state] == listen && sockets[f[inode]] {
				found = append(found, socketAddress(f[local]))
			}
		}
	}
	return found
}

// socketAddress decodes an address of the kernel's table. Only IPv4 loopback addresses are readable.
func socketAddress(hex string) string {
	host, port, _ := strings.Cut(hex, ":")
	n, _ := strconv.ParseUint(port, 16, 16)
	if host == "0100007F" {
		host = "127.0.0.1"
	}
	return host + ":" + strconv.FormatUint(n, 10)
}
