package file

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/transfer"
)

// An HTML file is shown with a policy that lets it run and load nothing, and a PDF becomes a
// picture.
func TestPreviewRunsNothing(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "pdftoppm", "pdfinfo")
	s := newSandbox(t)
	dir := s.dir
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	show := func(in transfer.PreviewIn) (*op.Blob, string, error) {
		in.Page, in.Width = max(in.Page, 1), 100
		b, err := s.transfer.Preview(context.Background(), in)
		if err != nil {
			return nil, "", err
		}
		defer b.Body.Close()
		text, err := io.ReadAll(b.Body)
		return b, string(text), err
	}
	b, text, err := show(transfer.PreviewIn{Path: put("a.html", "<script>attack()</script>")})
	if err != nil || text != "<script>attack()</script>" || b.Name != "" {
		t.Fatalf("got %q %v, want the file as it is, shown inline", text, err)
	}
	if policy := b.Header["Content-Security-Policy"]; !strings.HasPrefix(policy, "sandbox; default-src 'none';") ||
		strings.Contains(policy, "allow-") || strings.Contains(policy, "script-src") {
		t.Errorf("got policy %q, want one without scripts, origin and other hosts", policy)
	}
	pdf := put("a.pdf", "%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 "+
		"R]/Count 1>>endobj 3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 30 20]>>endobj\ntrailer<</Root 1 0 R>>")
	b, text, err = show(transfer.PreviewIn{Path: pdf})
	if err != nil || b.Type != "image/jpeg" || !strings.HasPrefix(text, "\xff\xd8") || b.Header["X-Page-Count"] != "1" {
		t.Errorf("got %+v %v, want a picture and 1 page", b, err)
	}
	for _, in := range []transfer.PreviewIn{{Path: pdf, Page: 2}, {Path: put("b.pdf", "no PDF")}, {Path: put("a.exe", "x")},
		{Path: dir}, {Path: filepath.Join(dir, "none.html")}, {Path: put("big.html", strings.Repeat("x", 8<<20+1))}} {
		if _, _, err := show(in); err == nil {
			t.Errorf("%s page %d: got no error, want one", in.Path, in.Page)
		} else if _, ok := op.AsError(err); !ok {
			t.Errorf("%s page %d: got %v, want an error for the caller", in.Path, in.Page, err)
		}
	}
}
