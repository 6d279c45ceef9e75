package pyenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// progressName is the file in the folder of an incomplete environment.
const progressName = ".progress"

// progressSize is the size of the file. It is written in place: a sandbox may see the folder through
// an overlay, which does not notice that a file was replaced.
const progressSize = 8 << 10

// maxStep bounds the text of a step and of a failure.
const maxStep, maxFailure = 100, 800

// Progress is the state of a build.
type Progress struct {
	Step    string `json:"step,omitempty"`    // what it does
	Failure string `json:"failure,omitempty"` // why it failed
	Done    bool   `json:"done,omitempty"`
}

// ReadProgress reads the state of the build of an environment. ok is false if there is none, or it is complete.
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
	b := make([]byte, progressSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) || json.Unmarshal(b[:n], &p) != nil {
		return Progress{}, false
	}
	return p, !p.Done
}

// writeProgress records the state. It is only for information, so errors are ignored.
func writeProgress(dir string, p Progress) {
	p.Step, p.Failure = shorten(p.Step, maxStep), shorten(p.Failure, maxFailure)
	text, err := json.Marshal(p)
	if err != nil {
		return
	}
	b := bytes.Repeat([]byte(" "), progressSize)
	if copy(b, text) < len(text) {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, progressName), os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteAt(b, 0)
}

func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// clearProgress removes the state. Programs that cannot see the removal read that the build has ended.
func clearProgress(dir string) {
	writeProgress(dir, Progress{Done: true})
	_ = os.Remove(filepath.Join(dir, progressName))
}
