package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

const nobody = 65534

// as runs a program as another user of this machine.
func as(t *testing.T, uid uint32, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env, cmd.Dir = environment("/", nil), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out)
}

// Without keys, a server accepts only its user and root, not the other users of the machine.
func TestOtherLocalUsersAreNotAdmitted(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "curl")
	h, s := serveHub(t), serve(t)
	h.must(t, "create", "a")
	exec := `{"command":"id"}`
	for _, url := range []string{
		h.URL + "/api/v1/sandbox", h.URL + "/sandbox/a/v1/bash/exec", h.URL + "/mcp",
		"http://localhost:" + h.addr()[strings.LastIndex(h.addr(), ":")+1:] + "/api/v1/sandbox",
		s.URL + "/v1/bash/exec", s.URL + "/v1/sandbox", s.URL + "/v1/shell/ws", s.URL + "/proxy/1/",
	} {
		out := as(t, nobody, "curl", "-s", "-d", exec, "-H", "Content-Type: application/json", "-w", "%{http_code}", url)
		if !strings.HasSuffix(out, "403") || !strings.Contains(out, "belongs to user 65534") || !strings.Contains(out, "local_users") {
			t.Errorf("%s as nobody: got %s, want 403 and a hint", url, out)
		}
		if strings.Contains(out, "uid=") {
			t.Errorf("%s as nobody: got %s, want no command to run", url, out)
		}
	}
	for _, url := range []string{h.URL + "/sandbox/a/v1/bash/exec", s.URL + "/v1/bash/exec"} {
		if out := as(t, 0, "curl", "-s", "-d", exec, "-H", "Content-Type: application/json", url); !strings.Contains(out, "uid=") {
			t.Errorf("%s as root: got %s, want the output of id", url, out)
		}
	}
	// In addition to the address, the server has a socket that only its user can open.
	socket := filepath.Join(h.State, "hub.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("got %v and error %v, want a socket with mode 0600", info, err)
	}
	h.env = []string{"COVE_URL=unix:" + socket}
	if out := h.must(t, "exec", "a", "echo by socket"); out != "by socket\n" {
		t.Errorf("got %q, want %q", out, "by socket\n")
	}
	if err := os.Chmod(h.State, 0o711); err != nil {
		t.Fatal(err)
	}
	if out := as(t, nobody, "curl", "-s", "-S", "--unix-socket", socket, "http://localhost/api/v1/sandbox"); strings.Contains(out, `"code"`) {
		t.Errorf("by socket as nobody: got %s, want no reply", out)
	}
}

func TestLocalUsersCanBeAdded(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "curl")
	for _, who := range []string{"65534", "*"} {
		s := serve(t, "AIO_LOCAL_USERS="+who)
		if out := as(t, nobody, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", s.URL+"/v1/sandbox"); out != "200" {
			t.Errorf("with %s: got %s, want 200", who, out)
		}
	}
}

// Programs in the sandbox run as the same user and must not obtain the server's credentials.
func TestCredentialsCannotBeReadFromTheServer(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // to run as another user
	home, err := os.MkdirTemp("", "cove-credentials-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	const token, apiKey, flag = "token-nobody-may-read", "key-nobody-may-read", "password-nobody-may-read"
	env := []string{"AUTH_TOKEN=" + token, "AIO_API_KEY=" + apiKey, "SHELL_NOTE=kept"}
	start := func(args []string, uid uint32) *server {
		cmd := exec.Command(aio, append([]string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error",
			"--proxy-server", "http://u:" + flag + "@127.0.0.1:1"}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		s := launchCommand(t, cmd, home, env)
		t.Cleanup(func() { s.stop(t) })
		return s
	}
	for name, s := range map[string]*server{"as root": start(nil, 0), "as a user": start(nil, 1000),
		"with a parent": start([]string{"--user", "1000"}, 0)} {
		run := func(command string) string {
			body, err := json.Marshal(map[string]string{"command": command})
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequest("POST", s.URL+"/v1/bash/exec", strings.NewReader(string(body)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+token)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			status, out := read(t, res)
			if status != 200 {
				t.Fatalf("%s: got status %d %s, want 200", name, status, out)
			}
			return out
		}
		pid := s.cmd.Process.Pid
		out := run(fmt.Sprintf("for p in %[1]d $(pgrep -P %[1]d) $PPID; do cat /proc/$p/environ /proc/$p/cmdline; "+
			"done 2>&1 | tr '\\0' '\\n'; echo done", pid))
		if strings.Contains(out, "nobody-may-read") || !strings.Contains(out, "done") {
			t.Errorf("%s: got %s, want no credential", name, out)
		}
		if name == "as a user" {
			out = run(fmt.Sprintf("head -c1 /proc/%[1]d/environ; head -c1 /proc/%[1]d/mem; ls /proc/%[1]d/fd; echo done", pid))
			if strings.Count(out, "denied") != 3 {
				t.Errorf("%s: got %s, want environment, memory and files denied", name, out)
			}
		}
	}
}

// Clients can send a secret in several headers. The service behind a preview receives none of them.
func TestThePreviewPassesNoCredentials(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "reached %s", r.URL)
		r.Header.Write(w)
	}))
	t.Cleanup(service.Close)
	port := service.URL[strings.LastIndex(service.URL, ":")+1:]
	const token, apiKey = "token-of-the-caller", "key-of-the-caller"
	s := serve(t, "AUTH_TOKEN="+token, "AIO_API_KEY="+apiKey)
	for _, headers := range []string{
		"Authorization: Bearer " + token, "X-API-Key: " + apiKey, "Authorization: Bearer " + apiKey + "\r\nX-API-Key: " + apiKey,
		"Authorization: Bearer " + token + "\r\nX-API-Key: " + token, "Authorization: Bearer " + token +
			"\r\nProxy-Authorization: Bearer " + token, "Authorization: Bearer " + token + "\r\nCookie: cove_session_abc=" + token,
	} {
		for _, path := range []string{"/proxy/" + port + "/x", "/absproxy/" + port + "/x", "/proxy/" + port + "/?token=" + token + "&a=1"} {
			reply := raw(t, s.addr(), "GET "+path+" HTTP/1.1\r\nHost: "+s.addr()+"\r\n"+headers+"\r\nConnection: close\r\n\r\n")
			if !strings.Contains(reply, "reached") || strings.Contains(reply, "of-the-caller") {
				t.Errorf("%s with %q: got %s, want the service reached without a credential", path, headers, reply)
			}
		}
	}
}
