package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var day = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

// ent is a short way to write a tar entry.
func ent(kind byte, name, arg string, more ...func(*tar.Header)) entry {
	h := &tar.Header{Typeflag: kind, Name: name, Mode: 0o644, ModTime: day, Format: tar.FormatPAX}
	e := entry{h: h}
	switch kind {
	case tar.TypeReg:
		e.body, h.Size = arg, int64(len(arg))
	case tar.TypeDir:
		h.Mode = 0o755
	default:
		h.Linkname = arg
	}
	for _, f := range more {
		f(h)
	}
	return e
}

func file(name, body string, more ...func(*tar.Header)) entry {
	return ent(tar.TypeReg, name, body, more...)
}
func dir(name string, more ...func(*tar.Header)) entry { return ent(tar.TypeDir, name, "", more...) }
func symlink(name, to string) entry                    { return ent(tar.TypeSymlink, name, to) }
func hardlink(name, to string) entry                   { return ent(tar.TypeLink, name, to) }

func mode(m int64) func(*tar.Header)       { return func(h *tar.Header) { h.Mode = m } }
func owned(uid, gid int) func(*tar.Header) { return func(h *tar.Header) { h.Uid, h.Gid = uid, gid } }
func xattr(name, value string) func(*tar.Header) {
	return func(h *tar.Header) {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = value
	}
}

type entry struct {
	h    *tar.Header
	body string
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(e.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstded(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sum(raw []byte) v1.Hash {
	s := sha256.Sum256(raw)
	return digest(s[:])
}

// hub is an in-process registry with configurable faults.
type hub struct {
	t    testing.TB
	host string
	// before, if set, may answer a request itself.
	before func(http.ResponseWriter, *http.Request) bool
	blobs  counter
}

func newHub(t testing.TB) *hub {
	h := &hub{t: t}
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:") {
			h.blobs.add(r.URL.Path[strings.LastIndexByte(r.URL.Path, ':')+1:])
		}
		if h.before == nil || !h.before(w, r) {
			reg.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	h.host = u.Host
	return h
}

func (h *hub) send(method, path, kind string, body []byte) {
	h.t.Helper()
	req, err := http.NewRequest(method, "http://"+h.host+path, bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := tr.RoundTrip(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		msg, _ := io.ReadAll(res.Body)
		h.t.Fatalf("%s %s: %s: %s", method, path, res.Status, msg)
	}
}

func (h *hub) blob(repo string, raw []byte) v1.Descriptor {
	h.t.Helper()
	d := v1.Descriptor{Digest: sum(raw), Size: int64(len(raw))}
	h.send(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+d.Digest.String(), "application/octet-stream", raw)
	return d
}

// push stores an image of plain tars, as gzip, and returns its descriptor.
func (h *hub) push(ref string, config v1.ConfigFile, tars ...[]byte) v1.Descriptor {
	h.t.Helper()
	repo, tag, _ := strings.Cut(ref, ":")
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	config.RootFS = v1.RootFS{Type: "layers", DiffIDs: config.RootFS.DiffIDs}
	named := config.RootFS.DiffIDs != nil
	for i, raw := range tars {
		packed := gzipped(h.t, raw)
		if i%2 == 1 {
			packed = zstded(h.t, raw)
		}
		d := h.blob(repo, packed)
		d.MediaType = types.OCILayer
		m.Layers = append(m.Layers, d)
		if !named {
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, sum(raw))
		}
	}
	if config.OS == "" {
		config.OS, config.Architecture = "linux", runtime.GOARCH
	}
	m.Config = h.blob(repo, encode(h.t, config))
	m.Config.MediaType = types.OCIConfigJSON
	return h.manifest(repo, tag, types.OCIManifestSchema1, m)
}

func (h *hub) manifest(repo, tag string, kind types.MediaType, m any) v1.Descriptor {
	h.t.Helper()
	raw := encode(h.t, m)
	h.send(http.MethodPut, "/v2/"+repo+"/manifests/"+tag, string(kind), raw)
	return v1.Descriptor{MediaType: kind, Digest: sum(raw), Size: int64(len(raw))}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func openStore(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "images"), MinFree: -1, Grace: -1}
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(s.path("tmp")); len(left) > 0 {
			t.Errorf("left in tmp: %v", left)
		}
	})
	return s
}

func trusting(h *hub) func(*Config) {
	return func(c *Config) { c.Insecure = append(c.Insecure, h.host) }
}

// look returns the kind, mode and content of each path of a tree.
func look(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += " " + string(raw)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			what = "-> " + to
		}
		out[rel] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func want(t testing.TB, got, want map[string]string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
