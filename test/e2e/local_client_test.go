package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestClientsDoNotCallAnotherUsersServer: if a process of another user listens on a server's address,
// clients send it neither credentials nor commands.
func TestClientsDoNotCallAnotherUsersServer(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	socket := filepath.Join(t.TempDir(), "s")
	for _, c := range []struct{ network, address string }{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", socket}} {
		heard, at := listenAs(t, nobody, c.network, c.address)
		url := "http://" + at
		if c.network == "unix" {
			url = "unix:" + at
		}
		for _, client := range []struct {
			program string
			args    []string
			url     string
			users   string
		}{
			{aio, []string{"bash", "exec", "id"}, "AIO_API_URL", "AIO_SERVER_USERS"},
			{aio, []string{"mcp", "call", "bash_exec", "command=id"}, "AIO_API_URL", "AIO_SERVER_USERS"},
			{cove, []string{"list"}, "COVE_URL", "COVE_SERVER_USERS"},
			{cove, []string{"exec", "a", "--", "id"}, "COVE_URL", "COVE_SERVER_USERS"},
		} {
			call := func(users string) string {
				cmd := exec.CommandContext(t.Context(), client.program, client.args...)
				cmd.Env = environment(t.TempDir(), []string{client.url + "=" + url, "AIO_TOKEN=secret",
					"COVE_TOKEN=secret", client.users + "=" + users})
				out, _ := cmd.CombinedOutput() // fails in any case, because there is no server
				return string(out)
			}
			what := fmt.Sprintf("%s %s at %s", filepath.Base(client.program), client.args[0], url)
			if out := call(""); !strings.Contains(out, "belongs to user 65534") || !strings.Contains(out, client.users) {
				t.Errorf("%s: got %q, want a refusal that says how to trust the user", what, out)
			}
			if got := <-heard; got != "" {
				t.Errorf("%s: the other user got %q, want nothing", what, got)
			}
			if out := call("65534"); strings.Contains(out, "belongs to user") {
				t.Errorf("%s with a trusted user: got %q, want a request", what, out)
			}
			for got := ""; got == ""; { // a client may retry
				if got = <-heard; !strings.Contains(got, "HTTP/1.1") {
					t.Errorf("%s: a trusted user got %q, want a request", what, got)
					break
				}
			}
			for len(heard) > 0 {
				<-heard
			}
		}
	}
}

// listenAs listens as another user, and reports what each connection sends first.
func listenAs(t *testing.T, uid int, network, address string) (heard chan string, at string) {
	t.Helper()
	heard = make(chan string, 100)
	ready := make(chan net.Listener)
	dir := filepath.Dir(address)
	if network == "unix" {
		for _, d := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(d, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	go onThreadOf(uid, func() {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Error(err)
			close(ready)
			return
		}
		ready <- l
		for {
			c, err := l.Accept() // on this thread, so that the connection belongs to the user
			if err != nil {
				return
			}
			b := make([]byte, 4<<10)
			n, _ := c.Read(b)
			c.Close()
			heard <- string(b[:n])
		}
	})
	l := <-ready
	if l == nil {
		t.FailNow()
	}
	t.Cleanup(func() { l.Close() })
	return heard, l.Addr().String()
}
