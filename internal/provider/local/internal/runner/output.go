package runner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate/outputlog"
)

// Files that init writes.
const (
	logName0 = "log.0"
	logName1 = "log.1"
	exitName = "exit"
)

// Logs implements sandbox.Logger.
func (r *Runner) Logs(_ context.Context, id string, limit int64) ([]byte, error) {
	if _, err := r.table.Get(id); err != nil {
		return nil, err
	}
	return (&box{dir: r.Dir(id)}).readLog(limit)
}

func (b *box) readLog(limit int64) ([]byte, error) {
	return outputlog.Read([2]string{b.path(logName0), b.path(logName1)}, limit)
}

// maxQuote bounds the quoted output of a program.
const maxQuote = 2 << 10

// lastOutput returns the end of the program's output for an error message.
func (b *box) lastOutput() string {
	out, err := b.readLog(maxQuote)
	if err != nil || len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("; last output: %q", strings.TrimSpace(string(out)))
}

// Stats implements sandbox.Stater.
func (r *Runner) Stats(_ context.Context, id string) (sandbox.Stats, error) {
	if _, err := r.table.Get(id); err != nil {
		return sandbox.Stats{}, err
	}
	u := r.groups.Group(id).Usage()
	st := sandbox.Stats{CPU: u.CPU, Memory: u.Memory, Pids: u.Pids, OOMKills: u.OOMKills, Disk: -1, Time: time.Now()}
	b := &box{dir: r.Dir(id)}
	var err error
	if b.rec, err = load(b.dir); err == nil && len(b.rec.Layers) > 0 {
		if s, err := r.watcher.measure(b, 0); err == nil {
			st.Disk = s.Bytes
		}
	}
	return st, nil
}
