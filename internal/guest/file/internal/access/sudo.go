package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// The scripts that run as root. Paths are passed as arguments, never as part of the script.
// Exit codes above errnoBase carry an errno.
const (
	readScript = `
[ -d "$1" ] && exit 221
if [ ! -f "$1" ]; then [ -e "$1" ] && exit 206; exit 202; fi
exec cat -- "$1"`

	writeScript = `
set -eu
target=$(readlink -m -- "$1")
[ -d "$target" ] && exit 221
[ -e "$target" ] && [ ! -f "$target" ] && exit 206
folder=$(dirname -- "$target")
mkdir -p -- "$folder"
temp=$(mktemp -- "$folder/.cove-XXXXXXXXXX.tmp")
trap 'rm -f -- "$temp"' EXIT
if [ "$2" = append ] && [ -f "$target" ]; then cat -- "$target" > "$temp"; fi
cat >> "$temp"
if [ -f "$target" ]; then
	chown --reference="$target" -- "$temp"
	chmod --reference="$target" -- "$temp"
else
	chmod 644 -- "$temp"
fi
mv -fT -- "$temp" "$target"
trap - EXIT`

	errnoBase = 200
	sudoTime  = 60 * time.Second
)

// NeedsSudo reports whether a request for root must use sudo.
func (f *Files) NeedsSudo(requested bool) bool { return requested && !f.cfg.Root }

// checkSudo checks that sudo is installed and allowed, since its own errors cannot be
// distinguished from those of what it runs.
func (f *Files) checkSudo(ctx context.Context) error {
	if f.cfg.Runner == nil {
		return deniedSudo("programs cannot be started here")
	}
	if _, ok := f.cfg.Runner.Look("sudo"); !ok {
		return deniedSudo("sudo is not installed; install the Debian package sudo")
	}
	res, err := f.cfg.Runner.Run(ctx, f.sudoCommand("true"))
	if err != nil {
		return err
	}
	if res.Exit.Code != 0 {
		return deniedSudo(strings.Join(strings.Fields(string(res.Stderr)), " "))
	}
	return nil
}

type sudoError string

func (e sudoError) Error() string { return string(e) }

func deniedSudo(why string) error {
	return sudoError("the sandbox user cannot use sudo: " + why + "; retry without sudo, or allow the user to run sudo without a password")
}

// explainSudo turns a denial by sudo into an error of the operation.
func explainSudo(operation, path string, err error) error {
	if why, ok := errors.AsType[sudoError](err); ok {
		return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Denied, Errno: syscall.EPERM}, "%s %s: %s", operation, path, string(why))
	}
	return err
}

func (f *Files) sudoCommand(args ...string) proc.Command {
	// The programs' messages are parsed for their errno, so they must be in English.
	env := append(f.cfg.Runner.Environ(), "LC_ALL=C")
	return proc.Command{Path: "sudo", Args: append([]string{"-n", "--"}, args...), Env: env}
}

// sudoRead streams a file that only root can read.
func (f *Files) sudoRead(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := f.checkSudo(ctx); err != nil {
		return nil, explainSudo("read", path, err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r := &sudoReader{File: in, stderr: proc.NewCapture(4<<10, 0)}
	c := f.sudoCommand("sh", "-c", readScript, "sh", path)
	c.Stdout, c.Stderr, c.Grace = out, r.stderr, -1
	r.proc, err = f.cfg.Runner.Start(c)
	out.Close()
	if err != nil {
		in.Close()
		return nil, err
	}
	r.stop = context.AfterFunc(ctx, func() { r.proc.Kill() })
	return r, nil
}

// sudoReader is the output of a program that runs as root.
type sudoReader struct {
	*os.File
	proc   *proc.Process
	stderr *proc.Capture
	stop   func() bool
	ended  bool
	closed bool
}

func (r *sudoReader) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	if errors.Is(err, io.EOF) {
		r.ended = true
	}
	return n, err
}

// Close ends the program. If everything was read, it returns the program's error.
func (r *sudoReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	r.stop()
	r.File.Close()
	if !r.ended {
		r.proc.Kill()
		return nil
	}
	<-r.proc.Done()
	return sudoExitError(r.proc.Exit(), r.stderr.String())
}

// WriteAsRoot replaces a file, or appends to it, as root and atomically.
func (f *Files) WriteAsRoot(ctx context.Context, path string, content []byte, appending bool) error {
	if err := f.checkSudo(ctx); err != nil {
		return explainSudo("write", path, err)
	}
	how := "replace"
	if appending {
		how = "append"
	}
	ctx, cancel := context.WithTimeout(ctx, sudoTime)
	defer cancel()
	c := f.sudoCommand("sh", "-c", writeScript, "sh", path, how)
	c.Stdin = bytes.NewReader(content)
	res, err := f.cfg.Runner.Run(ctx, c)
	if err != nil {
		return err
	}
	return sudoExitError(res.Exit, string(res.Stderr))
}

// sudoErrnos are those that a program's error message can carry.
var sudoErrnos = []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOENT, syscall.EISDIR,
	syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EDQUOT, syscall.EBUSY, syscall.EIO}

func sudoExitError(exit proc.Exit, stderr string) error {
	if exit.Code == 0 {
		return nil
	}
	if exit.Code > errnoBase && exit.Signal == 0 {
		return syscall.Errno(exit.Code - errnoBase)
	}
	text := strings.TrimSpace(stderr)
	for _, e := range sudoErrnos {
		if strings.HasSuffix(strings.ToLower(text), ": "+e.Error()) {
			return e
		}
	}
	return op.Errorf(op.Unavailable, "the command run as root failed (%v): %s", exit, fmt.Sprintf("%.500s", text))
}
