// Package containerinit is the first process of a sandbox that an engine runs. It starts the
// program of the sandbox's plan, connects the hub to ports inside, and copies the disk.
//
// The hub injects it into any image, read-only. The container needs no network: the plan and
// the socket for outgoing connections are in one folder, which the container cannot write,
// and the control socket is in another. If the hub shares no folder with the container, as
// in a Pod, a tunnel replaces both sockets. It owns the program and all processes that the
// program leaves.
package containerinit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/entrance"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// The paths of what the hub provides to a container.
const (
	HubDir      = "/run/cove"         // read-only
	ControlDir  = "/run/cove-control" // for the control socket
	PlanName    = "plan.json"
	EgressName  = "egress.sock"
	ControlName = "control"
)

// Plan is what to run.
type Plan struct {
	Command []string `json:"command"`
	Env     []string `json:"env"` // complete
	Workdir string   `json:"workdir,omitempty"`
	// SwitchUser runs the program as the sandbox's user, which is created if it does not exist.
	// Otherwise the program runs as the user of the image.
	SwitchUser bool `json:"switch_user,omitempty"`
	// Volumes are mounted folders that the user may write to.
	Volumes []string `json:"volumes,omitempty"`
	// Files is the maximum number of open files of a process; 0 does not change it.
	Files uint64 `json:"files,omitempty"`
	// Inherit is for hubs that do not know the image: Env is added to the environment of the
	// image, Path is prepended to its PATH, and its working directory is the default.
	Inherit bool     `json:"inherit,omitempty"`
	Path    []string `json:"path,omitempty"`
	// Tunnel connects the hub, if the control socket does not.
	Tunnel *Tunnel `json:"tunnel,omitempty"`
	// Probe is the readiness request to the server.
	Probe Probe `json:"probe,omitzero"`
	// Fill restores the disk from a copy, which the hub sends through the tunnel, before the program starts.
	Fill bool `json:"fill,omitempty"`
	// Hold starts no program, so that the hub can copy the disk.
	Hold bool `json:"hold,omitempty"`
}

// Exit codes of shells for commands that cannot be run.
const (
	exitFailed   = 125
	exitNotFound = 127
)

// Main runs the container, or the verb in args, and returns the exit code.
func Main(args []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if len(args) > 1 && args[0] == EnterVerb {
		log.Error("cannot start the program of this sandbox", "error", enter(args[1:]))
		return exitFailed
	}
	plan, err := readPlan()
	switch {
	case len(args) == 2 && args[0] == InstallVerb:
		if err := install(args[1]); err != nil {
			log.Error("cannot install the programs of the hub", "error", err)
			return exitFailed
		}
		return 0
	case err != nil:
		log.Error("cannot read the plan of this sandbox", "error", err)
		return exitFailed
	}
	// In a Pod without root, programs inside have the same user: they could stop this process, and with it the sandbox.
	if err := proc.SealMemory(); err != nil {
		log.Warn("programs of this sandbox can trace its first process", "error", err)
	}
	if plan.Inherit {
		plan.inherit(os.Environ())
	}
	cfg := proc.InitConfig{Env: plan.Env, Dir: plan.Workdir, Log: log}
	// Before serveHub, which records the time: all later changes are the sandbox's.
	if err := prepare(plan, &cfg); err != nil {
		log.Error("cannot prepare this sandbox", "error", err)
		return exitFailed
	}
	if err := serveHub(plan); err != nil {
		log.Error("cannot serve the hub", "error", err)
		return exitFailed
	}
	if plan.Hold {
		waitForEnd()
		return 0
	}
	if plan.Fill { // the restored disk may define another user
		if err := prepare(plan, &cfg); err != nil {
			log.Error("cannot prepare this sandbox", "error", err)
			return exitFailed
		}
	}
	if plan.Tunnel != nil && plan.Tunnel.Ready != "" {
		go plan.Tunnel.showReady(context.Background(), plan.Probe, startTick, readyTick)
	}
	path, err := findProgram(plan)
	if err != nil {
		log.Error("cannot find the program of this sandbox", "error", err)
		return exitNotFound
	}
	cfg.Argv = append([]string{path}, plan.Command[1:]...)
	if !connectPrograms(&cfg, plan, log) {
		limitFiles(plan.Files, log)
	}
	return proc.Init(cfg)
}

// limitFiles limits the open files of this process and its children, unless the limit is 0.
func limitFiles(limit uint64, log *slog.Logger) {
	if limit == 0 {
		return
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		log.Warn("cannot limit open files", "error", err)
	}
}

// prepare creates the user and the working directory.
func prepare(plan Plan, cfg *proc.InitConfig) (err error) {
	if plan.Hold {
		return nil
	}
	if plan.SwitchUser && os.Geteuid() == 0 {
		if cfg.User, err = prepareUser(plan); err != nil {
			return fmt.Errorf("prepare the user: %w", err)
		}
	}
	if cfg.Dir != "" {
		if err := makeWorkdir(cfg.Dir, cfg.User); err != nil {
			return fmt.Errorf("create the working directory: %w", err)
		}
	}
	return nil
}

// serveHub serves the hub. If the disk is restored from a copy, it returns when that is complete.
func serveHub(plan Plan) error {
	if plan.Tunnel == nil {
		return serveControl()
	}
	plan.Tunnel.server = entrance.New(control.ServerSocket)
	d := &diskService{hold: plan.Hold, filled: make(chan struct{})}
	if err := d.open(); err != nil {
		return err
	}
	if !plan.Fill {
		return plan.Tunnel.serve(d, nil)
	}
	if err := plan.Tunnel.serve(d, d.fill); err != nil {
		return err
	}
	<-d.filled
	return nil
}

func readPlan() (plan Plan, err error) {
	data, err := os.ReadFile(filepath.Join(HubDir, PlanName))
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	return plan, err
}

// serveControl creates the control socket and replaces that of an earlier run.
func serveControl() error {
	dir, err := os.Open(ControlDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	l, err := unixsocket.Listen(dir, ControlName, 0o666) // outside, the folders above are closed to others
	if err != nil {
		return err
	}
	go new(control.Server).Serve(l)
	return nil
}

// prepareUser finds or creates the sandbox's user, and lets it write to its home and its volumes.
func prepareUser(plan Plan) (*proc.User, error) {
	u, err := proc.LookupUser(fmt.Sprint(isolate.UID))
	if err != nil {
		u = &proc.User{UID: isolate.UID, GID: isolate.GID, Name: isolate.User, Home: isolate.Home}
		err := errors.Join(
			appendLine("/etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh", u.Name, u.UID, u.GID, u.Home)),
			appendLine("/etc/group", fmt.Sprintf("%s:x:%d:", u.Name, u.GID)))
		if err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(isolate.Home); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(isolate.Home, 0o755), os.Chown(isolate.Home, int(u.UID), int(u.GID))); err != nil {
			return nil, err
		}
	}
	for _, dir := range plan.Volumes {
		if err := chownVolume(dir, u); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// chownVolume makes the user the owner of a new volume. It does not change a volume that has an owner.
func chownVolume(dir string, u *proc.User) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 {
		return err
	}
	return os.Lchown(dir, int(u.UID), int(u.GID))
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// makeWorkdir creates the working directory, as an engine does, for the user.
func makeWorkdir(dir string, u *proc.User) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil || u == nil {
		return err
	}
	return os.Chown(dir, int(u.UID), int(u.GID))
}

// findProgram finds the program in the PATH of the plan.
func findProgram(plan Plan) (string, error) {
	if len(plan.Command) == 0 {
		return "", errors.New("the plan has no command")
	}
	name := plan.Command[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join("/", plan.Workdir, name)
		}
		return name, nil
	}
	for _, pair := range plan.Env {
		list, ok := strings.CutPrefix(pair, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%q is not in the PATH of the image", name)
}
