package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Load creates an image from files, by path, and imports it into the node.
func (k *Kubernetes) Load(t testing.TB, name string, files map[string]string, command ...string) {
	t.Helper()
	config, layer := makeImage(t, files, command)
	manifest, _ := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	addFile(t, w, "manifest.json", 0o644, manifest)
	addFile(t, w, "config.json", 0o644, config)
	addFile(t, w, "layer.tar", 0o644, layer)
	w.Close()
	if err := k.ctr(&image, "-n", "k8s.io", "images", "import", "-"); err != nil {
		t.Fatal(err)
	}
}

func addFile(t testing.TB, w *tar.Writer, path string, mode int64, data []byte) {
	t.Helper()
	if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: mode, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
}

// makeImage returns the configuration and the layer of an image.
func makeImage(t testing.TB, files map[string]string, command []string) (config, layer []byte) {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
		t.Fatal(err)
	}
	first := map[string]string{} // the path of a source
	for path, source := range files {
		if at, ok := first[source]; ok { // one program under several names
			if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(path, "/"), Typeflag: tar.TypeLink,
				Linkname: at, Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		first[source] = strings.TrimPrefix(path, "/")
		data, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		addFile(t, w, path, 0o755, data)
	}
	w.Close()
	config, _ = json.Marshal(map[string]any{"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": command, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(out.Bytes())}}})
	return config, out.Bytes()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ImportFrom imports images of an engine into the node.
func (k *Kubernetes) ImportFrom(t testing.TB, e *Engine, images ...string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "images.tar")
	e.Run(t, nil, append([]string{"save", "-o", archive}, images...)...)
	k.Import(t, archive)
}

// ServeImage serves an image in a new registry until the test ends. The first part of the name is the registry. Downloads of
// the content wait until the gate is closed.
func (k *Kubernetes) ServeImage(t testing.TB, name string, files map[string]string, gate <-chan struct{}) {
	t.Helper()
	config, layer := makeImage(t, files, nil)
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	part := func(kind string, data []byte) map[string]any {
		return map[string]any{"mediaType": kind, "digest": digest(data), "size": len(data)}
	}
	manifest, _ := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind,
		"config": part("application/vnd.docker.container.image.v1+json", config),
		"layers": []any{part("application/vnd.docker.image.rootfs.diff.tar", layer)}})
	registry, rest, _ := strings.Cut(name, "/")
	repository, tag, _ := strings.Cut(rest, ":")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/"+repository+"/manifests/{reference}", func(w http.ResponseWriter, r *http.Request) {
		if reference := r.PathValue("reference"); reference != tag && reference != digest(manifest) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", digest(manifest))
		w.Write(manifest)
	})
	for _, data := range [][]byte{config, layer} {
		mux.HandleFunc("GET /v2/"+repository+"/blobs/"+digest(data), func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-gate:
				w.Write(data)
			case <-r.Context().Done():
			}
		})
	}
	l, err := net.Listen("tcp", net.JoinHostPort(k.host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	hosts := filepath.Join(k.Dir, "registry", registry, "hosts.toml")
	err = os.MkdirAll(filepath.Dir(hosts), 0o755)
	if err == nil {
		err = os.WriteFile(hosts, fmt.Appendf(nil,
			"server = %q\n[host.%[1]q]\ncapabilities = [\"pull\", \"resolve\"]\n", "http://"+l.Addr().String()), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
