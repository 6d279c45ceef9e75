// Package file is the sandbox's files: reading, writing, editing, searching,
// moving them, and carrying them in and out.
//
// It owns the rules of all that: paths are resolved the same way everywhere, a
// write is seen as a whole or not at all, writers to one file take turns, edits
// can be undone, and every failure tells its kind, errno and Python's name for
// it. It refuses what is no regular file where it would have to read it, and
// anything without a bound.
package file

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/archive"
	"github.com/cove-sandbox/cove/internal/document"
	"github.com/cove-sandbox/cove/internal/grep"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// Viewer shows documents that are not text.
type Viewer interface {
	View(ctx context.Context, path string, q document.Query) (document.View, error)
}

// Config of the service. A limit of 0 is the default.
type Config struct {
	Home      string
	Workspace string
	State     string // where undo history and spooled uploads are kept
	Runner    *proc.Runner
	Log       *slog.Logger
	Viewer    Viewer // nil: documents are only text

	MaxRead    int64         // bytes that one read, edit or view holds in memory
	MaxHistory int64         // bytes of undo history
	SearchTime time.Duration // of one search, grep, glob, list
	Unpack     archive.Limits
}

// Service works on files.
type Service struct {
	cfg     Config
	base    pathname.Base
	locks   locks
	history *history
	isRoot  bool // sudo is not needed

	// Streams that outlive their call, such as an archive being downloaded.
	life context.Context
	end  context.CancelFunc
	live sync.WaitGroup
}

// New makes the service. It touches nothing.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	set(&c.MaxRead, 32<<20)
	set(&c.MaxHistory, 256<<20)
	set(&c.SearchTime, 30*time.Second)
	set(&c.Unpack.Entries, 500_000)
	set(&c.Unpack.Bytes, 16<<30)
	set(&c.Unpack.Packed, 4<<30)
	s := &Service{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, isRoot: os.Geteuid() == 0}
	if c.State != "" {
		s.history = &history{dir: filepath.Join(c.State, "undo"), maxBytes: c.MaxHistory}
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// maxBody is how much text a request may carry.
const maxBody = 96 << 20

// Ops lists what the service offers.
func (s *Service) Ops() []op.Op {
	return append(s.contentOps(), append(s.treeOps(), s.transferOps()...)...)
}

func (s *Service) contentOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_read", Route: "POST /v1/file/read", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.read_file", ReadOnly: true,
			Doc: "Read a text file, or a range of its lines. Lines count from 0 and the end is not included; negative numbers count from the end."}, s.Read),
		op.New(op.Spec{Name: "file_write", Route: "POST /v1/file/write", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.write_file", Destructive: true, MaxBody: maxBody,
			Doc: "Write or append to a file. Folders on the way are made; the new content appears as a whole, with the old mode and owner."}, s.Write),
		op.New(op.Spec{Name: "file_replace", Route: "POST /v1/file/replace", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.replace_in_file", Destructive: true, MaxBody: maxBody,
			Doc: "Replace every occurrence of a text in a file. The answer tells how many there were."}, s.Replace),
		op.New(op.Spec{Name: "file_search", Route: "POST /v1/file/search", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.search_in_file", ReadOnly: true,
			Doc: "Find the lines of one file that match a Python-style regular expression. Line numbers count from 0, as in read."}, s.Search),
		op.New(op.Spec{Name: "file_str_replace_editor", Route: "POST /v1/file/str_replace_editor", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.str_replace_editor", Verb: "file edit", Destructive: true, MaxBody: maxBody,
			Doc: "View and edit a file by command: view, create, str_replace, insert, undo_edit. Lines count from 1. Edits can be undone one by one, even after a restart. PDF, Office files, notebooks and images are shown by their own ranges."}, s.Edit),
	}
}

func (s *Service) treeOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_find", Route: "POST /v1/file/find", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.find_files", ReadOnly: true,
			Doc: "Find files by a simple glob below a folder. Use ** to search deeper."}, s.Find),
		op.New(op.Spec{Name: "file_grep", Route: "POST /v1/file/grep", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.grep_files", ReadOnly: true,
			Doc: "Search the contents of a tree as ripgrep does. Binary and hidden files are skipped; .gitignore is heeded only if asked."}, s.Grep),
		op.New(op.Spec{Name: "file_glob", Route: "POST /v1/file/glob", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.glob_files", ReadOnly: true,
			Doc: "Find files by a glob with ** and braces, sorted, with size and time."}, s.Glob),
		op.New(op.Spec{Name: "file_list", Route: "POST /v1/file/list", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.list_path", ReadOnly: true,
			Doc: "List a folder, or a tree to a depth, with sizes and counts."}, s.List),
		op.New(op.Spec{Name: "file_stat", Route: "POST /v1/file/stat", Tag: "file", Failure: pyerr.Failure{}, ReadOnly: true,
			Doc: "Tell what a path is: kind, size, mode, owner, times, and where a link points."}, s.Stat),
		op.New(op.Spec{Name: "file_mkdir", Route: "POST /v1/file/mkdir", Tag: "file", Failure: pyerr.Failure{},
			Doc: "Make a folder. Folders on the way are made too."}, s.Mkdir),
		op.New(op.Spec{Name: "file_move", Route: "POST /v1/file/move", Tag: "file", Failure: pyerr.Failure{}, Destructive: true,
			Doc: "Move or rename a file or folder, also between file systems."}, s.Move),
		op.New(op.Spec{Name: "file_copy", Route: "POST /v1/file/copy", Tag: "file", Failure: pyerr.Failure{},
			Doc: "Copy a file or a whole folder. Links are copied as links."}, s.Copy),
		op.New(op.Spec{Name: "file_chmod", Route: "POST /v1/file/chmod", Tag: "file", Failure: pyerr.Failure{},
			Doc: "Change the mode of a file, or of a tree. Takes octal or symbolic modes such as u+x,go-w."}, s.Chmod),
		op.New(op.Spec{Name: "file_delete", Route: "POST /v1/file/delete", Tag: "file", Failure: pyerr.Failure{}, Destructive: true,
			Doc: "Delete a file, a link or an empty folder, or with recursive a whole tree. Links are not followed."}, s.Delete),
	}
}

func (s *Service) transferOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_upload", Route: "POST /v1/file/upload", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.upload_file", Destructive: true, MaxBody: -1,
			Doc: "Upload a file. It is streamed to the disk and appears only when it is complete."}, s.Upload),
		op.New(op.Spec{Name: "file_download", Route: "GET /v1/file/download", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.download_file", ReadOnly: true, Style: op.Resource,
			Doc: "Download a file. It is streamed; ranges and ETags are served."}, s.Download),
		op.New(op.Spec{Name: "file_archive", Route: "GET /v1/file/archive", Tag: "file", Failure: pyerr.Failure{}, ReadOnly: true, Style: op.Resource,
			Doc: "Download a folder as one archive. It is packed while it is sent; sockets, FIFOs and devices are left out."}, s.Archive),
		op.New(op.Spec{Name: "file_unpack", Route: "POST /v1/file/unpack", Tag: "file", Failure: pyerr.Failure{}, Destructive: true, MaxBody: -1,
			Doc: "Upload an archive and unpack it into a folder. Takes tar, tar.gz, tar.bz2, tar.zst and zip; nothing is ever written outside the folder."}, s.Unpack),
	}
}

// Close ends what is still streaming. It may be called more than once.
func (s *Service) Close() error {
	s.end()
	s.live.Wait()
	return nil
}

// grepEngine is ripgrep where it is installed.
func (s *Service) grepEngine() grep.Engine {
	if s.cfg.Runner != nil {
		if program, ok := s.cfg.Runner.Look("rg"); ok {
			return grep.Ripgrep{Runner: s.cfg.Runner, Program: program}
		}
	}
	return grep.Native{}
}

// resolve turns a path of the caller into an absolute one, as a failure of the
// operation when it cannot be one.
func (s *Service) resolve(operation, path string) (string, error) {
	full, err := s.base.Resolve(path)
	if err != nil {
		return "", pyerr.From(operation, path, err)
	}
	return full, nil
}

// locks lets writers to one file take turns.
type locks struct {
	mu   sync.Mutex
	held map[string]*turn
}

type turn struct {
	ch    chan struct{} // holds one token while the file is taken
	users int
}

// take waits for the file's turn. The returned function gives it back.
func (l *locks) take(ctx context.Context, path string) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*turn{}
	}
	t := l.held[path]
	if t == nil {
		t = &turn{ch: make(chan struct{}, 1)}
		l.held[path] = t
	}
	t.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(l.held, path)
		}
	}
	select {
	case t.ch <- struct{}{}:
		return func() { <-t.ch; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
