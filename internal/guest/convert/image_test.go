package convert

import (
	"archive/zip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// archived writes a document that is a zip archive.
func archived(t *testing.T, path string, names ...string) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	z := zip.NewWriter(f)
	for _, name := range names {
		w, err := z.Create(name)
		must(t, err)
		fmt.Fprint(w, name)
	}
	must(t, z.Close())
	must(t, f.Close())
}

// TestExtractImages: images of a document are saved in order, under names that the document cannot choose.
func TestExtractImages(t *testing.T) {
	t.Parallel()
	s := newService(t)
	doc, folder := filepath.Join(t.TempDir(), "a.docx"), filepath.Join(t.TempDir(), "new", "pictures")
	archived(t, doc, "word/document.xml", "word/media/image10.png", "word/media/image2.JPEG", "../../../evil.png")
	out, err := s.ExtractImages(t.Context(), ImagesIn{URI: "file://" + doc, Folder: &folder})
	must(t, err)
	var got []string
	for _, i := range out.Images {
		b, err := os.ReadFile(i.Path)
		must(t, err)
		got = append(got, fmt.Sprint(strings.TrimPrefix(i.Path, folder), " ", i.Type, " ", string(b)))
	}
	want := "/image-001.png image/png ../../../evil.png, /image-002.jpeg image/jpeg word/media/image2.JPEG, " +
		"/image-003.png image/png word/media/image10.png"
	if strings.Join(got, ", ") != want || out.Truncated {
		t.Errorf("got %v, want %s", got, want)
	}
	var many []string
	for n := range maxImages + 1 {
		many = append(many, fmt.Sprintf("ppt/media/image%d.png", n))
	}
	archived(t, doc, append(many, "word/document.xml")...)
	out, err = s.ExtractImages(t.Context(), ImagesIn{URI: doc, Folder: &folder})
	if err != nil || len(out.Images) != maxImages || !out.Truncated {
		t.Errorf("got %d images, %v, %v, want %d and more", len(out.Images), out.Truncated, err, maxImages)
	}
	for _, uri := range []string{"data:text/plain,x", "data:application/pdf,x", "/no/such.pdf"} {
		if out, err := s.ExtractImages(t.Context(), ImagesIn{URI: uri, Folder: &folder}); err == nil {
			t.Errorf("%s: got %+v, want an error", uri, out)
		}
	}
}

// TestExtractImagesOfPDF: images of a PDF are saved, and nothing else remains in the folder.
func TestExtractImagesOfPDF(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "pdfimages")
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.pdf"), []byte(`%PDF-1.4
1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj
2 0 obj << /Type /Pages /Kids [3 0 R] /Count 1 >> endobj
3 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 5 0 R /Resources << /XObject << /I 4 0 R >> >> >> endobj
4 0 obj << /Type /XObject /Subtype /Image /Width 2 /Height 2 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 4 >> stream
abcd
endstream endobj
5 0 obj << /Length 5 >> stream
/I Do
endstream endobj
trailer << /Root 1 0 R >>
`), 0o600))
	folder := filepath.Join(dir, "pictures")
	got, err := newService(t).ExtractImages(t.Context(), ImagesIn{URI: filepath.Join(dir, "a.pdf"), Folder: &folder})
	files, _ := os.ReadDir(folder)
	if err != nil || len(got.Images) != 1 || len(files) != 1 || got.Images[0].Type != "image/png" {
		t.Errorf("got %+v and %d files, %v, want one image", got, len(files), err)
	}
}
