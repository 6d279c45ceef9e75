// Package build runs the steps of a template's build inside a sandbox: commands as any user, and copies of uploaded
// files. It owns the processes of a step, and ends what they leave behind. The hub decides what runs; the package
// keeps no state between calls. It needs a server that runs as root inside.
package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of a Service.
type Config struct {
	Runner *proc.Runner
	// EndOthers ends all processes of the sandbox except the server and the first process.
	EndOthers func(context.Context) error
	// Staging is the folder in which files of a copy are unpacked; default "/".
	Staging string
	// Root is the folder that Pack reads; default "/". Secrets is the folder of secrets in it, which must not be saved with the
	// disk; default /run/secrets.
	Root, Secrets string
	// Limits of one copy.
	Limits archive.Limits
}

// Service implements the operations.
type Service struct{ Config }

// The default limits of a copy.
const (
	maxEntries = 200_000
	maxBytes   = 32 << 30
)

// New returns the service.
func New(c Config) *Service {
	if c.Staging == "" {
		c.Staging = "/"
	}
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Secrets == "" {
		c.Secrets = "/run/secrets"
	}
	if c.Limits == (archive.Limits{}) {
		c.Limits = archive.Limits{Entries: maxEntries, Bytes: maxBytes, Packed: maxBytes}
	}
	return &Service{c}
}

// Close does nothing: the runner ends the processes of steps.
func (s *Service) Close() error { return nil }

// Ops lists the operations. Only the hub calls them.
func (s *Service) Ops() []op.Op {
	spec := func(name, doc string) op.Spec {
		return op.Spec{Name: "build_" + name, Route: "POST /v1/build/" + name, Tag: "build", Style: op.Resource,
			NoTool: true, NoVerb: true, NoDoc: true, Doc: doc}
	}
	pack := spec("pack", "Pack files for another stage.")
	pack.Content = op.ContentForeign
	return []op.Op{
		op.Stream[RunIn, RunEvent](spec("run", "Run a step and stream its output."), s.Run),
		op.New(spec("copy", "Copy files of an uploaded archive."), s.Copy),
		op.New(pack, s.Pack),
		op.New(spec("settle", "End all processes that steps have left behind, and search changed files for secrets."), s.Settle),
	}
}

// RunIn is a command.
type RunIn struct {
	Args    []string          `json:"args" minItems:"1" doc:"Program and its arguments"`
	Env     map[string]string `json:"env" nullable:"true" doc:"Environment, in addition to PATH, HOME and the proxy"`
	User    string            `json:"user" default:"" doc:"Name or ID, with an optional group after a colon; default root"`
	Workdir string            `json:"workdir" default:"/" doc:"Working directory; created if missing"`
	Owner   string            `json:"owner" default:"" doc:"Owner of a created working directory; default root"`
	Secrets []Secret          `json:"secrets" nullable:"true" doc:"Secrets of this command"`
	Caches  []Cache           `json:"caches" nullable:"true" doc:"Mounted folders to prepare"`
	Timeout float64           `json:"timeout" default:"3600" minimum:"0.1" maximum:"86400" doc:"Seconds until it is killed"`
}

// RunEvent is output, or the end of the command.
type RunEvent struct {
	Text   string `json:"text,omitempty" doc:"A line of output, or a part of a long line"`
	Done   bool   `json:"done,omitempty" doc:"The command has ended"`
	Code   int    `json:"code,omitempty" doc:"Its exit code"`
	Reason string `json:"reason,omitempty" doc:"Why it did not start or was ended"`
}

// standardPath is the PATH of steps whose image sets none.
const standardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// passed lists the variables of the server that steps inherit: the proxy and its certificate authority.
var passed = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "NODE_USE_ENV_PROXY", "HOSTNAME", "LANG"}

func (s *Service) environ(u proc.User, more map[string]string) []string {
	env := map[string]string{"PATH": standardPath, "HOME": u.Home}
	for _, pair := range s.Runner.Environ() {
		if name, value, _ := strings.Cut(pair, "="); slices.Contains(passed, name) {
			env[name] = value
		}
	}
	maps.Copy(env, more)
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// lookup finds a user by name or ID, with an optional group after a colon. An unknown ID is valid, as in Docker.
func lookup(name string) (proc.User, error) {
	name, group, _ := strings.Cut(name, ":")
	if name == "" {
		name = "0"
	}
	var u proc.User
	if found, err := proc.LookupUser(name); err == nil {
		u = *found
	} else {
		id, numeric := strconv.ParseUint(name, 10, 16)
		if numeric != nil {
			return u, op.Errorf(op.Invalid, "invalid username: '%.60s'", name)
		}
		u = proc.User{UID: uint32(id), Home: "/"}
	}
	if u.Home == "" {
		u.Home = "/"
	}
	if group != "" {
		id, err := lookupGroup(group)
		if err != nil {
			return u, err
		}
		u.GID, u.Groups = id, nil
	}
	return u, nil
}

// Run runs a command until it ends. Processes that it leaves behind keep running until Settle.
func (s *Service) Run(ctx context.Context, in RunIn, send func(op.Event) error) error {
	fail := func(err error) error {
		return send(op.Event{Data: RunEvent{Done: true, Code: -1, Reason: err.Error()}})
	}
	u, err := lookup(in.User)
	if err != nil {
		return fail(err)
	}
	if err := s.makeWorkdir(in.Workdir, in.Owner); err != nil {
		return fail(err)
	}
	hidden, err := s.provide(&in)
	defer hidden.remove()
	if err != nil {
		return fail(err)
	}
	lines := &lineWriter{send: send}
	command := proc.Command{Path: in.Args[0], Args: in.Args[1:], Dir: in.Workdir, Env: s.environ(u, in.Env), User: &u,
		Stdout: lines, Stderr: lines, Session: true}
	if os.Geteuid() != 0 {
		if int(u.UID) != os.Geteuid() {
			return fail(errors.New("steps cannot change their user, because the sandbox has only one; run the hub as root"))
		}
		command.User = nil
	}
	p, err := s.Runner.Start(command)
	if err != nil {
		return fail(err)
	}
	reason := ""
	timer := time.NewTimer(op.Seconds(in.Timeout))
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		reason = fmt.Sprintf("it did not end in %v seconds", in.Timeout)
		p.Kill()
	case <-ctx.Done():
		p.Kill()
		return context.Cause(ctx)
	}
	lines.flush()
	exit := p.Exit()
	if exit.Signal != 0 && reason == "" {
		reason = "killed by signal " + exit.Signal.String()
		if exit.Signal == syscall.SIGKILL {
			reason += "; it may have run out of memory"
		}
	}
	return send(op.Event{Data: RunEvent{Done: true, Code: exit.Code, Reason: reason}})
}

// makeWorkdir creates a working directory and its missing parents, with an owner.
func (s *Service) makeWorkdir(dir, owner string) error {
	if !filepath.IsAbs(dir) {
		return op.Errorf(op.Invalid, "workdir %.80q: use an absolute path", dir)
	}
	u, err := lookup(owner)
	if err != nil {
		return err
	}
	return makeFolders(filepath.Clean(dir), int(u.UID), int(u.GID))
}

// makeFolders creates a folder and its missing parents, which belong to a user.
func makeFolders(dir string, uid, gid int) error {
	info, err := os.Stat(dir)
	switch {
	case err == nil && !info.IsDir():
		return op.Errorf(op.Invalid, "%.200s is not a folder", dir)
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := makeFolders(filepath.Dir(dir), uid, gid); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return chown(dir, uid, gid)
}

// chown changes the owner of a path, which only root can.
func chown(path string, uid, gid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, uid, gid)
}

// maxLine bounds the lines of events; longer ones are split.
const maxLine = 8 << 10

// lineWriter sends the lines of a command's output.
type lineWriter struct {
	send func(op.Event) error
	mu   sync.Mutex
	part []byte
	end  bool
}

// Write sends all complete lines.
func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end {
		return len(b), nil // of a process that outlives the command
	}
	w.part = append(w.part, b...)
	for {
		i := slices.Index(w.part, '\n')
		if i < 0 && len(w.part) < maxLine {
			return len(b), nil
		}
		if i < 0 || i > maxLine {
			i = maxLine - 1
		}
		if err := w.emit(w.part[:i+1]); err != nil {
			return 0, err
		}
		w.part = append(w.part[:0], w.part[i+1:]...)
	}
}

func (w *lineWriter) emit(line []byte) error {
	text := strings.ToValidUTF8(strings.TrimRight(string(line), "\r\n"), "\uFFFD")
	return w.send(op.Event{Data: RunEvent{Text: text}})
}

// flush sends the last line, and nothing afterwards.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.part) > 0 {
		_ = w.emit(w.part) // the next send fails, too
	}
	w.part, w.end = nil, true
}
