package lifecycle

import (
	"cmp"
	"context"
	"errors"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ForkOp is the operation that copies a sandbox.
func (s *Service) ForkOp() op.Op {
	return op.New(op.Spec{Name: "sandbox_fork", Tool: "forkSandbox", Route: "POST " + one + "/fork", Tag: "snapshot", Verb: "fork",
		Doc: "Create copies of a sandbox from its current disk: all or none. Processes are not copied."}, s.Fork)
}

// ForkIn describes the copies.
type ForkIn struct {
	Name  string   `path:"name" doc:"Name of the sandbox"`
	Names []string `json:"names" nullable:"true" maxItems:"100" arg:"true" doc:"Names of the copies. Default: generated"`
	Count int      `json:"count" default:"0" minimum:"0" maximum:"100" doc:"Number of copies. Default: the number of names, or 1"`
}

// Fork creates copies.
func (s *Service) Fork(ctx context.Context, in ForkIn) ([]Object, error) {
	able := s.Provider.Abilities()
	p, ok := s.Provider.(sandbox.Forker)
	if !ok || !able.Fork {
		return nil, fault.CannotDo(able.Provider, "fork sandboxes")
	}
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	n := cmp.Or(in.Count, max(len(in.Names), 1))
	if len(in.Names) > n {
		return nil, op.Errorf(op.Invalid, "%d names given for %d copies", len(in.Names), n)
	}
	specs := make([]sandbox.Spec, n)
	for i := range specs {
		specs[i] = s.copySpec(sb.Spec)
		if i < len(in.Names) {
			if err := sandbox.CheckNewName(in.Names[i]); err != nil {
				return nil, fault.FromProvider(in.Name, err)
			}
			specs[i].Name = in.Names[i]
		}
	}
	room, err := s.Quota.Reserve(ctx, sb.Spec.Owner, specs...)
	if err != nil {
		return nil, err
	}
	defer room.Release()
	made, err := p.Fork(ctx, sb.ID, specs)
	if err != nil {
		return nil, fault.FromProvider(in.Name, err)
	}
	if err := s.provisionAll(ctx, made); err != nil {
		return nil, err
	}
	out := make([]Object, 0, n)
	for i, m := range made {
		room.Commit(ctx, i, m.ID)
		s.Fleet.Observe(m)
		out = append(out, s.Show(ctx, m))
	}
	return out, nil
}

// copySpec is the Spec of a copy. Its timeouts start again, and it does not inherit changes that the
// hub made to the original.
func (s *Service) copySpec(original sandbox.Spec) sandbox.Spec {
	spec := original.Clone()
	spec.Name = ""
	delete(spec.Annotations, naming.AnnotationLastActive)
	delete(spec.Annotations, naming.AnnotationNetworks) // a copy may run other programs than the original
	spec.Lifetime.Timeout = min(spec.Lifetime.Timeout, s.MaxTimeout)
	return spec
}

// provisionAll sends secrets to all copies. If one fails, all are deleted.
func (s *Service) provisionAll(ctx context.Context, made []sandbox.Sandbox) error {
	for _, m := range made {
		if err := s.Secrets.Provision(ctx, m); err != nil {
			for _, m := range made {
				err = errors.Join(err, s.Provider.Delete(context.WithoutCancel(ctx), m.ID))
			}
			return err
		}
	}
	return nil
}
