package pyerr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

func TestFrom(t *testing.T) {
	t.Parallel()
	wrap := func(e error) error { return fmt.Errorf("outer: %w", &os.PathError{Op: "open", Path: "/x", Err: e}) }
	for _, c := range []struct {
		err       error
		kind      Kind
		code      op.Code
		errno     int
		name      string
		class     string
		retryable bool
	}{
		{wrap(syscall.ENOENT), NotFound, op.NotFound, 2, "ENOENT", "FileNotFoundError", false},
		{wrap(syscall.EACCES), Denied, op.Denied, 13, "EACCES", "PermissionError", false},
		{wrap(syscall.EPERM), Denied, op.Denied, 1, "EPERM", "PermissionError", false},
		{wrap(syscall.EISDIR), Target, op.Invalid, 21, "EISDIR", "IsADirectoryError", false},
		{wrap(syscall.ENOTDIR), Target, op.Invalid, 20, "ENOTDIR", "NotADirectoryError", false},
		{wrap(syscall.EEXIST), Exists, op.Conflict, 17, "EEXIST", "FileExistsError", false},
		{wrap(syscall.ENAMETOOLONG), Path, op.Invalid, 36, "ENAMETOOLONG", "OSError", false},
		{wrap(syscall.ELOOP), Path, op.Invalid, 40, "ELOOP", "OSError", false},
		{wrap(syscall.EROFS), ReadOnly, op.Denied, 30, "EROFS", "OSError", false},
		{wrap(syscall.ENOSPC), NoSpace, op.Exhausted, 28, "ENOSPC", "OSError", false},
		{wrap(syscall.EIO), IO, op.Unavailable, 5, "EIO", "OSError", false},
		{wrap(syscall.EBUSY), IO, op.Unavailable, 16, "EBUSY", "OSError", true},
		{wrap(syscall.EAGAIN), IO, op.Unavailable, 11, "EAGAIN", "BlockingIOError", true},
		{context.DeadlineExceeded, IO, op.Unavailable, 0, "", "TimeoutError", true},
		{io.ErrUnexpectedEOF, IO, op.Unavailable, 0, "", "OSError", false},
		{os.ErrNotExist, NotFound, op.NotFound, 2, "ENOENT", "FileNotFoundError", false},
	} {
		err := From("read", "/x\xff", c.err)
		e, ok := op.AsError(err)
		if !ok || e.Code != c.code || !errors.Is(err, c.err) {
			t.Errorf("%v: got %#v, want code %q and %v", c.err, err, c.code, c.err)
			continue
		}
		f := e.Data.(Failure)
		errno, name := 0, ""
		if f.Errno != nil {
			errno, name = *f.Errno, *f.ErrnoName
		}
		if f.ErrorType != c.kind || errno != c.errno || name != c.name || *f.Exception != c.class || f.Retryable != c.retryable {
			t.Errorf("%v: got %+v errno %d %s class %s, want error type %q, errno %d, name %q, exception %q and retryable %v",
				c.err, f, errno, name, *f.Exception, c.kind, c.errno, c.name, c.class, c.retryable)
		}
		if f.Path != "/x\uFFFD" || f.Operation != "read" || f.Message != e.Msg || strings.Count(e.Msg, "/x") != 1 {
			t.Errorf(`%v: got %+v, want path "/x�", operation "read", message %q with "/x" once`, c.err, f, e.Msg)
		}
		if again := From("write", "/other", err); again != err {
			t.Errorf("described twice: got %v, want %v", again, err)
		}
	}
	other := op.Errorf(op.Unavailable, "pdftotext is missing")
	e, _ := op.AsError(From("view", "/x", other))
	if f, ok := e.Data.(Failure); !ok || f.ErrorType != IO || f.Message != "pdftotext is missing" || e.Code != op.Unavailable {
		t.Errorf(`an error of another package: got %+v, want error type %q, message "pdftotext is missing" and code unavailable`,
			e, IO)
	}
	if err := From("read", "/x", nil); err != nil {
		t.Errorf("nil became %v, want no error", err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	err := New("read", "/x", Spec{Kind: Decode, Hint: "download it"}, "/x is not UTF-8 at byte %d", 3)
	e, _ := op.AsError(err)
	f := e.Data.(Failure)
	if e.Msg != "/x is not UTF-8 at byte 3" || e.Hint != "download it" || *f.Exception != "UnicodeDecodeError" || f.Errno != nil {
		t.Errorf(`got %+v %+v, want message "/x is not UTF-8 at byte 3", hint "download it", exception "UnicodeDecodeError" and no errno`, e, f)
	}
}
