package lifecycle

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
)

// GlanceIn selects a sandbox and the size of its picture.
type GlanceIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	Width int    `query:"width" default:"320" minimum:"80" maximum:"800" doc:"Width of the picture in pixels"`
}

// GlanceOut is a preview of a sandbox.
type GlanceOut struct {
	Kind    string `json:"kind" enum:"screen,terminal,step,none" doc:"What changed last; none also if the sandbox is not running"`
	Status  string `json:"status" doc:"State of the sandbox"`
	Picture []byte `json:"picture" nullable:"true" doc:"JPEG, in base64"`
	Text    string `json:"text" doc:"Last lines of its terminal"`

	Step fleet.Step `json:"step" doc:"Latest operation"`
}

// glanceOp returns the preview for overviews of many sandboxes.
func glanceOp(s *Service) op.Op {
	return op.New(op.Spec{Name: "sandbox_glance", Route: "GET /api/v1/sandbox/{name}/glance", Tag: "sandbox",
		Verb: "glance", ReadOnly: true, NoTool: true,
		Doc: "Show a preview of a sandbox, whichever changed last: a small picture of its display, the end of its latest " +
			"terminal, or its latest operation. " +
			"Does not wake the sandbox or keep it awake."}, s.Glance)
}

// Glance returns a preview of a sandbox.
func (s *Service) Glance(ctx context.Context, in GlanceIn) (GlanceOut, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return GlanceOut{}, err
	}
	op.CallOf(ctx).Recorded = true // overviews poll, which would fill the audit log
	g := s.Fleet.Glance(ctx, sb, in.Width)
	out := GlanceOut{Kind: g.Kind, Status: s.Show(ctx, sb).Status, Picture: g.Picture, Text: g.Text, Step: g.Step}
	if out.Kind == "" {
		out.Kind = "none"
	}
	return out, nil
}
