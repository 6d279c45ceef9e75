package sandbox

import "testing"

// TestEnforced: only limits that the provider enforces remain. Requests and other resources are unchanged.
func TestEnforced(t *testing.T) {
	t.Parallel()
	all := Resources{CPU: 1, Memory: 2, CPULimit: 3, MemoryLimit: 4, Disk: 5, Pids: 6}
	for kind, want := range map[string]Resources{
		"":       {CPU: 1, Memory: 2, Pids: 6},
		"cpu":    {CPU: 1, Memory: 2, CPULimit: 3, Pids: 6},
		"memory": {CPU: 1, Memory: 2, MemoryLimit: 4, Pids: 6},
		"disk":   {CPU: 1, Memory: 2, Disk: 5, Pids: 6},
	} {
		if got := (Abilities{Limits: []string{kind}}).Enforced(all); got != want {
			t.Errorf("%q: got %+v, want %+v", kind, got, want)
		}
	}
}
