package hub

import (
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// shelf keeps images in memory.
type shelf struct {
	mu   sync.Mutex
	refs map[string]int64
}

func (s *shelf) Import(_ context.Context, path, ref string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs[ref] = info.Size()
	return nil
}

func (s *shelf) Imported(prefix string) (out []ImageInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, n := range s.refs {
		if strings.HasPrefix(ref, prefix) {
			out = append(out, ImageInfo{Ref: ref + ":latest", Size: n})
		}
	}
	return out
}

func (s *shelf) RemoveImage(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.refs[ref]; !ok {
		return sandbox.ErrNotFound
	}
	delete(s.refs, ref)
	return nil
}

// TestImportedImagesAreTheirOwners: nobody reaches another's, however it is written.
func TestImportedImagesAreTheirOwners(t *testing.T) {
	t.Parallel()
	scratch := t.TempDir()
	r := newRig(t, setup{image: true, hub: Config{Images: &shelf{refs: map[string]int64{}}, Scratch: scratch}})
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	part, err := w.CreateFormFile("file", "a.tar")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(part, "an archive")
	w.Close()
	req, err := http.NewRequest("POST", r.server.URL+"/api/v1/image/mine", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	if a := r.send(req, as1("anna")...); a.Status != 200 || !strings.Contains(a.Body, `"imported/mine"`) || !strings.Contains(a.Body, `"size":10`) {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	if a := r.do("GET", "/api/v1/image", "", as1("bert")...); a.Status != 200 || string(a.Data) != "[]" {
		t.Error(a.Body)
	}
	if a := r.do("DELETE", "/api/v1/image/mine", "", as1("bert")...); a.Status != 404 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	ref, err := imageRef("anna", "imported/mine")
	if err != nil || imageName(ref) != "imported/mine" || ref == importedPrefix("bert")+"mine" {
		t.Error(ref, err)
	}
	for _, image := range []string{ref, "imported/../x", "imported/"} {
		if a := r.do("POST", "/api/v1/sandbox", `{"image":"`+image+`"}`, as1("bert")...); a.Status != 400 {
			t.Errorf("%s: %d %s", image, a.Status, a.Body)
		}
	}
	if a := r.do("DELETE", "/api/v1/image/mine", "", as1("anna")...); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
