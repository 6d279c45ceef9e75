package content

import (
	"context"

	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// ConsoleIn are options of the console.
type ConsoleIn struct {
	Clear bool `query:"clear" doc:"Clear the console after reading it" default:"false"`
	driver.Here
}

// Console returns the console.
func (s *Service) Console(ctx context.Context, in ConsoleIn) ([]tab.Entry, error) {
	out := []tab.Entry{}
	err := s.d.VisitWith(ctx, in.Where(), driver.Options{AllowFailed: true}, func(_ context.Context, t *tab.Tab) error {
		out = t.Console(in.Clear)
		return nil
	})
	return out, err
}

// ExportIn is the file of an export.
type ExportIn struct {
	SavePath string `json:"save_path" doc:"Path of the file"`
	Clear    bool   `json:"clear" doc:"Clear the console after reading it" default:"false"`
	driver.Where
}

// Exported describes a file of entries.
type Exported struct {
	Path  string `json:"path"`
	Count int    `json:"count"`
}

// ExportConsole writes the console to a file.
func (s *Service) ExportConsole(ctx context.Context, in ExportIn) (*Exported, error) {
	path, err := s.d.OutputPath(in.SavePath)
	if err != nil {
		return nil, err
	}
	out := &Exported{Path: path}
	err = s.d.VisitWith(ctx, in.Where, driver.Options{AllowFailed: true}, func(_ context.Context, t *tab.Tab) error {
		list := t.Console(false)
		if list == nil {
			list = []tab.Entry{}
		}
		out.Count = len(list)
		if err := driver.WriteJSON(path, 0o644, list); err != nil {
			return err
		}
		if in.Clear {
			t.Console(true)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
