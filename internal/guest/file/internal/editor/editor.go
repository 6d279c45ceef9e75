// Package editor implements the operation str_replace_editor: it views and edits files by
// command, and can undo each edit.
package editor

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// Viewer shows documents that are not plain text.
type Viewer interface {
	View(ctx context.Context, path string, q document.Query) (document.View, error)
}

// Config of the editor.
type Config struct {
	Viewer     Viewer // nil: documents cannot be viewed
	History    string // folder for undo history; empty: edits cannot be undone
	MaxHistory int64  // bytes of undo history
}

// Service implements the editor.
type Service struct {
	files   *access.Files
	viewer  Viewer
	history *history // nil: edits cannot be undone
}

// New returns the service. It has no side effects.
func New(files *access.Files, c Config) *Service {
	s := &Service{files: files, viewer: c.Viewer}
	if c.History != "" {
		s.history = &history{dir: c.History, maxBytes: c.MaxHistory}
	}
	return s
}

// maxBody limits the body of a request that carries text.
const maxBody = 96 << 20

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_str_replace_editor", Route: "POST /v1/file/str_replace_editor", Tag: "file",
			Failure: pyerr.Failure{}, SDK: "file.str_replace_editor", Verb: "file edit", Destructive: true, MaxBody: maxBody,
			Doc: "View and edit a file by command: view, create, str_replace, insert, undo_edit. Lines are " +
				"numbered from 1. Edits can be undone one by one, even after a restart. PDF, Office files and " +
				"notebooks have separate ranges."}, s.Edit),
	}
}
