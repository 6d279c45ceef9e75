// Package bind is the one call that makes a waiting sandbox somebody's: its
// environment, its files and its folder.
//
// A sandbox that was started ahead, for nobody yet, knows nothing of who will
// get it; whoever hands it out tells it once, before anything runs in it. The
// package owns the check and the writing of files, and that it happens once. It
// refuses a sandbox that does not wait, and it keeps, logs and repeats nothing
// of what it was told.
package bind

import (
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
)

const (
	// maxEnv is what the kernel gives a new process room for, with some to spare.
	maxEnv = 1 << 20
	// maxPair is the kernel's limit for one variable.
	maxPair = 128<<10 - 1
)

// Settings are what a sandbox is told about the processes in it.
type Settings struct {
	Env     map[string]string
	Unset   []string
	Workdir string // empty: as it was
}

// Commit puts prepared settings into effect, or fails and changes nothing.
type Commit func() (ready bool, err error)

// Config of the service.
type Config struct {
	// Home is what ~ in paths stands for.
	Home string
	// Prepare checks the settings and makes everything ready that they change; commit
	// puts it into effect and tells whether the sandbox is ready to be used.
	// Nil: the sandbox does not wait, and the call is refused.
	Prepare func(Settings) (commit Commit, err error)
	// Bound: it was told already.
	Bound bool
}

// Service takes the call.
type Service struct {
	cfg Config

	mu   sync.Mutex
	done bool
}

// New returns the service.
func New(cfg Config) *Service { return &Service{cfg: cfg, done: cfg.Bound} }

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_init", Route: "POST /v1/sandbox/init", Tag: "sandbox", Style: op.Resource, NoTool: true, NoVerb: true, NoDoc: true,
			Doc: "Tell a waiting sandbox its environment, files and folder. It is done once, by who hands the sandbox out, before anything else."}, s.Init),
	}
}

// Close has nothing to end.
func (s *Service) Close() error { return nil }

// InitIn is what the sandbox becomes.
type InitIn struct {
	Env     map[string]string `json:"env" nullable:"true" doc:"Variables of everything that runs from now on; settings of the sandbox are among them"`
	Unset   []string          `json:"unset" nullable:"true" maxItems:"4096" doc:"Variables to take away"`
	Files   []File            `json:"files" nullable:"true" maxItems:"4096" doc:"Files to write before anything runs"`
	Workdir string            `json:"workdir" default:"" nullable:"true" doc:"Folder that new sessions start in; it is made if need be"`
}

// File is one to write.
type File struct {
	Path    string `json:"path" doc:"Absolute, or below the home as ~/name; missing folders are made" minLength:"1" maxLength:"4096"`
	Content string `json:"content" default:"" doc:"Content as base64"`
	Mode    string `json:"mode" default:"0600" pattern:"^0?[0-7]{3}$" doc:"Rights in octal"`
}

// InitOut is the answer.
type InitOut struct {
	Ready bool `json:"ready" doc:"Whether it can be used; if not, its start hooks run, and /readyz tells when"`
}

// Init binds the sandbox. Unless it succeeds the sandbox waits on.
func (s *Service) Init(_ context.Context, in InitIn) (InitOut, error) {
	if err := check(in); err != nil {
		return InitOut{}, err
	}
	files, err := s.files(in.Files)
	if err != nil {
		return InitOut{}, err
	}
	work := in.Workdir
	if work != "" {
		if work, err = s.resolve(work); err != nil {
			return InitOut{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done:
		return InitOut{}, op.Errorf(op.Conflict, "the sandbox was initialised already; that is done once")
	case s.cfg.Prepare == nil:
		return InitOut{}, op.Errorf(op.Conflict, "the sandbox does not wait to be initialised; start its server with the setting init for that")
	}
	commit, err := s.cfg.Prepare(Settings{Env: in.Env, Unset: in.Unset, Workdir: work})
	if err != nil {
		return InitOut{}, err
	}
	if work != "" {
		if err := os.MkdirAll(work, 0o755); err != nil {
			return InitOut{}, op.Errorf(op.Invalid, "make the folder: %w", err)
		}
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return InitOut{}, op.Errorf(op.Invalid, "write a file: %w", err)
		}
	}
	ready, err := commit()
	if err != nil {
		return InitOut{}, err
	}
	s.done = true
	return InitOut{Ready: ready}, nil
}

// check refuses what no process could be started with. It quotes no value.
func check(in InitIn) error {
	size := 0
	for k, v := range in.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return op.Errorf(op.Invalid, "variable %.60q: its name must not be empty or hold =, and neither name nor value a zero byte", k)
		}
		if len(k)+len(v)+2 > maxPair {
			return op.Errorf(op.Invalid, "variable %.60q is larger than %d bytes; give it as a file", k, maxPair)
		}
		size += len(k) + len(v) + 2
	}
	if size > maxEnv {
		return op.Errorf(op.Invalid, "the environment is %d bytes, more than %d; give some of it as files", size, maxEnv)
	}
	return nil
}

// resolve makes a path absolute. There is no folder yet that another could be relative to.
func (s *Service) resolve(path string) (string, error) {
	if path[0] != '/' && path != "~" && !strings.HasPrefix(path, "~/") {
		return "", op.Errorf(op.Invalid, "path %.80q: begin it with / or ~/", path)
	}
	path, err := pathname.Base{Home: s.cfg.Home}.Resolve(path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "%w", err)
	}
	return path, nil
}

// file is one to write, checked.
type file struct {
	path    string
	content []byte
	mode    fs.FileMode
}

func (s *Service) files(list []File) ([]file, error) {
	out := make([]file, 0, len(list))
	for _, in := range list {
		path, err := s.resolve(in.Path)
		if err != nil {
			return nil, err
		}
		content, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "the content of %.80q is not base64", in.Path)
		}
		mode, err := strconv.ParseUint(in.Mode, 8, 32)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "mode %q of %.80q is not octal, such as 0600", in.Mode, in.Path)
		}
		out = append(out, file{path, content, fs.FileMode(mode)})
	}
	return out, nil
}

// write puts the file there whole. The server has no more rights than the
// sandbox's user, so what that user may not write it cannot.
func (f file) write() error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	path, err := atomicfile.Follow(f.path)
	if err != nil {
		return err
	}
	err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600}, func(to *os.File) error {
		_, err := to.Write(f.content)
		return err
	})
	if err != nil {
		return err
	}
	// A replaced file has kept the old one's mode.
	return os.Chmod(path, f.mode)
}

var _ fmt.Stringer = InitIn{}

// String shows nothing of what may be secret, should the input ever meet a log.
func (in InitIn) String() string {
	return fmt.Sprintf("%d variables, %d files", len(in.Env), len(in.Files))
}
