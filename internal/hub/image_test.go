package hub

import (
	"bytes"
	"context"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// shelf keeps images in memory.
type shelf struct {
	mu    sync.Mutex
	refs  map[string]int64
	grows atomic.Int64 // expansion factor of an archive; 0 means 1
}

func (s *shelf) ImportImage(_ context.Context, path, ref string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == nil {
		s.refs = map[string]int64{}
	}
	s.refs[ref] = info.Size() * max(1, s.grows.Load())
	return nil
}

func (s *shelf) Images(_ context.Context, prefix string) (out []sandbox.ImageInfo, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, n := range s.refs {
		if strings.HasPrefix(ref, prefix) {
			out = append(out, sandbox.ImageInfo{Ref: ref + ":latest", Size: n})
		}
	}
	return out, nil
}

func (s *shelf) DeleteImage(_ context.Context, ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.refs[ref]; !ok {
		return sandbox.ErrNotFound
	}
	delete(s.refs, ref)
	return nil
}

// importImage uploads an archive of that size.
func (r *rig) importImage(name string, size int, headers ...string) reply {
	r.t.Helper()
	return r.importArchive(name, make([]byte, size), headers...)
}

// importArchive uploads an archive.
func (r *rig) importArchive(name string, content []byte, headers ...string) reply {
	r.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	part, err := w.CreateFormFile("file", "a.tar")
	if err != nil {
		r.t.Fatal(err)
	}
	part.Write(content)
	w.Close()
	req, err := http.NewRequest("POST", r.server.URL+"/api/v1/image/"+name, &body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	return r.send(req, headers...)
}

// TestImagesCountForTheirOwner: a tenant's imports count against its disk limit, before and after a
// restart. An archive that exceeds the limit is not stored.
func TestImagesCountForTheirOwner(t *testing.T) {
	t.Parallel()
	scratch := t.TempDir()
	keeper := limited(map[string]quota.Limits{"anna": {Disk: 10 << 20}})
	r := newRig(t, setup{image: true, stores: stores{scratch: scratch, quota: keeper()}})
	anna := asUser("anna")
	want := func(what string, a reply, status int, says string) {
		t.Helper()
		if a.Status != status || !strings.Contains(a.Body, says) {
			t.Errorf("%s: got %d %s, want %d with %q", what, a.Status, a.Body, status, says)
		}
		if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
			t.Errorf("%s: got %v %v in the scratch folder, want nothing", what, left, err)
		}
	}
	want("one that fits", r.importImage("one", 6<<20, anna...), 200, `"size":6291456`)
	want("usage", r.do("GET", "/api/v1/usage", "", anna...), 200, `"disk":"6Mi"`)
	want("one too many", r.importImage("two", 6<<20, anna...), 429, "disk")
	want("the list", r.do("GET", "/api/v1/image", "", anna...), 200, `"imported/one"`)
	want("a sandbox that does not fit", r.do("POST", "/api/v1/sandbox", `{"name":"a","disk_limit":"5Mi"}`, anna...), 429, "disk")
	want("another tenant", r.importImage("two", 6<<20, asUser("bert")...), 200, "imported/two")
	want("one that replaces itself", r.importImage("one", 2<<20, anna...), 200, `"size":2097152`)
	want("usage after that", r.do("GET", "/api/v1/usage", "", anna...), 200, `"disk":"2Mi"`)
	refs := r.provider.refs
	r.close()
	r.open(setup{image: true, stores: stores{scratch: scratch, quota: keeper()}})
	r.provider.refs = refs
	want("a sandbox that does not fit after a restart",
		r.do("POST", "/api/v1/sandbox", `{"name":"a","disk_limit":"9Mi"}`, anna...), 429, "disk")
	want("usage after a restart", r.do("GET", "/api/v1/usage", "", anna...), 200, `"disk":"2Mi"`)
	// Archives are smaller than their content.
	r.provider.grows.Store(6)
	want("one that grows", r.importImage("three", 2<<20, anna...), 429, "disk")
	if a := r.do("GET", "/api/v1/image", "", anna...); strings.Contains(a.Body, "three") {
		t.Errorf("got %s, want no image that exceeds the limit", a.Body)
	}
	r.provider.grows.Store(0)
	want("a deletion", r.do("DELETE", "/api/v1/image/one", "", anna...), 200, "deleted")
	want("usage at the end", r.do("GET", "/api/v1/usage", "", anna...), 200, `"disk":""`)
}

// TestImportedImagesBelongToOwner: no caller reaches an image of another owner.
func TestImportedImagesBelongToOwner(t *testing.T) {
	t.Parallel()
	scratch := t.TempDir()
	r := newRig(t, setup{image: true, stores: stores{scratch: scratch}})
	if a := r.importImage("mine", 10, asUser("anna")...); a.Status != 200 ||
		!strings.Contains(a.Body, `"imported/mine"`) || !strings.Contains(a.Body, `"size":10`) {
		t.Fatalf("got %d %s, want 200", a.Status, a.Body)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("got %v %v, want none", left, err)
	}
	if a := r.do("GET", "/api/v1/image", "", asUser("bert")...); a.Status != 200 || string(a.Data) != "[]" {
		t.Errorf(`got %v, want status 200 and data "[]"`, a.Body)
	}
	if a := r.do("DELETE", "/api/v1/image/mine", "", asUser("bert")...); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	ref, err := naming.ResolveImage("anna", "imported/mine")
	if err != nil || naming.ImageName(ref) != "imported/mine" || ref == naming.ImagePrefix("bert")+"mine" {
		t.Errorf(`got %v %v, want "imported/mine" of another than bert`, ref, err)
	}
	for _, image := range []string{ref, "imported/../x", "imported/"} {
		if a := r.do("POST", "/api/v1/sandbox", `{"image":"`+image+`"}`, asUser("bert")...); a.Status != 400 {
			t.Errorf("%s: got %d %s, want 400", image, a.Status, a.Body)
		}
	}
	if a := r.do("DELETE", "/api/v1/image/mine", "", asUser("anna")...); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
}
