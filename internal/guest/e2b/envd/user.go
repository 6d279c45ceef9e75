package envd

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// The user that E2B's clients expect.
const (
	userName = "user"
	userHome = "/home/user"
)

// account is the user of a call.
type account struct {
	name  string
	home  string
	own   bool // it is the sandbox's own user, for which no sudo is necessary
	owner int  // user ID
	group int  // group ID
}

// root is the user that creates files where the user of a call may not.
var root = account{name: "root", home: "/root"}

// users finds accounts.
type users struct {
	runner    *proc.Runner
	home      string
	contained bool
	log       *slog.Logger
	once      sync.Once
}

// fromHeader returns the user in the headers of a request, or the default user.
func (u *users) fromHeader(h http.Header) (account, error) {
	text := h.Get("Authorization")
	scheme, rest, _ := strings.Cut(text, " ")
	if text == "" || !strings.EqualFold(scheme, "Basic") {
		return u.find("")
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	if err != nil {
		return account{}, connect.Errorf(connect.Unauthenticated, "invalid basic authentication; send base64 of USER followed by a colon")
	}
	name, _, _ := strings.Cut(string(b), ":")
	return u.find(name)
}

// find returns a user by name. An empty name means the default user.
func (u *users) find(name string) (account, error) {
	u.once.Do(u.prepare)
	if name == "" || name == userName {
		a := account{name: userName, home: u.home, own: true, owner: os.Getuid(), group: os.Getgid()}
		if list, err := os.ReadDir(userHome); err == nil && len(list) > 0 {
			a.home = userHome // an empty folder is not the home, which has at least the settings of the shell
		}
		return a, nil
	}
	found, err := proc.LookupUser(name)
	if err != nil {
		return account{}, connect.Errorf(connect.Unauthenticated, "no such user: %.60q", name)
	}
	return account{name: found.Name, home: found.Home, own: int(found.UID) == os.Getuid(), owner: int(found.UID), group: int(found.GID)}, nil
}

// UserHome returns the home of the user that E2B's clients expect, and creates that user if necessary.
func (s *Service) UserHome() string {
	a, err := s.users.find("")
	if err != nil {
		return s.Config.Home
	}
	return a.home
}

// prepareScript adds the name "user" for the sandbox's user before its other names, so that programs show this name, and links
// the home of that name. The other name stays valid.
const prepareScript = `set -e
rmdir "$2" 2> /dev/null || true
[ -e "$2" ] || ln -s "$1" "$2"
add() {
	[ -e "$1" ] || return 0
	cp -p "$1" "$1.new"
	{ printf '%s\n' "$2"; grep -v '^user:' "$1" || true; } > "$1.new"
	mv "$1.new" "$1"
}
add /etc/group "user:x:$4:"
add /etc/shadow "user:*:20000:0:99999:7:::"
add /etc/passwd "user:x:$3:$4::$2:/bin/bash"`

// hasRoot reports whether the sandbox has sudo. The sandbox may still deny it.
func (u *users) hasRoot() bool {
	if !u.contained || os.Getuid() == 0 {
		return false
	}
	_, ok := u.runner.Look("sudo")
	return ok
}

// prepare creates the user that E2B's clients expect, if the sandbox allows it.
func (u *users) prepare() {
	if findName(userNames, os.Getuid()) == userName || !u.hasRoot() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	res, err := u.runner.Run(ctx, proc.Command{Path: "sudo", Dir: "/", Args: []string{"-n", "--", "sh", "-c", prepareScript, "sh",
		u.home, userHome, strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())}})
	if err != nil || res.Exit.Code != 0 {
		u.log.Info("cannot rename the sandbox's user", "exit", res.Exit.Code, "error", err)
	}
}

// resolve returns the absolute form of a path. Relative paths start at the home.
func (a account) resolve(path string) (string, error) {
	switch {
	case strings.IndexByte(path, 0) >= 0:
		return "", connect.Errorf(connect.InvalidArgument, "invalid path: it contains a zero byte")
	case path == "" || path == "~":
		return a.home, nil
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(a.home, path[2:]), nil
	case strings.HasPrefix(path, "~"):
		return "", connect.Errorf(connect.InvalidArgument, "invalid path %q: ~USER is unsupported; use an absolute path", path)
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	return filepath.Join(a.home, path), nil
}

// environ returns the environment of a process of the user.
func (s *Service) environ(a account, h http.Header, dir string, more map[string]string) []string {
	set := map[string]*string{"HOME": &a.home, "USER": &a.name, "LOGNAME": &a.name, "PWD": &dir}
	yes := "true"
	set["E2B_SANDBOX"] = &yes
	if id := h.Get("E2b-Sandbox-Id"); id != "" {
		set["E2B_SANDBOX_ID"] = &id
	}
	for name, value := range more {
		set[name] = &value
	}
	return environ.Merge(s.Runner.Environ(), set)
}

func checkVariables(more map[string]string) error {
	for name, value := range more {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(value, 0) >= 0 {
			return connect.Errorf(connect.InvalidArgument,
				"invalid variable %q: the name must not be empty or contain =, and name and value must not contain zero bytes", name)
		}
	}
	return nil
}
