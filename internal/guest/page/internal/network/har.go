package network

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// ExportHARIn are options of a HAR file.
type ExportHARIn struct {
	SavePath string `json:"save_path" doc:"Path of the file"`
	Bodies   bool   `json:"bodies" doc:"Include response bodies that the browser still has" default:"true"`
	driver.Where
}

// HAR describes a HAR file.
type HAR struct {
	Path    string `json:"path"`
	Entries int    `json:"entries"`
	Content any    `json:"content" doc:"Content of the file; null if it is larger than 1 MiB"`
}

// maxHARContent is the maximum size of the content in the reply.
const maxHARContent = 1 << 20

// ExportHAR writes the requests to a HAR file.
func (s *Service) ExportHAR(ctx context.Context, in ExportHARIn) (*HAR, error) {
	path, err := s.d.OutputPath(in.SavePath)
	if err != nil {
		return nil, err
	}
	out := &HAR{Path: path}
	options := driver.Options{Limit: driver.NavigationTime, AllowFailed: true}
	err = s.d.VisitWith(ctx, in.Where, options, func(ctx context.Context, t *tab.Tab) error {
		file := newArchive(ctx, t, in.Bodies)
		out.Entries = len(file.Log.Entries)
		b, err := op.JSON(file)
		if err != nil {
			return err
		}
		if len(b) <= maxHARContent {
			out.Content = file
		}
		return driver.WriteFile(path, 0o600, b)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
