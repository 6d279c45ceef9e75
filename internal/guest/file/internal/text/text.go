// Package text implements the operations on the content of text files: read, write, replace
// and search.
package text

import (
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// Service implements the operations on text.
type Service struct {
	files   *access.Files
	timeout time.Duration // of one search
}

// New returns the service. It has no side effects.
func New(files *access.Files, timeout time.Duration) *Service {
	return &Service{files, timeout}
}

// maxBody limits the body of a request that carries text.
const maxBody = 96 << 20

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
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
	}
}
