package hub

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/gzip"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/activity"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// content is a file of a layer.
type content struct {
	name string
	size int64
	text []byte // instead of a size
}

// layerOf is a layer, compressed.
func layerOf(t *testing.T, files ...content) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, f := range files {
		var in io.Reader = bytes.NewReader(f.text)
		if f.text == nil {
			in = io.LimitReader(pattern{}, f.size)
		} else {
			f.size = int64(len(f.text))
		}
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: f.size, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, in); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pattern is content that uses disk space but compresses to almost nothing.
type pattern struct{}

func (pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// dockerArchive returns an archive as docker save writes it.
func dockerArchive(t *testing.T, layers ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(name string, text []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	var ids, names []string
	for i, l := range layers {
		z, err := gzip.NewReader(bytes.NewReader(l))
		if err != nil {
			t.Fatal(err)
		}
		ids, names = append(ids, "sha256:"+digestOf(t, z)), append(names, fmt.Sprintf("%d.tar", i))
		put(names[i], l)
	}
	config, err := json.Marshal(map[string]any{"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Cmd": []string{"/server"}}, "rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{"a:1"}, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	put("config.json", config)
	put("manifest.json", manifest)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newQuotaMachine is a hub on the local provider, with images, whose tenants have a disk limit.
func newQuotaMachine(t *testing.T, limit int64) *machine {
	t.Helper()
	testenv.NeedRoot(t)
	testenv.Need(t, "go")
	m := newMachine(t)
	m.cfg.Images.Dir = filepath.Join(m.cfg.Dir, "images")
	scratch := t.TempDir()
	m.stores = func() stores {
		return stores{scratch: scratch, quota: quota.New(quota.Config{Limits: func(string) quota.Limits { return quota.Limits{Disk: limit} }})}
	}
	return m
}

// stored returns the size of the image store on disk in bytes, and the number of images and layers.
func (m *machine) stored() (size int64, parts int) {
	m.t.Helper()
	filepath.WalkDir(m.cfg.Images.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil // files that are removed during the walk do not count
	})
	for _, part := range []string{"images", "layers", "tmp"} {
		found, _ := filepath.Glob(filepath.Join(m.cfg.Images.Dir, part, "*"))
		parts += len(found)
	}
	return size, parts
}

// usage returns the usage of a tenant.
func (m *machine) usage(who ...string) usage.UsageOut {
	m.t.Helper()
	a := m.do("GET", "/api/v1/usage", "", who...)
	var u []usage.UsageOut
	if err := json.Unmarshal(a.Data, &u); err != nil || len(u) != 1 {
		m.t.Fatalf("usage: got %d %s, want one tenant", a.Status, a.Body)
	}
	return u[0]
}

// TestRejectedImportLeavesNothing: an archive that expands to more than the tenant's quota is
// rejected before it exceeds the quota on disk, and leaves no files.
func TestRejectedImportLeavesNothing(t *testing.T) {
	const limit = 32 << 20
	m := newQuotaMachine(t, limit)
	m.start()
	defer m.clean()
	anna := asUser("anna")
	var most atomic.Int64
	watching := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-watching:
				return
			case <-time.After(5 * time.Millisecond):
				size, _ := m.stored()
				most.Store(max(most.Load(), size))
			}
		}
	})
	bomb := dockerArchive(t, layerOf(t, content{name: "small", text: []byte("small")}), layerOf(t, content{name: "bomb", size: 512 << 20}))
	if len(bomb) > 8<<20 {
		t.Fatalf("the archive has %d bytes, want a small one", len(bomb))
	}
	for i := range 3 {
		if a := m.importArchive(fmt.Sprintf("bomb%d", i), bomb, anna...); a.Status != 429 || !strings.Contains(a.Error, "disk exceeded") {
			t.Errorf("got %d %s, want 429 that names the limit", a.Status, a.Body)
		}
	}
	close(watching)
	watch.Wait()
	if got := most.Load(); got > limit {
		t.Errorf("the image store grew to %d bytes, want at most the quota of %d", got, limit)
	}
	poll(t, "nothing is left", func() bool { _, parts := m.stored(); return parts == 0 })
	if left, err := os.ReadDir(m.hub.stores.scratch); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v in the scratch folder, want nothing", left, err)
	}
	if u := m.usage(anna...); u.Disk != "" {
		t.Errorf("usage: got %q, want none", u.Disk)
	}
	if a := m.importArchive("fits", dockerArchive(t, layerOf(t, content{name: "f", size: 30 << 20})), anna...); a.Status != 200 {
		t.Errorf("an archive within the quota: got %d %s, want 200", a.Status, a.Body)
	}
	if a := m.do("DELETE", "/api/v1/image/fits", "", anna...); a.Status != 200 {
		t.Errorf("delete: got %d %s, want 200", a.Status, a.Body)
	}
	poll(t, "the deleted image is gone", func() bool { _, parts := m.stored(); return parts == 0 })
}

// TestConcurrentImportsShareTheQuota: concurrent imports cannot each use the full free quota.
func TestConcurrentImportsShareTheQuota(t *testing.T) {
	const limit = 32 << 20
	m := newQuotaMachine(t, limit)
	m.start()
	defer m.clean()
	anna := asUser("anna")
	var all sync.WaitGroup
	var stored atomic.Int64
	for i := range 6 {
		archive := dockerArchive(t, layerOf(t, content{name: "own", text: fmt.Append(nil, i)}, content{name: "f", size: 20 << 20}))
		all.Go(func() {
			switch a := m.importArchive(fmt.Sprintf("i%d", i), archive, anna...); a.Status {
			case 200:
				stored.Add(1)
			case 429:
			default:
				t.Errorf("got %d %s, want 200 or 429", a.Status, a.Body)
			}
		})
	}
	all.Wait()
	if n := stored.Load(); n > 1 {
		t.Errorf("got %d images of 20 MiB within a quota of 32 MiB, want at most one", n)
	}
	poll(t, "only what was accepted is on the disk", func() bool { size, _ := m.stored(); return size <= stored.Load()*21<<20 })
}

// TestPulledImagesCount: the image of a sandbox counts against its owner's quota while the
// owner uses it, and a pull stops when the quota is exceeded.
func TestPulledImagesCount(t *testing.T) {
	const limit = 64 << 20
	m := newQuotaMachine(t, limit)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	m.cfg.Images.Insecure = []string{at.Host}
	m.cfg.Command = nil
	m.start()
	defer m.clean()
	payload, err := os.ReadFile(m.cfg.Binds[0].Source)
	if err != nil {
		t.Fatal(err)
	}
	push(t, at.Host+"/good:1", dockerArchive(t, layerOf(t, content{name: "server", text: payload}, content{name: "f", size: 20 << 20})))
	push(t, at.Host+"/large:1", dockerArchive(t, layerOf(t, content{name: "server", text: payload}),
		layerOf(t, content{name: "f", size: 200 << 20})))
	anna := asUser("anna")
	create := func(name, image string) reply {
		return m.do("POST", "/api/v1/sandbox", fmt.Sprintf(`{"name":%q,"image":%q,"disk_limit":"16Mi"}`, name, at.Host+image), anna...)
	}
	if a := create("large", "/large:1"); a.Status != 429 || !strings.Contains(a.Error, "disk exceeded") {
		t.Errorf("an image beyond the quota: got %d %s, want 429 that names the limit", a.Status, a.Body)
	}
	poll(t, "nothing is left", func() bool { _, parts := m.stored(); return parts == 0 })
	if u := m.usage(anna...); u.Disk != "" {
		t.Errorf("usage: got %q, want none", u.Disk)
	}
	disk := func() (mib int) {
		t.Helper()
		u := m.usage(anna...)
		var n int64
		if _, err := fmt.Sscan(u.Disk, &n); err == nil {
			return int(n >> 20)
		}
		fmt.Sscanf(u.Disk, "%dMi", &mib)
		return mib
	}
	if a := create("good", "/good:1"); a.Status != 200 {
		t.Fatalf("an image within the quota: got %d %s, want 200", a.Status, a.Body)
	}
	first := disk()
	if first < 16+20 || first > 16+20+20 {
		t.Errorf("usage with a sandbox of 16 MiB and its image: got %d MiB, want at least 36", first)
	}
	if a := m.do("DELETE", "/api/v1/sandbox/good", "", anna...); a.Status != 200 {
		t.Errorf("delete: got %d %s, want 200", a.Status, a.Body)
	}
	if got := disk(); got != 0 {
		t.Errorf("usage after the last sandbox of the image: got %d MiB, want 0", got)
	}
}

// push stores an archive in a registry.
func push(t *testing.T, ref string, archive []byte) {
	t.Helper()
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRecordsAndSnapshotsCount: stored data of deleted sandboxes counts against the quota, and
// an owner without free quota cannot store more.
func TestRecordsAndSnapshotsCount(t *testing.T) {
	t.Parallel()
	keep := func() *activity.Store {
		return activity.New(activity.Config{Dir: filepath.Join(t.TempDir(), "records"), Keep: time.Hour})
	}
	records := keep()
	sb := sandbox.Sandbox{ID: "gone", Created: time.Now(), Spec: sandbox.Spec{Name: "gone", Owner: "anna"}}
	records.Save(sb, []json.RawMessage{json.RawMessage(`{"id":1,"text":"` + strings.Repeat("x", 1<<20) + `"}`)}, nil)
	r := newRig(t, setup{stores: stores{records: records, quota: limited(map[string]quota.Limits{"anna": {Disk: 3 << 20}})()}})
	anna := asUser("anna")
	poll(t, "the record of an earlier hub counts", func() bool {
		return r.do("POST", "/api/v1/sandbox", `{"name":"x","disk_limit":"2Mi"}`, anna...).Status == 429
	})
	r.create(`{"name":"a","disk_limit":"1Mi"}`, anna...)
	records.Save(sb, []json.RawMessage{json.RawMessage(`{"id":2,"text":"` + strings.Repeat("y", 1<<20) + `"}`)}, nil)
	for path, body := range map[string]string{"/api/v1/sandbox/a/snapshot": `{}`, "/api/v1/volume": `{"name":"v"}`} {
		if a := r.do("POST", path, body, anna...); a.Status != 429 || !strings.Contains(a.Error, "activity record") {
			t.Errorf("%s beyond the quota: got %d %s, want 429 that says what to delete", path, a.Status, a.Body)
		}
	}
	if a := r.do("DELETE", "/api/v1/record/gone", "", anna...); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
	if a := r.do("GET", "/api/v1/usage", "", anna...); !strings.Contains(a.Body, `"disk":"1Mi"`) {
		t.Errorf("usage after the record was deleted: got %s, want the sandbox only", a.Body)
	}
	if a := r.do("POST", "/api/v1/volume", `{"name":"v"}`, anna...); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
}

func digestOf(t *testing.T, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}
