package lifecycle

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func renameOp(s *Service) op.Op {
	return op.New(op.Spec{Name: "sandbox_rename", Route: "POST " + one + "/rename", Tag: "sandbox", Verb: "rename", NoTool: true,
		Doc: "Rename a sandbox. Its ID, its programs and open connections stay; URLs with the old name end."}, s.Rename)
}

// RenameIn is a new name.
type RenameIn struct {
	Name    string `path:"name" doc:"Name of the sandbox"`
	NewName string `json:"new_name" minLength:"1" doc:"New name, unique for its owner"`
}

// Rename changes the name of a sandbox.
func (s *Service) Rename(ctx context.Context, in RenameIn) (Object, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	if err := sandbox.CheckNewName(in.NewName); err != nil {
		return Object{}, fault.FromProvider(in.NewName, err)
	}
	sb, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		spec.Name = in.NewName
		return nil
	})
	if err != nil {
		return Object{}, fault.FromProvider(in.NewName, err)
	}
	s.Fleet.Observe(sb)
	return s.Show(ctx, sb), nil
}
