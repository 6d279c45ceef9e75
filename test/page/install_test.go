package page

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestInstallPython: the notebook shows that Python is being installed, and why the installation fails.
func TestInstallPython(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "python3")
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/release" {
			release()
			return
		}
		select { // pip waits
		case <-released:
		case <-r.Context().Done():
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(index.Close)
	t.Cleanup(release)
	address := serve(t, "AIO_VENV="+filepath.Join(t.TempDir(), "venv"), "PIP_INDEX_URL="+index.URL+"/simple/")
	runStory(t, "install.mjs", "URL="+address, "RELEASE="+index.URL+"/release")
}
