package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestEveryPage tests all our pages in light and dark mode, on a phone, at 200 % and by keyboard alone. SHOTS=folder saves
// screenshots there.
func TestEveryPage(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	dir := t.TempDir()
	address := serve(t, "AIO_VENV="+testenv.NeedFile(t, "../../.venv"), "WORKSPACE="+dir)
	runStory(t, "every.mjs", append(guarded(t, "--keep-activity", "1h"), "URL="+address, "DIR="+dir)...)
}
