package auth

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// asUser sends a request to an address with curl, as a user, and returns status and body.
func asUser(t *testing.T, uid int, url string) string {
	t.Helper()
	cmd := exec.Command("curl", "-s", "-o", "-", "-w", "\n%{http_code}", "-X", "POST", url)
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("curl as %d: %v: %s", uid, err, out)
	}
	return string(out)
}

func serveUsers(t *testing.T, network, address string, users []int, announce bool) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	c := open()
	c.Users = users
	h := &http.Server{Handler: New(c).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") })),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	if announce {
		h.ConnContext = ConnContext
	}
	done := make(chan struct{})
	go func() { defer close(done); h.Serve(l) }()
	t.Cleanup(func() { h.Close(); <-done })
	return l.Addr().String()
}

func TestOnlySomeLocalUsersAreAdmitted(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "curl")
	users, err := LocalUsers([]string{"4242"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		url := "http://" + serveUsers(t, "tcp", at, users, true) + "/v1/bash/exec"
		for uid, want := range map[int]string{0: "reached\n200", 4242: "reached\n200", 65534: "\n403", 1000: "\n403"} {
			if got := asUser(t, uid, url); !strings.HasSuffix(got, want) || strings.Contains(got, "403") &&
				!strings.Contains(got, fmt.Sprintf("belongs to user %d", uid)) {
				t.Errorf("%s as user %d: got %q, want %q", at, uid, got, want)
			}
		}
	}
	everybody := "http://" + serveUsers(t, "tcp", "127.0.0.1:0", nil, true) + "/"
	if got := asUser(t, 65534, everybody); !strings.HasSuffix(got, "200") {
		t.Errorf("without users: got %q, want 200", got)
	}
}

func TestAConnectionWithoutAUserIsRefused(t *testing.T) {
	t.Parallel()
	s := &server{t: t, network: "tcp", addr: serveUsers(t, "tcp", "127.0.0.1:0", []int{os.Geteuid()}, false)}
	if r := s.send("GET /"); r.status != 403 || !strings.Contains(r.body, "cannot be determined") {
		t.Errorf("not announced: got status %d %s, want 403", r.status, r.body)
	}
	s = &server{t: t, network: "unix", addr: serveUsers(t, "unix", t.TempDir()+"/s", []int{}, false)}
	if r := s.send("GET /"); r.status != 200 {
		t.Errorf("Unix socket: got status %d %s, want 200: file permissions control access", r.status, r.body)
	}
}

func TestLocalUsers(t *testing.T) {
	t.Parallel()
	if ids, err := LocalUsers([]string{"root", "7"}, ""); fmt.Sprint(ids) != fmt.Sprint([]int{0, os.Geteuid(), 0, 7}) || err != nil {
		t.Errorf("got %v and error %v, want root, this user and 7", ids, err)
	}
	if ids, err := LocalUsers(nil, "1234"); err != nil || slices.Contains(ids, 1234) != (os.Geteuid() == 0) {
		t.Errorf("started with sudo: got %v and error %v, want the caller of sudo only if this user is root", ids, err)
	}
	if ids, err := LocalUsers([]string{"*"}, ""); ids != nil || err != nil {
		t.Errorf("*: got %v and error %v, want nil for everybody", ids, err)
	}
	if _, err := LocalUsers([]string{"no-such-user"}, ""); err == nil {
		t.Error("got no error, want one for an unknown name")
	}
}
