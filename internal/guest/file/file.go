// Package file reads, writes, edits, searches, moves and transfers the sandbox's files.
//
// It owns the rules: paths are resolved the same way everywhere, writes are atomic,
// writers to one file take turns, edits can be undone, and every error carries its kind,
// its errno and Python's name for it. It reads only regular files, and nothing without
// a limit.
package file

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/grep"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Viewer shows documents that are not plain text.
type Viewer interface {
	View(ctx context.Context, path string, q document.Query) (document.View, error)
}

// Config of the service. A limit of 0 means the default.
type Config struct {
	Home      string
	Workspace string
	State     string // folder for undo history and spooled uploads
	Runner    *proc.Runner
	Log       *slog.Logger
	Viewer    Viewer // nil: documents cannot be viewed

	MaxRead    int64         // bytes that one read, edit or view may hold in memory
	MaxHistory int64         // bytes of undo history
	SearchTime time.Duration // limit of one search, grep, glob or list
	Unpack     archive.Limits
}

// Service implements the file operations.
type Service struct {
	cfg     Config
	base    pathname.Base
	locks   locks
	history *history
	isRoot  bool // so sudo is not needed

	// For streams that outlive their call, such as the download of an archive.
	life context.Context
	end  context.CancelFunc
	live sync.WaitGroup
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxRead = cmp.Or(c.MaxRead, 32<<20)
	c.MaxHistory = cmp.Or(c.MaxHistory, 256<<20)
	c.SearchTime = cmp.Or(c.SearchTime, 30*time.Second)
	c.Unpack.Entries = cmp.Or(c.Unpack.Entries, 500_000)
	c.Unpack.Bytes = cmp.Or(c.Unpack.Bytes, 16<<30)
	c.Unpack.Packed = cmp.Or(c.Unpack.Packed, 4<<30)
	s := &Service{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, isRoot: os.Geteuid() == 0}
	if c.State != "" {
		s.history = &history{dir: filepath.Join(c.State, "undo"), maxBytes: c.MaxHistory}
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// maxBody bounds the body of a request that carries text.
const maxBody = 96 << 20

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return slices.Concat(s.contentOps(), s.treeOps(), s.transferOps())
}

func (s *Service) contentOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_read", Route: "POST /v1/file/read", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.read_file", ReadOnly: true,
			Doc: "Read a text file or a range of its lines. Lines are numbered from 0 and end_line is exclusive; " +
				"negative numbers count from the end."}, s.Read),
		op.New(op.Spec{Name: "file_write", Route: "POST /v1/file/write", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.write_file", Destructive: true, MaxBody: maxBody,
			Doc: "Write or append to a file. Parent folders are created. The write is atomic and keeps the mode " +
				"and owner of an existing file."}, s.Write),
		op.New(op.Spec{Name: "file_replace", Route: "POST /v1/file/replace", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.replace_in_file", Destructive: true, MaxBody: maxBody,
			Doc: "Replace every occurrence of a string in a file. Returns the number of replacements."}, s.Replace),
		op.New(op.Spec{Name: "file_search", Route: "POST /v1/file/search", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.search_in_file", ReadOnly: true,
			Doc: "Find the lines of one file that match a Python-style regular expression. Lines are numbered from 0, as in read."}, s.Search),
		op.New(op.Spec{Name: "file_str_replace_editor", Route: "POST /v1/file/str_replace_editor", Tag: "file",
			Failure: pyerr.Failure{}, SDK: "file.str_replace_editor", Verb: "file edit", Destructive: true, MaxBody: maxBody,
			Doc: "View and edit a file by command: view, create, str_replace, insert, undo_edit. Lines are " +
				"numbered from 1. Edits can be undone one by one, even after a restart. PDF, Office files, " +
				"notebooks and images have ranges of their own."}, s.Edit),
	}
}

func (s *Service) treeOps() []op.Op {
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

func (s *Service) transferOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_upload", Route: "POST /v1/file/upload", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.upload_file", Destructive: true, MaxBody: -1,
			Doc: "Upload a file. It is streamed to disk and appears only when it is complete."}, s.Upload),
		op.New(op.Spec{Name: "file_download", Access: op.AccessRead, Content: op.ContentForeign,
			Route: "GET /v1/file/download", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.download_file",
			ReadOnly: true, Style: op.Resource, Statuses: []int{http.StatusConflict},
			Doc: "Download a file. The response is streamed and supports ranges and ETags."}, s.Download),
		op.New(op.Spec{Name: "file_preview", Content: op.ContentForeign, Framed: true, Route: "GET /v1/file/preview",
			Tag: "file", Failure: pyerr.Failure{}, ReadOnly: true, NoTool: true, Style: op.Resource, Produces: "text/html, image/jpeg",
			Doc: "Show an HTML file, or a page of a PDF as a picture, in a browser. Nothing of it runs: scripts " +
				"are blocked and nothing else is loaded."}, s.Preview),
		op.New(op.Spec{Name: "file_archive", Content: op.ContentForeign, Route: "GET /v1/file/archive", Tag: "file",
			Failure: pyerr.Failure{}, ReadOnly: true, Style: op.Resource,
			Doc: "Download a folder as an archive, packed while it is sent. Sockets, FIFOs and devices are skipped."}, s.Archive),
		op.New(op.Spec{Name: "file_unpack", Route: "POST /v1/file/unpack", Tag: "file", Failure: pyerr.Failure{}, Destructive: true, MaxBody: -1,
			Doc: "Upload an archive and unpack it into a folder. Accepts tar, tar.gz, tar.bz2, tar.zst and zip. " +
				"Nothing is ever written outside the folder."}, s.Unpack),
	}
}

// Close ends all streams. It is idempotent.
func (s *Service) Close() error {
	s.end()
	s.live.Wait()
	return nil
}

// grepEngine is ripgrep if it is installed.
func (s *Service) grepEngine() grep.Engine {
	if s.cfg.Runner != nil {
		if program, ok := s.cfg.Runner.Look("rg"); ok {
			return grep.Ripgrep{Runner: s.cfg.Runner, Program: program}
		}
	}
	return grep.Fallback{}
}

// resolve turns a caller's path into an absolute one.
func (s *Service) resolve(operation, path string) (string, error) {
	full, err := s.base.Resolve(path)
	if err != nil {
		return "", pyerr.From(operation, path, err)
	}
	return full, nil
}
