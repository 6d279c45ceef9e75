package runner

import (
	"cmp"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// hostname is the host name inside: the sandbox's name.
func (s *state) hostname() string { return cmp.Or(s.Sandbox.Spec.Name, s.Sandbox.ID) }

// rename gives a running sandbox that was created under another name, such as one of a warm
// pool, its host name. Without root nobody can enter its namespaces: it has the new name
// after its next start.
func (b *box) rename(before string) error {
	if b.run == nil || rootless() || b.rec.Sandbox.Spec.Name == before || b.rec.Sandbox.State != sandbox.Running {
		return nil
	}
	return b.run.SetHostname(before, b.rec.hostname())
}
