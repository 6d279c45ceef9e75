// Package pyerr describes failures of file operations in the words that clients
// test on: one of nine kinds, the errno with its name, and the exception that
// Python would raise. It owns that vocabulary; it refuses to decide what an
// operation does about a failure.
package pyerr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
)

// Kind is the error_type on the wire.
type Kind string

const (
	NotFound Kind = "not_found"
	Denied   Kind = "permission_denied"
	Target   Kind = "invalid_target"
	Exists   Kind = "already_exists"
	Path     Kind = "invalid_path"
	ReadOnly Kind = "read_only_filesystem"
	NoSpace  Kind = "no_space_left"
	Decode   Kind = "decode_error"
	IO       Kind = "io_error"
)

// Failure is what a reply's data holds when a file operation failed.
type Failure struct {
	Path      string  `json:"path"`
	Operation string  `json:"operation"`
	Message   string  `json:"message"`
	ErrorType Kind    `json:"error_type"`
	Retryable bool    `json:"retryable"`
	Errno     *int    `json:"errno"`
	ErrnoName *string `json:"errno_name"`
	Exception *string `json:"exception_type"`
}

// Spec describes a failure that no system call reported.
type Spec struct {
	Kind      Kind
	Class     string        // Python's exception; by default the kind's usual one
	Errno     syscall.Errno // 0: none
	Hint      string
	Retryable bool
}

// New makes a failure. The message says what to do next.
func New(operation, path string, s Spec, format string, args ...any) error {
	return build(operation, path, s, fmt.Errorf(format, args...))
}

// From describes any error of a file operation. One that is described already
// stays as it is.
func From(operation, path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := op.AsError(err); ok {
		return complete(operation, path, e)
	}
	s := classify(err)
	path = pathname.Show(path)
	return build(operation, path, s, fmt.Errorf("%s %s: %s%s%w", operation, path, reason(err), advice(s), silent{err}))
}

// complete gives a failure of another package the fields that clients look for.
func complete(operation, path string, e *op.Error) error {
	if _, ok := e.Data.(Failure); ok {
		return e
	}
	kind := IO
	switch e.Code {
	case op.NotFound:
		kind = NotFound
	case op.Denied, op.Unauthenticated:
		kind = Denied
	case op.Conflict:
		kind = Exists
	case op.Invalid, op.TooLarge:
		kind = Target
	}
	same := *e
	same.Data = Failure{Path: pathname.Show(path), Operation: operation, Message: e.Msg, ErrorType: kind, Exception: new(class(Spec{Kind: kind}))}
	return &same
}

// silent keeps the cause in the chain without repeating its text.
type silent struct{ err error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.err }

func build(operation, path string, s Spec, err error) error {
	if s.Class == "" {
		s.Class = class(s)
	}
	f := Failure{Path: pathname.Show(path), Operation: operation, Message: err.Error(), ErrorType: s.Kind,
		Retryable: s.Retryable, Exception: &s.Class}
	if s.Errno != 0 {
		f.Errno = new(int(s.Errno))
		if name := unix.ErrnoName(s.Errno); name != "" {
			f.ErrnoName = &name
		}
	}
	return &op.Error{Code: s.Kind.code(), Msg: err.Error(), Hint: s.Hint, Data: f, Err: errors.Unwrap(err)}
}

func (k Kind) code() op.Code {
	switch k {
	case NotFound:
		return op.NotFound
	case Denied, ReadOnly:
		return op.Denied
	case Exists:
		return op.Conflict
	case NoSpace:
		return op.Exhausted
	case Target, Path, Decode:
		return op.Invalid
	}
	return op.Unavailable
}

// kinds of the errnos that have one of their own; all others are io_error.
var kinds = map[syscall.Errno]Kind{
	syscall.ENOENT: NotFound, syscall.ESRCH: NotFound,
	syscall.EACCES: Denied, syscall.EPERM: Denied,
	syscall.EISDIR: Target, syscall.ENOTDIR: Target, syscall.ENOTEMPTY: Target, syscall.ENXIO: Target,
	syscall.ENODEV: Target, syscall.ESPIPE: Target, syscall.EXDEV: Target, syscall.ENOTSUP: Target,
	syscall.EEXIST:       Exists,
	syscall.ENAMETOOLONG: Path, syscall.ELOOP: Path, syscall.EINVAL: Path, syscall.EILSEQ: Path,
	syscall.EROFS:  ReadOnly,
	syscall.ENOSPC: NoSpace, syscall.EDQUOT: NoSpace,
}

// classes are Python's exceptions by errno; all others are OSError.
var classes = map[syscall.Errno]string{
	syscall.ENOENT: "FileNotFoundError", syscall.EACCES: "PermissionError", syscall.EPERM: "PermissionError",
	syscall.EISDIR: "IsADirectoryError", syscall.ENOTDIR: "NotADirectoryError", syscall.EEXIST: "FileExistsError",
	syscall.EAGAIN: "BlockingIOError", syscall.EINTR: "InterruptedError", syscall.ETIMEDOUT: "TimeoutError",
	syscall.EPIPE: "BrokenPipeError", syscall.ESRCH: "ProcessLookupError", syscall.ECONNRESET: "ConnectionResetError",
	syscall.ECONNREFUSED: "ConnectionRefusedError", syscall.ECONNABORTED: "ConnectionAbortedError", syscall.ECHILD: "ChildProcessError",
}

var retryable = map[syscall.Errno]bool{
	syscall.EAGAIN: true, syscall.EINTR: true, syscall.EBUSY: true, syscall.ETIMEDOUT: true, syscall.EMFILE: true,
	syscall.ENFILE: true, syscall.ESTALE: true, syscall.ETXTBSY: true, syscall.ENOMEM: true,
}

// usual are the exceptions of failures without an errno.
var usual = map[Kind]string{
	NotFound: "FileNotFoundError", Denied: "PermissionError", Target: "ValueError", Exists: "FileExistsError",
	Path: "ValueError", Decode: "UnicodeDecodeError",
}

func class(s Spec) string {
	if c, ok := classes[s.Errno]; ok {
		return c
	}
	if c, ok := usual[s.Kind]; ok && s.Errno == 0 {
		return c
	}
	return "OSError"
}

func classify(err error) Spec {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		kind, known := kinds[errno]
		if !known {
			kind = IO
		}
		return Spec{Kind: kind, Errno: errno, Retryable: retryable[errno]}
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Spec{Kind: IO, Class: "TimeoutError", Retryable: true}
	case errors.Is(err, fs.ErrNotExist):
		return Spec{Kind: NotFound, Errno: syscall.ENOENT}
	case errors.Is(err, fs.ErrExist):
		return Spec{Kind: Exists, Errno: syscall.EEXIST}
	case errors.Is(err, fs.ErrPermission):
		return Spec{Kind: Denied, Errno: syscall.EACCES}
	case errors.Is(err, fs.ErrInvalid):
		return Spec{Kind: Path, Errno: syscall.EINVAL}
	}
	return Spec{Kind: IO}
}

// reason is the innermost text that says why: the outer ones repeat the path.
func reason(err error) string {
	for {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
			continue
		}
		if e, ok := errors.AsType[*os.LinkError](err); ok {
			err = e.Err
			continue
		}
		if e, ok := errors.AsType[*os.SyscallError](err); ok {
			err = e.Err
			continue
		}
		return strings.TrimSuffix(err.Error(), ": "+syscall.EINVAL.Error())
	}
}

func advice(s Spec) string {
	switch s.Kind {
	case NotFound:
		return "; check the path, a listing of its folder shows what is there"
	case Denied:
		return "; the sandbox user may not do this, try sudo or another place"
	case ReadOnly:
		return "; choose a folder that can be written, such as the workspace"
	case NoSpace:
		return "; delete something and try again, the old content is as it was"
	}
	if s.Retryable {
		return "; try again"
	}
	return ""
}
