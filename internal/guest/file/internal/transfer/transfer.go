// Package transfer implements the operations that send files to clients and receive them:
// upload, download, preview, archive and unpack. It owns the streams that outlive their request.
package transfer

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the transfers.
type Config struct {
	State  string       // folder for temporary copies; empty: the system's folder for downloads, the target's for archives
	Runner *proc.Runner // nil: PDF files have no preview
	Log    *slog.Logger
	Unpack archive.Limits
}

// Service implements the transfers.
type Service struct {
	files *access.Files
	cfg   Config

	// For streams that outlive their request, such as the download of an archive.
	life context.Context
	end  context.CancelFunc
	live sync.WaitGroup
}

// New returns the service. It has no side effects.
func New(files *access.Files, c Config) *Service {
	s := &Service{files: files, cfg: c}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Close ends all streams. It is idempotent.
func (s *Service) Close() error {
	s.end()
	s.live.Wait()
	return nil
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "file_upload", Route: "POST /v1/file/upload", Tag: "file", Failure: pyerr.Failure{},
			SDK: "file.upload_file", Destructive: true, MaxBody: -1,
			Doc: "Upload a file. It is streamed to disk and appears only when it is complete."}, s.Upload),
		op.New(op.Spec{Name: "file_download", Access: op.AccessRead, Content: op.ContentForeign,
			Route: "GET /v1/file/download", Tag: "file", Failure: pyerr.Failure{}, SDK: "file.download_file",
			ReadOnly: true, Style: op.Resource, Statuses: []int{http.StatusConflict},
			Doc: "Download a file. The response is streamed and supports ranges and ETags. If a file changes, " +
				"change_policy abort responds with 409, or closes the connection for a large file."}, s.Download),
		op.New(op.Spec{Name: "file_preview", Content: op.ContentForeign, Framed: true, Route: "GET /v1/file/preview",
			Tag: "file", Failure: pyerr.Failure{}, ReadOnly: true, NoTool: true, Style: op.Resource, Produces: "text/html, image/jpeg",
			Doc: "Show an HTML file, or a page of a PDF as a picture, in a browser. Scripts are blocked, and no " +
				"other resources are loaded."}, s.Preview),
		op.New(op.Spec{Name: "file_archive", Content: op.ContentForeign, Route: "GET /v1/file/archive", Tag: "file",
			Failure: pyerr.Failure{}, ReadOnly: true, Style: op.Resource,
			Doc: "Download a folder as an archive, which is created while it is sent. Sockets, FIFOs and devices are skipped."}, s.Archive),
		op.New(op.Spec{Name: "file_unpack", Route: "POST /v1/file/unpack", Tag: "file", Failure: pyerr.Failure{}, Destructive: true, MaxBody: -1,
			Doc: "Upload an archive and unpack it into a folder. Accepts tar, tar.gz, tar.bz2, tar.zst and zip. " +
				"Nothing is written outside the folder."}, s.Unpack),
	}
}
