package bash

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// snapshotTime is how long a snapshot script may take.
	snapshotTime = 30 * time.Second
	// snapshotSize limits the bytes of a snapshot.
	snapshotSize = 2 << 20
)

// snapshotScript sources $1 and prints, each followed by a zero byte: the shell options
// before and after, functions, aliases, and every variable of the environment.
// $0 is the path of env, because the script may change PATH.
const snapshotScript = `shopt -p
printf '\0'
. "$1" >&2
set +eu
builtin shopt -p
builtin printf '\0'
builtin declare -f
builtin printf '\0'
builtin alias -p
builtin printf '\0'
builtin exec "$0" -0`

// snapshot is the shell state after a script.
type snapshot struct {
	env []string
	// prelude restores options, functions and aliases. Bash reads it before the command,
	// from a descriptor named by BASH_ENV.
	prelude string
}

// preludePath is the path of the prelude in a command's bash: the first extra file.
const preludePath = "/proc/self/fd/3"

// preludeHead closes the descriptor and unsets BASH_ENV, so that programs started by the
// command do not read the prelude.
const preludeHead = "exec 3<&-\nunset BASH_ENV\n"

// takeSnapshot runs a snapshot script.
func (s *Service) takeSnapshot(ctx context.Context, path, dir string) (*snapshot, error) {
	path, err := s.base.Resolve(path)
	if err != nil {
		return nil, op.Errorf(op.Invalid, "snapshot_path: %w", err)
	}
	if info, err := os.Stat(path); err != nil {
		return nil, op.Errorf(op.NotFound, "cannot read snapshot_path: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, op.Errorf(op.Invalid, "snapshot_path %q is not a regular file", path)
	}
	s.mu.Lock()
	shell, err := s.bash()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	env, ok := s.Runner.Look("env")
	if !ok {
		return nil, op.Errorf(op.Unavailable, "cannot take a snapshot: the program env is not installed; install the coreutils package")
	}
	limited, cancel := context.WithTimeout(ctx, snapshotTime)
	defer cancel()
	cmd := proc.Command{Path: shell, Argv0: "bash", Args: []string{"-c", snapshotScript, env, path}, Dir: dir,
		Grace: grace, Limit: snapshotSize}
	res, err := s.Runner.Run(limited, cmd)
	said := clean(firstRunes(strings.TrimSpace(string(res.Stderr)), 2000))
	switch {
	case ctx.Err() != nil:
		return nil, op.Errorf(op.Canceled, "take snapshot: canceled; no session was created")
	case limited.Err() != nil:
		return nil, op.Errorf(op.Invalid,
			"snapshot %q timed out after %v; it must not wait for input. Its output: %s", path, snapshotTime, said)
	case err != nil:
		return nil, startError(cmd, err)
	case res.DroppedStdout > 0:
		return nil, op.Errorf(op.TooLarge,
			"snapshot %q defines more than %d bytes of environment and functions; make it smaller", path, snapshotSize)
	}
	shot, err := parseSnapshot(string(res.Stdout))
	if err != nil {
		return nil, op.Errorf(op.Invalid,
			"snapshot %q exited (code %d) before its environment could be read; it must not call exit. Its output: %s", path, res.Exit.Code, said)
	}
	if said != "" {
		op.Hint(ctx, "Output of the snapshot: %s", said)
	}
	shot.restore(s.Runner.Environ())
	return shot, nil
}

// parseSnapshot parses the output of snapshotScript.
func parseSnapshot(out string) (*snapshot, error) {
	parts := strings.Split(out, "\x00")
	if len(parts) < 6 || parts[len(parts)-1] != "" {
		return nil, errors.New("the snapshot is incomplete")
	}
	before := strings.Split(parts[0], "\n")
	var b strings.Builder
	for line := range strings.SplitSeq(parts[1], "\n") {
		if !slices.Contains(before, line) {
			b.WriteString(line + "\n")
		}
	}
	// Options come first, because bash may need them to parse functions. Aliases come last,
	// so that they are not expanded in functions.
	b.WriteString(parts[2])
	b.WriteString(parts[3])
	return &snapshot{env: parts[4 : len(parts)-1], prelude: b.String()}, nil
}

// restore resets the variables that describe the shell itself to their values in base.
func (sh *snapshot) restore(base []string) {
	own := map[string]*string{}
	for _, name := range []string{"PWD", "OLDPWD", "SHLVL", "_"} {
		own[name] = nil
		if v, ok := environ.Lookup(base, name); ok {
			own[name] = &v
		}
	}
	sh.env = environ.Merge(sh.env, own)
}

// environ returns the environment of a command (nil: the runner's) and the file that it
// refers to. A BASH_ENV set by the caller has priority; the prelude is then not used.
func (sh *snapshot) environ(r *proc.Runner, changes map[string]*string) ([]string, []*os.File, error) {
	if sh == nil {
		if len(changes) == 0 {
			return nil, nil, nil
		}
		return environ.Merge(r.Environ(), changes), nil, nil
	}
	env := environ.Merge(sh.env, changes)
	if _, taken := environ.Lookup(env, "BASH_ENV"); taken || sh.prelude == "" {
		return env, nil, nil
	}
	f, err := memoryFile(preludeHead + sh.prelude)
	if err != nil {
		return nil, nil, err
	}
	return append(env, "BASH_ENV="+preludePath), []*os.File{f}, nil
}
