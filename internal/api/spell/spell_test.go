package spell

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"command", "exec_dir", "timeout"}
	for wrong, want := range map[string]string{
		"comand": "command", "Exec-Dir": "exec_dir", "time_out": "timeout", "banana": "", "": "",
		string(make([]byte, 100)): "",
	} {
		if got := Nearest(wrong, known); got != want {
			t.Errorf("Nearest(%q): got %q, want %q", wrong, got, want)
		}
	}
}

func TestRelated(t *testing.T) {
	known := []string{"bash_exec", "bash_output", "sandbox_execute_bash", "file_read"}
	for wrong, want := range map[string]string{
		"bash": "bash_exec bash_output sandbox_execute_bash", "execute_bash": "sandbox_execute_bash bash_exec bash_output", "read": "file_read",
		"Read-File": "file_read", "zzz": "", "": "", strings.Repeat("bash_", 20): "",
	} {
		if got := strings.Join(Related(wrong, known), " "); got != want {
			t.Errorf("Related(%q): got %q, want %q", wrong, got, want)
		}
	}
}
