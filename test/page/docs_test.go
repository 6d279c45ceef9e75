package page

import (
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestDocs checks that examples and code of the documentation work: standalone, below a prefix and in a hub.
func TestDocs(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox", "curl")
	venv := testenv.NeedFile(t, "../../.venv")
	address := serve(t, "AIO_VENV="+venv)
	runStory(t, "docs.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address),
		"PYTHON="+filepath.Join(venv, "bin", "python"))...)
}
