package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestNotebook checks that the notebook and the API share kernels.
func TestNotebook(t *testing.T) {
	t.Parallel()
	address := serve(t, "AIO_VENV="+testenv.NeedFile(t, "../../.venv"))
	runStory(t, "notebook.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address), "DIR="+t.TempDir())...)
}
