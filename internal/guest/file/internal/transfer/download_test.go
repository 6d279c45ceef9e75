package transfer

import (
	"os"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// A file that changes before it is copied is reported with a conflict.
func TestStageReportsChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := New(access.New(access.Config{}), Config{State: dir + "/state"})
	path := dir + "/f"
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	f, err := access.OpenRegular(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if changed(f, info) {
		t.Error("unchanged file: got changed, want unchanged")
	}
	write("after, and longer")
	_, err = s.stage(path, f, info)
	e, ok := op.AsError(err)
	if !ok || e.Code != op.Conflict {
		t.Fatalf("got %v, want an error with code conflict", err)
	}
	if failure, ok := e.Data.(pyerr.Failure); !ok || !failure.Retryable {
		t.Errorf("got %+v, want a retryable failure", e.Data)
	}
}
