package page

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/har"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// ExportHARIn names a file.
type ExportHARIn struct {
	SavePath string `json:"save_path" doc:"Path of the file"`
	Bodies   bool   `json:"bodies" doc:"Include the bodies of responses that the browser still has" default:"true"`
	Where
}

// HAR describes a HAR file.
type HAR struct {
	Path    string `json:"path"`
	Entries int    `json:"entries"`
	Content any    `json:"content" doc:"The file's content; null if it is larger than 1 MiB"`
}

// maxHARContent bounds the content in the reply.
const maxHARContent = 1 << 20

// ExportHAR writes the requests to a HAR file.
func (s *Service) ExportHAR(ctx context.Context, in ExportHARIn) (*HAR, error) {
	path, err := s.outputPath(in.SavePath)
	if err != nil {
		return nil, err
	}
	out := &HAR{Path: path}
	err = s.visitFor(ctx, in.Where, navigationTime, true, func(ctx context.Context, t *tab.Tab) error {
		file := har.New(ctx, t, in.Bodies)
		out.Entries = len(file.Log.Entries)
		b, err := op.JSON(file)
		if err != nil {
			return err
		}
		if len(b) <= maxHARContent {
			out.Content = file
		}
		return writeFile(path, 0o600, b)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
