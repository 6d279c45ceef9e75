package environment

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

func FuzzAmounts(f *testing.F) {
	f.Add("500m", "1000Gi")
	f.Add("1e3", "0x10")
	f.Fuzz(func(t *testing.T, cpu, memory string) {
		var r sandbox.Resources
		err := Amounts{CPU: Quantity(cpu), CPULimit: Quantity(cpu), Memory: Quantity(memory),
			MemoryLimit: Quantity(memory), Disk: Quantity(memory)}.Apply(&r)
		if err == nil && (r.CPU < 0 || r.Memory < 0 || r.Disk < 0 || r.Memory > r.MemoryLimit || r.CPU > r.CPULimit) {
			t.Errorf("%q, %q: got %+v, want amounts from 0 to their limits", cpu, memory, r)
		}
	})
}
