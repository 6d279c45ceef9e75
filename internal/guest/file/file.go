// Package file composes the file operations: text, the editor, trees and transfers.
//
// It guarantees that paths are resolved the same way everywhere, writes are atomic, writers
// of one file are serialized, edits can be undone, and every error has its kind, its errno
// and Python's name for it. Only regular files are read, and all reads are limited.
package file

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/editor"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/transfer"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/tree"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service. A limit of 0 means the default.
type Config struct {
	Home      string
	Workspace string
	State     string // folder for undo history and spooled uploads
	Runner    *proc.Runner
	Log       *slog.Logger
	Viewer    editor.Viewer // nil: documents cannot be viewed

	MaxRead    int64         // bytes that one read, edit or view may hold in memory
	MaxHistory int64         // bytes of undo history
	SearchTime time.Duration // limit of one search, grep, glob or list
	Unpack     archive.Limits
}

// Service implements the file operations.
type Service struct {
	text     *text.Service
	editor   *editor.Service
	tree     *tree.Service
	transfer *transfer.Service
}

// New returns the service. It has no side effects.
func New(c Config) *Service { return newService(c, os.Geteuid() == 0) }

// newService returns the service. It uses sudo unless root is set.
func newService(c Config, root bool) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxRead = cmp.Or(c.MaxRead, 32<<20)
	c.MaxHistory = cmp.Or(c.MaxHistory, 256<<20)
	c.SearchTime = cmp.Or(c.SearchTime, 30*time.Second)
	c.Unpack.Entries = cmp.Or(c.Unpack.Entries, 500_000)
	c.Unpack.Bytes = cmp.Or(c.Unpack.Bytes, 16<<30)
	c.Unpack.Packed = cmp.Or(c.Unpack.Packed, 4<<30)
	history := ""
	if c.State != "" {
		history = filepath.Join(c.State, "undo")
	}
	files := access.New(access.Config{Home: c.Home, Workspace: c.Workspace, Runner: c.Runner, Root: root, MaxRead: c.MaxRead})
	return &Service{
		text:     text.New(files, c.SearchTime),
		editor:   editor.New(files, editor.Config{Viewer: c.Viewer, History: history, MaxHistory: c.MaxHistory}),
		tree:     tree.New(files, c.Runner, c.SearchTime),
		transfer: transfer.New(files, transfer.Config{State: c.State, Runner: c.Runner, Log: c.Log, Unpack: c.Unpack}),
	}
}

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return slices.Concat(s.text.Ops(), s.editor.Ops(), s.tree.Ops(), s.transfer.Ops())
}

// Close ends all streams. It is idempotent.
func (s *Service) Close() error { return s.transfer.Close() }
