package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestErrorsHideHostPaths: an error names the file, but not its folder on the host. Names of entries
// in an archive are shown.
func TestErrorsHideHostPaths(t *testing.T) {
	t.Parallel()
	host := &fs.PathError{Op: "open", Path: "/var/lib/cove/images/tmp/layer-1/root", Err: fs.ErrPermission}
	for _, err := range []error{
		host, fmt.Errorf("unpack: %w", host), errors.Join(errors.New("x"), fmt.Errorf("a: %w: %w", errors.New("y"), host)),
		&os.LinkError{Op: "rename", Old: "/var/lib/cove/a", New: "/var/lib/cove/a/b", Err: fs.ErrExist},
	} {
		for _, kind := range []error{sandbox.ErrInvalid, sandbox.ErrState, sandbox.ErrUnavailable, sandbox.ErrExhausted} {
			e, ok := op.AsError(FromProvider("a", fmt.Errorf("%w: %w", kind, err)))
			if !ok || strings.Contains(e.Msg, "/var") || !errors.Is(e, err) {
				t.Errorf("%v: got %+v, want the error without its folder", err, e)
			}
		}
	}
	e, _ := op.AsError(Show(op.Invalid, "cannot import: ", &fs.PathError{Op: "open", Path: "blobs/sha256/0", Err: fs.ErrNotExist}))
	if want := "cannot import: open blobs/sha256/0: file does not exist"; e.Msg != want {
		t.Errorf("an entry of an archive: got %q, want %q", e.Msg, want)
	}
}

// TestUpstream: a registry that fails is neither an error of the caller nor one of the hub.
func TestUpstream(t *testing.T) {
	t.Parallel()
	err := FromProvider("a", fmt.Errorf("%w: lookup index.docker.io: no such host", sandbox.ErrUpstream))
	if e, ok := op.AsError(err); !ok || e.Code.HTTPStatus() != 502 || !strings.Contains(e.Msg, "no such host") {
		t.Errorf("got %+v, want status 502 with the reason", err)
	}
}
