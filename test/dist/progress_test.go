package dist

import (
	"os"
	"os/exec"
	"testing"
)

// TestProgress: the display of running tasks continues while tasks end, shows their text, never changes the exit
// code of the script that uses it, and leaves no files.
func TestProgress(t *testing.T) {
	t.Parallel()
	const setup = `
		exec 2>"$LOG"
		. ../../scripts/progress
		shown() { until grep -q "$1" "$LOG"; do kill -0 $progress; done; }
	`
	for name, script := range map[string]string{
		"tasks end while they are shown": `for _ in {1..200}; do doing a/b; printf ' (7 %%)' >"$tasks/a-b"; done_with a/b; done
			doing last; shown ' s: last$'`,
		"a task writes text": `doing a/b; printf ' (7 %%)' >"$tasks/a-b"; doing last; shown ' s: a-b (7 %), last$'`,
		"the display ended":  `doing last; shown last; kill $progress; wait $progress || true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temp, log := t.TempDir(), t.TempDir()+"/log"
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", setup+script)
			cmd.Env = append(os.Environ(), "PROGRESS_INTERVAL=0.001", "TMPDIR="+temp, "LOG="+log)
			if out, err := cmd.Output(); err != nil || len(out) > 0 {
				t.Errorf("got %v and output %q, want success and no output", err, out)
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}
