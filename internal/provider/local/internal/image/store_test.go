package image

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

type counter struct {
	mu sync.Mutex
	m  map[string]int
}

func (c *counter) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[string]int{}
	}
	c.m[key]++
}

func (c *counter) most() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.m {
		n = max(n, v)
	}
	return n
}

func config() v1.ConfigFile {
	return v1.ConfigFile{Config: v1.Config{Entrypoint: []string{"/server"}, Cmd: []string{"-v"},
		Env: []string{"A=1", "B=x=y", "broken"}, WorkingDir: "/srv", User: "app"}}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	low, high := tarOf(t, file("low", "1"), file("both", "1")), tarOf(t, file("both", "2"), file(".wh.low", ""))
	d := h.push("team/app:1", config(), low, high)
	ref := h.host + "/team/app:1"
	var last, total int64
	img, err := s.Pull(t.Context(), ref, func(done, of int64) { last, total = done, of })
	if err != nil {
		t.Fatal(err)
	}
	if img.Digest != d.Digest.String() || img.Ref != ref || img.Workdir != "/srv" || img.User != "app" || img.Size != 3 ||
		!slices.Equal(img.Command, []string{"/server", "-v"}) || fmt.Sprint(img.Env) != "map[A:1 B:x=y]" {
		t.Errorf("got %+v, want what was pushed", img)
	}
	if last != total || total == 0 {
		t.Errorf("progress: got %d of %d at the end, want all", last, total)
	}
	if len(img.Layers) != 2 {
		t.Fatalf("layers: got %v, want 2", img.Layers)
	}
	want(t, look(t, img.Layers[0]), map[string]string{"both": "-rw-r--r-- 2", "low": "Dc---------"})
	want(t, look(t, img.Layers[1]), map[string]string{"both": "-rw-r--r-- 1", "low": "-rw-r--r-- 1"})

	// Stored images are available without the registry, also after a restart.
	h.before = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusTeapot); return true }
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, trusting(h), func(c *Config) { c.Dir = s.cfg.Dir })
	again, err := s.Resolve(t.Context(), ref)
	if err != nil || fmt.Sprint(again.Layers) != fmt.Sprint(img.Layers) {
		t.Errorf("second resolve: got %+v, %v, want %+v", again, err, img)
	}
	if list := s.List(); len(list) != 1 || list[0].Ref != ref {
		t.Errorf("list: got %+v, want only %s", list, ref)
	}
}

func TestPullFollowsTheTag(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	h.push("app:1", config(), tarOf(t, file("v", "1")))
	ref := h.host + "/app:1"
	first, err := s.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	h.push("app:1", config(), tarOf(t, file("v", "2")))
	same, err := s.Resolve(t.Context(), ref)
	if err != nil || same.Digest != first.Digest {
		t.Errorf("resolve of a moved tag: got %s, %v, want %s", same.Digest, err, first.Digest)
	}
	moved, err := s.Pull(t.Context(), ref, nil)
	if err != nil || moved.Digest == first.Digest {
		t.Errorf("pull of a moved tag: got %s, %v, want another than that", moved.Digest, err)
	}
	pinned, err := s.Resolve(t.Context(), h.host+"/app@"+first.Digest)
	if err != nil || pinned.Layers[0] != first.Layers[0] {
		t.Errorf("by digest: got %+v, %v, want the layers %v", pinned, err, first.Layers)
	}
}

// TestLeftovers: what a killed process leaves does not count.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	if err := errors.Join(os.MkdirAll(s.path("tmp", "layer-1", rootDir), 0o700),
		os.WriteFile(s.path("images", "junk.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.cfg); !errors.Is(err, sandbox.ErrInUse) {
		t.Errorf("a second one got %v, want %v", err, sandbox.ErrInUse)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, func(c *Config) { c.Dir = s.cfg.Dir })
	if left, _ := os.ReadDir(s.path("tmp")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if len(s.List()) != 0 {
		t.Errorf("list %v", s.List())
	}
}

func TestBrokenTransferIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	raw := tarOf(t, file("f", strings.Repeat("x", 100)))
	h.push("app:1", config(), raw)
	packed := gzipped(t, raw)
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		h.blobs.mu.Lock()
		n := h.blobs.m[sum(packed).Hex]
		h.blobs.mu.Unlock()
		if n != 1 || !strings.HasSuffix(r.URL.Path, sum(packed).String()) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(packed)))
		w.Write(packed[:len(packed)/2])
		return true
	}
	if _, err := s.Resolve(t.Context(), h.host+"/app:1"); err != nil || h.blobs.most() != 2 {
		t.Errorf("got %v after %d attempts, want success after 2", err, h.blobs.most())
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	layer := tarOf(t, file("f", "123456"))
	h.push("good:1", config(), layer)
	wrong := config()
	wrong.RootFS.DiffIDs = []v1.Hash{sum([]byte("other"))}
	h.push("changed:1", wrong, layer)
	other := config()
	other.OS, other.Architecture = "linux", "s390x"
	d := h.push("foreign:1", other, layer)
	d.Platform = &v1.Platform{OS: "linux", Architecture: "s390x"}
	h.manifest("foreign", "all", types.OCIImageIndex,
		v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{d}})
	h.push("empty:1", config())
	h.push("big:1", config(), layer, tarOf(t, file("g", "1234567")))
	bad := config()
	bad.RootFS.DiffIDs = []v1.Hash{{Algorithm: "sha256", Hex: "../../../../etc"}}
	h.push("path:1", bad, layer)
	h.push("many:1", v1.ConfigFile{RootFS: v1.RootFS{DiffIDs: []v1.Hash{sum(layer), sum(layer)}}}, layer)
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/v2/secret/") {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
	for name, c := range map[string]struct {
		ref  string
		want error
		says string
	}{
		"unknown":           {h.host + "/none:1", ErrNotFound, "check its name"},
		"unknown tag":       {h.host + "/good:2", ErrNotFound, "check its name"},
		"secret":            {h.host + "/secret:1", ErrDenied, "docker login"},
		"changed":           {h.host + "/changed:1", ErrInvalid, "digest"},
		"foreign":           {h.host + "/foreign:1", ErrPlatform, "s390x"},
		"foreign index":     {h.host + "/foreign:all", ErrPlatform, "linux/s390x"},
		"empty":             {h.host + "/empty:1", ErrInvalid, "no layers"},
		"big":               {h.host + "/big:1", ErrTooLarge, ""},
		"bad ID":            {h.host + "/path:1", ErrInvalid, "config"},
		"numbers":           {h.host + "/many:1", ErrInvalid, "number of layers"},
		"no reference":      {"Not A Ref", ErrInvalid, "use one like"},
		"path":              {"oci:/etc", ErrInvalid, "use an image of a registry"},
		"archive":           {"tar:/etc/passwd", sandbox.ErrUnsupported, "use an image of a registry"},
		"no TLS, private":   {"127.0.0.1:1/x:1", ErrDenied, "operator can allow"},
		"imported, missing": {"imported.invalid/0/none:1", ErrNotFound, "not stored"},
		"unreachable":       {"registry.test/x:1", ErrRegistry, "check the name"},
		"private with name": {"localhost:1/x:1", ErrDenied, "operator can allow"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, trusting(h), func(c *Config) { c.MaxSize = 1000; c.MaxFiles = 1 })
			if name == "changed" || name == "numbers" {
				s.cfg.MaxFiles = 100
			}
			_, err := s.Resolve(t.Context(), c.ref)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.says)
			}
			if name == "big" {
				if left, _ := os.ReadDir(s.path("layers")); len(left) > 0 {
					t.Errorf("left %v", left)
				}
			}
		})
	}
}

// TestUnexpectedReply: invalid replies are reported as errors of the registry.
func TestUnexpectedReply(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push("app:1", config(), tarOf(t, file("f", "x")))
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			io.WriteString(w, "sign in at the captive portal")
			return true
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q", "http://"+h.host+"/token"))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	if _, err := openStore(t, trusting(h)).Resolve(t.Context(), h.host+"/app:1"); !errors.Is(err, sandbox.ErrUpstream) {
		t.Errorf("got %v, want %v", err, sandbox.ErrUpstream)
	}
}

func TestIndexAndLogin(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	d := h.push("app:own", config(), tarOf(t, file("f", "x")))
	d.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	foreign := h.push("app:foreign", v1.ConfigFile{OS: "linux", Architecture: "mips"}, tarOf(t, file("f", "y")))
	foreign.Platform = &v1.Platform{OS: "linux", Architecture: "mips"}
	h.manifest("app", "all", types.OCIImageIndex, v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{foreign, d}})
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if user, pass, _ := r.BasicAuth(); user != "me" || pass != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
	login := filepath.Join(t.TempDir(), "config.json")
	s := openStore(t, trusting(h), func(c *Config) { c.AuthFile = login })
	if _, err := s.Resolve(t.Context(), h.host+"/app:all"); !errors.Is(err, ErrDenied) {
		t.Errorf("without a login: %v, want %v", err, ErrDenied)
	}
	raw := fmt.Sprintf(`{"auths":{"https://%s/v1/":{"auth":%q},"other":{}}}`, h.host, base64.StdEncoding.EncodeToString([]byte("me:secret")))
	if err := os.WriteFile(login, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := s.Resolve(t.Context(), h.host+"/app:all")
	if err != nil || img.Digest != d.Digest.String() {
		t.Errorf("got %+v, %v, want digest %s", img, err, d.Digest)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	var used atomic.Value // the store prunes in the background, too
	used.Store([]string(nil))
	s := openStore(t, trusting(h), func(c *Config) { c.Used = func() ([]string, error) { return used.Load().([]string), nil } })
	base, own := tarOf(t, file("base", "12")), tarOf(t, file("own", "345"))
	h.push("a:1", config(), base, own)
	h.push("b:1", config(), base)
	a, err := s.Resolve(t.Context(), h.host+"/a:1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Resolve(t.Context(), h.host+"/b:1")
	if err != nil {
		t.Fatal(err)
	}
	used.Store([]string{a.Layers[0]})
	if n, err := s.Remove(a.Ref); n != 0 || err != nil {
		t.Errorf("while it is used: got %d freed, %v, want 0", n, err)
	}
	used.Store([]string(nil))
	if n, err := s.Prune(); n != 3 || err != nil {
		t.Errorf("after the use: got %d freed, %v, want 3", n, err)
	}
	if _, err := os.Stat(a.Layers[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("own layer: %v, want %v", err, os.ErrNotExist)
	}
	want(t, look(t, b.Layers[0]), map[string]string{"base": "-rw-r--r-- 12"})
	if _, err := s.Remove(a.Ref); !errors.Is(err, ErrNotFound) {
		t.Errorf("again: %v, want %v", err, ErrNotFound)
	}
	if n, err := s.Remove(b.Ref); n != 2 || err != nil {
		t.Errorf("got %d freed, %v, want 2", n, err)
	}
	if left, _ := os.ReadDir(s.path("layers")); len(left) != 0 || len(s.List()) != 0 {
		t.Errorf("got layers %v and images %v, want none", left, s.List())
	}
}

func TestGraceKeepsResolvedLayers(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h), func(c *Config) { c.Grace = 0 })
	h.push("a:1", config(), tarOf(t, file("f", "1")))
	img, err := s.Resolve(t.Context(), h.host+"/a:1")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Remove(img.Ref); n != 0 || err != nil {
		t.Errorf("within the grace period: got %d freed, %v, want 0", n, err)
	}
	if _, err := os.Stat(img.Layers[0]); err != nil {
		t.Error(err)
	}
}

func TestSpace(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h), func(c *Config) { c.MinFree = 1 << 60 })
	h.push("a:1", config(), tarOf(t, file("f", "1")))
	_, err := s.Resolve(t.Context(), h.host+"/a:1")
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, sandbox.ErrExhausted) || !strings.Contains(err.Error(), "delete images") {
		t.Errorf("got %v, want %v with advice", err, ErrNoSpace)
	}
}

func TestRepeatedAndOpaqueLayers(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	a, b, clean := tarOf(t, file("a", "1")), tarOf(t, file("b", "1")), tarOf(t, file(markOpaque, ""), file("c", "1"))
	h.push("again:1", config(), a, b, a)
	h.push("clean:1", config(), a, clean, b)
	again, err := s.Resolve(t.Context(), h.host+"/again:1")
	if err != nil || len(again.Layers) != 2 || !strings.Contains(again.Layers[0], sum(a).Hex) {
		t.Errorf("a repeated layer: got %v, %v, want it once, on top", again.Layers, err)
	}
	only, err := s.Resolve(t.Context(), h.host+"/clean:1")
	if err != nil || len(only.Layers) != 2 || !strings.Contains(only.Layers[1], sum(clean).Hex) {
		t.Errorf("an opaque layer: got %v, %v, want nothing below it", only.Layers, err)
	}
}

// TestLayerIsNotGivenByName: a caller that names a stored layer, but does not have its
// content, does not get it.
func TestLayerIsNotGivenByName(t *testing.T) {
	t.Parallel()
	private, evil := newHub(t), newHub(t)
	s := openStore(t, trusting(private), trusting(evil))
	secret := tarOf(t, file("key", "of another tenant"))
	private.push("secret/app:1", config(), secret)
	img, err := s.Pull(t.Context(), private.host+"/secret/app:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	named := config()
	id := filepath.Base(filepath.Dir(img.Layers[0]))
	named.RootFS.DiffIDs = []v1.Hash{{Algorithm: "sha256", Hex: id}}
	for _, h := range []*hub{private, evil} {
		h.push("evil/app:1", named, tarOf(t, file("bait", "x")))
		if got, err := s.Pull(t.Context(), h.host+"/evil/app:1", nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("an image that only names the layer: got %+v, %v, want %v", got, err, ErrInvalid)
		}
		// A caller with the content gets the layer without another proof.
		h.push("honest/app:1", config(), secret)
		for range 2 {
			if _, err := s.Pull(t.Context(), h.host+"/honest/app:1", nil); err != nil {
				t.Errorf("an image that has the layer: %v", err)
			}
		}
	}
	evil.blobs.mu.Lock()
	defer evil.blobs.mu.Unlock()
	if n := evil.blobs.m[sum(gzipped(t, secret)).Hex]; n != 1 {
		t.Errorf("downloads of the layer: got %d, want 1", n)
	}
}
