package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestReplay tests the replay of an activity record, with pictures and as a video.
func TestReplay(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	address := serve(t, "AIO_VENV="+testenv.NeedFile(t, "../../.venv"))
	runStory(t, "replay.mjs", "URL="+address, "DIR="+t.TempDir())
}
