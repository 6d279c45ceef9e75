package content

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// fetchBase64 loads the document that the viewer shows again, usually from the cache.
const fetchBase64 = `fetch(location.href, {credentials: "include"}).then(r => r.blob()).then(b => new Promise((done, fail) => {
	const reader = new FileReader();
	reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
	reader.onerror = () => fail(reader.error);
	reader.readAsDataURL(b);
}))`

// readPDF returns the text of the PDF that a tab shows.
func (s *Service) readPDF(ctx context.Context, t *tab.Tab) (string, error) {
	var encoded string
	if err := locate.Evaluate(ctx, t, fetchBase64, &encoded); err != nil {
		return "", err
	}
	b, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "page-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "page.pdf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return "", err
	}
	view, err := document.Reader{Runner: s.runner}.View(ctx, path, document.Query{})
	return view.Text, err
}

// pdfText returns the text of a page that is a PDF.
func (s *Service) pdfText(ctx context.Context, t *tab.Tab) (text string, isPDF bool, err error) {
	var kind string
	if locate.Evaluate(ctx, t, "document.contentType", &kind) != nil || kind != "application/pdf" {
		return "", false, nil //nolint:nilerr // a page that does not respond is not a PDF
	}
	text, err = s.readPDF(ctx, t)
	if err != nil {
		return "", true, op.Errorf(op.Unavailable, "cannot read the PDF at %q: %w", t.URL(), err)
	}
	return text, true, nil
}
