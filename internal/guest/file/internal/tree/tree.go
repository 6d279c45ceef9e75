// Package tree implements the operations on folders and their entries: list, find, search,
// describe, create, move, copy and delete.
package tree

import (
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/grep"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Service implements the operations on trees.
type Service struct {
	files   *access.Files
	runner  *proc.Runner // nil: ripgrep cannot be started
	timeout time.Duration
}

// New returns the service. The timeout applies to each list and search. New has no side effects.
func New(files *access.Files, runner *proc.Runner, timeout time.Duration) *Service {
	return &Service{files, runner, timeout}
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_find", Route: "POST /v1/file/find", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.find_files", ReadOnly: true,
			Doc: "Find files below a folder by a simple glob. Use ** to match any depth."}, s.Find),
		op.New(op.Spec{Name: "file_grep", Route: "POST /v1/file/grep", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.grep_files", ReadOnly: true,
			Doc: "Search file contents with ripgrep. Skips binary and hidden files by default; .gitignore is respected only on request."}, s.Grep),
		op.New(op.Spec{Name: "file_glob", Route: "POST /v1/file/glob", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.glob_files", ReadOnly: true,
			Doc: "Find files by a glob with ** and braces, sorted, with size and modification time."}, s.Glob),
		op.New(op.Spec{Name: "file_list", Route: "POST /v1/file/list", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.list_path", ReadOnly: true,
			Doc: "List a folder, or a tree up to a depth, with sizes and counts."}, s.List),
		op.New(op.Spec{Name: "file_stat", Route: "POST /v1/file/stat", Tag: "file", Failure: pyerr.Failure{}, ReadOnly: true,
			Doc: "Show the type, size, mode, owner and times of a path, and the target of a link."}, s.Stat),
		op.New(op.Spec{Name: "file_mkdir", Route: "POST /v1/file/mkdir", Tag: "file", Failure: pyerr.Failure{},
			Doc: "Create a folder, including its parent folders."}, s.Mkdir),
		op.New(op.Spec{Name: "file_move", Route: "POST /v1/file/move", Tag: "file", Failure: pyerr.Failure{}, Destructive: true,
			Doc: "Move or rename a file or folder, also across file systems."}, s.Move),
		op.New(op.Spec{Name: "file_copy", Route: "POST /v1/file/copy", Tag: "file", Failure: pyerr.Failure{},
			Doc: "Copy a file or folder. Symbolic links are copied as links."}, s.Copy),
		op.New(op.Spec{Name: "file_chmod", Route: "POST /v1/file/chmod", Tag: "file", Failure: pyerr.Failure{},
			Doc: "Change the mode of a file or tree. Accepts octal modes and symbolic modes such as u+x,go-w."}, s.Chmod),
		op.New(op.Spec{Name: "file_delete", Route: "POST /v1/file/delete", Tag: "file", Failure: pyerr.Failure{}, Destructive: true,
			Doc: "Delete a file, a link or an empty folder; with recursive, a whole tree. Links are not followed."}, s.Delete),
	}
}

// grepEngine returns ripgrep if it is installed.
func (s *Service) grepEngine() grep.Engine {
	if s.runner != nil {
		if program, ok := s.runner.Look("rg"); ok {
			return grep.Ripgrep{Runner: s.runner, Program: program}
		}
	}
	return grep.Fallback{}
}
