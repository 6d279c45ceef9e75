package cove

import (
	"os"
	"strings"
	"testing"
)

// TestMissingIsOneLine: a hub without root starts with one line, not one per feature.
func TestMissingIsOneLine(t *testing.T) {
	t.Parallel()
	got := summarize([]string{
		"memory control: permission denied; run as root", "disk quotas: measured: no", "separate users (requires root): one",
	}, true)
	if want := "missing here: memory control, disk quotas, separate users; cove doctor describes them"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := summarize([]string{"a: b"}, false); strings.Contains(got, delegate) != (os.Geteuid() != 0) {
		t.Errorf("got %q, want the command only without root", got)
	}
	if got := summarize(nil, false); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}
