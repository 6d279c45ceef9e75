package transfer

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// PreviewIn names a file and the part to show.
type PreviewIn struct {
	Path  string `query:"path" doc:"Path of an HTML file or a PDF"`
	Page  int    `query:"page" default:"1" minimum:"1" doc:"Page of a PDF"`
	Width int    `query:"width" default:"900" minimum:"16" maximum:"1600" doc:"Width of the picture of a page, in pixels"`
}

// previewPolicy makes a document inert: it runs no scripts, has no origin and loads nothing.
const previewPolicy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:"

// maxPreview limits the size of an HTML file.
const maxPreview = 8 << 20

// Preview returns a file in a form that a browser can show without running any part of it.
func (s *Service) Preview(ctx context.Context, in PreviewIn) (*op.Blob, error) {
	path, err := s.files.Resolve("preview", in.Path)
	if err != nil {
		return nil, err
	}
	f, err := access.OpenRegular(path)
	if err != nil {
		return nil, pyerr.From("preview", path, err)
	}
	defer f.Close()
	switch strings.ToLower(filepath.Ext(path)) {
	case ".pdf":
		picture, pages, err := document.Reader{Runner: s.cfg.Runner}.PDFPage(ctx, path, in.Page, in.Width)
		if err != nil {
			return nil, err
		}
		return &op.Blob{Type: "image/jpeg", Size: int64(len(picture)), Body: io.NopCloser(bytes.NewReader(picture)),
			Header: map[string]string{"X-Page-Count": strconv.Itoa(pages)}}, nil
	case ".html", ".htm", ".xhtml":
		text, err := io.ReadAll(io.LimitReader(f, maxPreview+1))
		if err != nil {
			return nil, pyerr.From("preview", path, err)
		}
		if len(text) > maxPreview {
			return nil, access.Refuse("preview", path, "larger than 8 MiB; download it instead")
		}
		return &op.Blob{Type: "text/html; charset=utf-8", Size: int64(len(text)),
			Body: io.NopCloser(bytes.NewReader(text)), Header: map[string]string{
				"Content-Security-Policy": previewPolicy, "Referrer-Policy": "no-referrer",
			}}, nil
	}
	return nil, access.Refuse("preview", path, "only HTML and PDF files have a preview; download it instead")
}
