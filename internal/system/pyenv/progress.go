package pyenv

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// progressName is the file in the folder of an incomplete environment.
const progressName = ".progress"

// maxProgress bounds the file, which another program may have written.
const maxProgress = 16 << 10

// Progress is the state of a build.
type Progress struct {
	Step    string `json:"step,omitempty"`    // what it does
	Failure string `json:"failure,omitempty"` // why it failed; empty: it runs
}

// ReadProgress reads the state of the build of an environment. ok is false if there is none.
func ReadProgress(dir string) (p Progress, ok bool) {
	if dir == "" {
		return p, false
	}
	// Non-blocking, because it could be a pipe.
	f, err := os.OpenFile(filepath.Join(dir, progressName), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return p, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProgress))
	return p, err == nil && json.Unmarshal(b, &p) == nil
}

// writeProgress records the state. It is only for information, so errors are ignored.
func writeProgress(dir string, p Progress) {
	b, err := json.Marshal(p)
	if err != nil {
		return
	}
	_ = atomicfile.Replace(filepath.Join(dir, progressName), atomicfile.Options{Perm: 0o644}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

func clearProgress(dir string) { _ = os.Remove(filepath.Join(dir, progressName)) }
