package runner

import (
	"cmp"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// hostname returns the host name inside: the name of the sandbox.
func (s *state) hostname() string { return cmp.Or(s.Sandbox.Spec.Name, s.Sandbox.ID) }

// rename changes the host name of a running sandbox that was renamed, for example when it leaves the warm pool. Without
// root its namespaces cannot be entered: the change takes effect at its next start.
func (b *box) rename(before string) error {
	if b.run == nil || rootless() || b.rec.Sandbox.Spec.Name == before || b.rec.Sandbox.State != sandbox.Running {
		return nil
	}
	return b.run.SetHostname(before, b.rec.hostname())
}
