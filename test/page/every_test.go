package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestEveryPage: all our pages, from one list, in light and dark, on a telephone, at 200 % and by keyboard alone. With SHOTS=folder it
// leaves pictures of them there.
func TestEveryPage(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	dir := t.TempDir()
	address := serve(t, "AIO_VENV="+testenv.NeedFile(t, "../../.venv"), "WORKSPACE="+dir)
	runStory(t, "every.mjs", append(guarded(t, "--keep-activity", "1h"), "URL="+address, "DIR="+dir)...)
}
