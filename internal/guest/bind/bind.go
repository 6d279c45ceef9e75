// Package bind assigns a warm sandbox to its owner: it sets the environment, files
// and working directory.
//
// A sandbox from a warm pool starts before its owner is known. The hub initializes it once,
// before any command runs in it. The package validates the request, writes the files and
// ensures that a sandbox is initialized only once. It never stores, logs or returns values
// of the request.
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

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

const (
	// maxEnv is below the kernel's limit for the environment of a process.
	maxEnv = 1 << 20
	// maxPair is the kernel's limit for one variable.
	maxPair = 128<<10 - 1
)

// Settings apply to all processes of a sandbox.
type Settings struct {
	Env     map[string]string
	Unset   []string
	Workdir string // empty: unchanged
}

// Commit applies prepared settings, or fails and changes nothing.
type Commit func() (ready bool, err error)

// Config of the service.
type Config struct {
	// Home replaces ~ in paths.
	Home string
	// Prepare validates the settings and prepares their changes; commit applies them
	// and returns whether the sandbox is ready. Nil: the sandbox is not waiting, and
	// calls are refused.
	Prepare func(Settings) (commit Commit, err error)
	// Bound means that the sandbox is already initialized.
	Bound bool
}

// Service initializes the sandbox.
type Service struct {
	cfg Config

	mu   sync.Mutex
	done bool
}

// New returns the service.
func New(cfg Config) *Service { return &Service{cfg: cfg, done: cfg.Bound} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_init", Route: "POST /v1/sandbox/init", Tag: "sandbox", Style: op.Resource,
			NoTool: true, NoVerb: true, NoDoc: true,
			Doc: "Set the environment, files and working directory of a waiting sandbox. The hub calls it once, before any command runs."}, s.Init),
	}
}

// Close does nothing.
func (s *Service) Close() error { return nil }

// InitIn is the environment, files and working directory.
type InitIn struct {
	Env     map[string]string `json:"env" nullable:"true" doc:"Environment variables of all new processes, including settings of the sandbox"`
	Unset   []string          `json:"unset" nullable:"true" maxItems:"4096" doc:"Environment variables to remove"`
	Files   []File            `json:"files" nullable:"true" maxItems:"4096" doc:"Files to write before any command runs"`
	Workdir string            `json:"workdir" default:"" nullable:"true" doc:"Working directory of new sessions; created if missing"`
}

// File is a file to write.
type File struct {
	Path    string `json:"path" doc:"Absolute path, or ~/name; missing folders are created" minLength:"1" maxLength:"4096"`
	Content string `json:"content" default:"" doc:"Content in base64"`
	Mode    string `json:"mode" default:"0600" pattern:"^0?[0-7]{3}$" doc:"File mode in octal"`
}

// InitOut is the result.
type InitOut struct {
	Ready bool `json:"ready" doc:"Whether the sandbox is ready; otherwise start hooks are running, see /readyz"`
}

// Init initializes the sandbox. If it fails, the sandbox keeps waiting.
func (s *Service) Init(_ context.Context, in InitIn) (InitOut, error) {
	if err := checkEnv(in); err != nil {
		return InitOut{}, err
	}
	files, err := s.parseFiles(in.Files)
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
		return InitOut{}, op.Errorf(op.Conflict, "the sandbox is already initialized")
	case s.cfg.Prepare == nil:
		return InitOut{}, op.Errorf(op.Conflict, "the sandbox is not waiting for initialization; start its server with the setting init")
	}
	commit, err := s.cfg.Prepare(Settings{Env: in.Env, Unset: in.Unset, Workdir: work})
	if err != nil {
		return InitOut{}, err
	}
	if work != "" {
		if err := os.MkdirAll(work, 0o755); err != nil {
			return InitOut{}, op.Errorf(op.Invalid, "create the working directory: %w", err)
		}
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return InitOut{}, op.Errorf(op.Invalid, "write file: %w", err)
		}
	}
	ready, err := commit()
	if err != nil {
		return InitOut{}, err
	}
	s.done = true
	return InitOut{Ready: ready}, nil
}

// checkEnv refuses an environment with which no process can start. Its errors contain no
// values.
func checkEnv(in InitIn) error {
	size := 0
	for k, v := range in.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return op.Errorf(op.Invalid, "invalid variable %.60q: the name must not be empty or contain =, and "+
				"neither name nor value may contain a zero byte", k)
		}
		if len(k)+len(v)+2 > maxPair {
			return op.Errorf(op.Invalid, "variable %.60q exceeds %d bytes; use a file instead", k, maxPair)
		}
		size += len(k) + len(v) + 2
	}
	if size > maxEnv {
		return op.Errorf(op.Invalid, "the environment has %d bytes (limit %d); use files instead", size, maxEnv)
	}
	return nil
}

// resolve makes a path absolute. There is no working directory yet for relative paths.
func (s *Service) resolve(path string) (string, error) {
	if path[0] != '/' && path != "~" && !strings.HasPrefix(path, "~/") {
		return "", op.Errorf(op.Invalid, "path %.80q must begin with / or ~/", path)
	}
	path, err := pathname.Base{Home: s.cfg.Home}.Resolve(path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "%w", err)
	}
	return path, nil
}

// file is a validated file.
type file struct {
	path    string
	content []byte
	mode    fs.FileMode
}

func (s *Service) parseFiles(list []File) ([]file, error) {
	out := make([]file, 0, len(list))
	for _, in := range list {
		path, err := s.resolve(in.Path)
		if err != nil {
			return nil, err
		}
		content, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "the content of %.80q is not valid base64", in.Path)
		}
		mode, err := strconv.ParseUint(in.Mode, 8, 32)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "invalid mode %q for %.80q; use an octal number such as 0600", in.Mode, in.Path)
		}
		out = append(out, file{path, content, fs.FileMode(mode)})
	}
	return out, nil
}

// write replaces the file atomically. The server has no more permissions than the
// sandbox's user.
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
	// Replace keeps the mode of an existing file.
	return os.Chmod(path, f.mode)
}

var _ fmt.Stringer = InitIn{}

// String shows no values, in case the input is logged.
func (in InitIn) String() string {
	return fmt.Sprintf("%d variables, %d files", len(in.Env), len(in.Files))
}
