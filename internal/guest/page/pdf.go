package page

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// fetchBase64 loads the document that the viewer shows once more, usually from the cache.
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
	view, err := document.Reader{Runner: s.cfg.Runner}.View(ctx, path, document.Query{})
	return view.Text, err
}
