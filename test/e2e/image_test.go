package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// A sandbox starts from an image that knows nothing of us.
func TestSandboxFromAnImage(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "ldd")
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host+"/tiny:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	layers := []map[string]string{bashFiles(t), {"etc/marker": "lower", "etc/gone": "x"}, {"etc/marker": "upper", "etc/.wh.gone": ""}}
	image := empty.Image
	for _, files := range layers {
		body := tarOf(t, files)
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = []string{"PATH=/bin", "FLAVOUR=tiny"}
	config.Config.Cmd = []string{"/bin/bash"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}

	h := serveHub(t, "--insecure-registries", host)
	for _, sandbox := range []string{"a", "b"} {
		h.must(t, "create", sandbox, "--image", host+"/tiny:1")
	}
	const look = `echo "$FLAVOUR $(</etc/marker)"; [ -e /etc/gone ] && echo not gone; [ -e /usr/bin/python3 ] && echo host; echo mine > /home/gem/note; echo $UID`
	if out := h.must(t, "exec", "a", look); out != "tiny upper\n1000\n" {
		t.Errorf("%q", out)
	}
	if out := h.must(t, "exec", "b", "cd /home/gem; echo *"); strings.Contains(out, "note") {
		t.Errorf("two sandboxes of one image share a file: %q", out)
	}
	for _, bad := range []string{host + "/none:1", "tar:/etc/passwd", "oci:/", "127.0.0.1:1/x"} {
		if _, errs, code := h.cove(t, "", "create", "c", "--image", bad); code == 0 || errs == "" {
			t.Errorf("%s: %d %s", bad, code, errs)
		}
	}
}

// bashFiles is bash with what it needs, by path in the image.
func bashFiles(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("ldd", "/bin/bash").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{"/bin/bash"}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	files := map[string]string{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(p, "/")] = string(b)
	}
	return files
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, body := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
