// Package pyerr describes errors of file operations in the terms that clients check: one of nine
// kinds, the errno with its name, and the exception that Python would raise. It owns that
// vocabulary.
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

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
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

// Failure is the data in the response of a failed file operation.
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

// Spec describes an error that no system call reported.
type Spec struct {
	Kind      Kind
	Class     string        // Python's exception; empty: the default of the kind
	Errno     syscall.Errno // 0: none
	Hint      string
	Retryable bool
}

// New returns an error. The message says what to do next.
func New(operation, path string, s Spec, format string, args ...any) error {
	return build(operation, path, s, fmt.Errorf(format, args...))
}

// From describes any error of a file operation. It does not change an error that is already
// described.
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

// Say returns a described error with another message.
func Say(err error, format string, args ...any) error {
	e, ok := op.AsError(err)
	if !ok {
		return err
	}
	same := *e
	same.Msg = fmt.Sprintf(format, args...)
	if f, ok := e.Data.(Failure); ok {
		f.Message = same.Msg
		same.Data = f
	}
	return &same
}

// AsPython returns an error with the message that Python programs print for its errno, such
// as "what: [Errno 2] No such file or directory: '/path'". The advice becomes the hint.
func AsPython(what string, err error) error {
	e, ok := op.AsError(err)
	if !ok {
		return err
	}
	f, ok := e.Data.(Failure)
	if !ok || f.Errno == nil {
		return Say(err, "%s: %s", what, e.Msg)
	}
	text := syscall.Errno(*f.Errno).Error()
	tail, plain := strings.CutPrefix(e.Msg, f.Operation+" "+f.Path+": "+text)
	if !plain { // it has more information than the errno
		return Say(err, "%s: [Errno %d] %s", what, *f.Errno, e.Msg)
	}
	described, _ := op.AsError(Say(err, "%s: [Errno %d] %s: '%s'", what, *f.Errno, strings.ToUpper(text[:1])+text[1:], f.Path))
	if described.Hint == "" {
		described.Hint = strings.TrimPrefix(tail, "; ")
	}
	return described
}

// complete adds the fields that clients check to an error of another package.
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
	same.Data = Failure{Path: pathname.Show(path), Operation: operation, Message: e.Msg, ErrorType: kind,
		Exception: new(class(Spec{Kind: kind}))}
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

// kinds maps errnos to kinds; all others are io_error.
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

// classes maps errnos to Python's exceptions; all others are OSError.
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

// defaultClasses are the exceptions of errors without an errno.
var defaultClasses = map[Kind]string{
	NotFound: "FileNotFoundError", Denied: "PermissionError", Target: "ValueError", Exists: "FileExistsError",
	Path: "ValueError", Decode: "UnicodeDecodeError",
}

func class(s Spec) string {
	if c, ok := classes[s.Errno]; ok {
		return c
	}
	if c, ok := defaultClasses[s.Kind]; ok && s.Errno == 0 {
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

// reason returns the innermost message, since the outer ones repeat the path.
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
		return "; check the path, or list its folder"
	case Denied:
		return "; the sandbox user is not allowed to do this, try sudo or another path"
	case ReadOnly:
		return "; choose a writable folder, such as the workspace"
	case NoSpace:
		return "; free some space and retry, the old content is unchanged"
	}
	if s.Retryable {
		return "; retry"
	}
	return ""
}
