package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// installedLater are programs that make run installs while the server runs.
var installedLater = []string{"chromium", "Xtigervnc", "openbox", "node"}

// A running server finds programs that are installed after its start. Until then, errors show the progress.
func TestProgramsAreInstalledWhileItServes(t *testing.T) {
	t.Parallel()
	testenv.Need(t, installedLater...)
	bin, progress := t.TempDir(), filepath.Join(t.TempDir(), "progress")
	linkPrograms(t, bin)
	writeFile(t, progress, "Debian packages (45 %)\n")
	s := serve(t, "PATH="+bin, "AIO_INSTALLING="+progress)
	calls := map[string]func() (int, string){
		"display": func() (int, string) { return s.get(t, "/v1/browser/screenshot") },
		"browser": func() (int, string) { return s.get(t, "/v1/browser/info") },
		"node":    func() (int, string) { return s.post(t, "/v1/nodejs/execute", `{"code": "console.log(6 * 7)"}`) },
	}
	for name, call := range calls {
		if _, out := call(); !strings.Contains(out, "still being installed (Debian packages (45 %))") {
			t.Errorf("%s: got %s, want the progress of the installation", name, out)
		}
	}
	if _, out := s.get(t, "/readyz"); strings.Count(out, "being installed: Debian packages (45 %)") != 2 {
		t.Errorf("got %s, want the progress for display and browser", out)
	}
	for _, name := range installedLater {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(progress); err != nil {
		t.Fatal(err)
	}
	for name, call := range calls {
		status, out := call()
		if status != http.StatusOK || name == "node" && !strings.Contains(out, "42") || strings.Contains(out, "installed") {
			t.Errorf("%s, after the installation: got %d %.300s, want success", name, status, out)
		}
	}
}

// linkPrograms creates links to all programs of the PATH except those that are installed later.
func linkPrograms(t *testing.T, to string) {
	t.Helper()
	later := map[string]bool{"chromium-browser": true, "google-chrome": true, "google-chrome-stable": true, "nodejs": true}
	for _, name := range installedLater {
		later[name] = true
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(dir) // it may not exist
		for _, e := range entries {
			link := filepath.Join(to, e.Name())
			if _, err := os.Lstat(link); err == nil || later[e.Name()] {
				continue
			}
			if err := os.Symlink(filepath.Join(dir, e.Name()), link); err != nil {
				t.Fatal(err)
			}
		}
	}
}
