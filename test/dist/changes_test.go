package dist

import (
	"os/exec"
	"strings"
	"testing"
)

// TestChangesOfAVersion: a release contains the changes of its version, and fails without any.
func TestChangesOfAVersion(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("../../scripts/changes", "Unreleased").Output()
	if err != nil || !strings.Contains(string(out), "### ") || strings.Contains(string(out), "\n## ") {
		t.Errorf("got %q and error %v, want the section and no other", out, err)
	}
	refused, err := exec.Command("../../scripts/changes", "0.0.99").CombinedOutput()
	if err == nil || !strings.Contains(string(refused), `no section "## 0.0.99"`) {
		t.Errorf("got %q and error %v, want an error that names the missing section", refused, err)
	}
}
