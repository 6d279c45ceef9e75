package docker_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// registry has one image, whose layer it sends on demand.
type registry struct {
	address string
	asked   chan struct{} // receives when a client requests the layer
	send    chan struct{} // closed when it may be sent
	blobs   map[string][]byte
	index   []byte
}

const manifestType = "application/vnd.docker.distribution.manifest.v2+json"

func startRegistry(t *testing.T, r rig) *registry {
	t.Helper()
	root, err := io.ReadAll(tinyRoot(t, t.Name())) // the engine keeps layers that it has
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := gzip.NewWriter(&layer)
	if _, err := w.Write(root); err != nil {
		t.Fatal(err)
	}
	w.Close()
	reg := &registry{asked: make(chan struct{}, 100), send: make(chan struct{}), blobs: map[string][]byte{}}
	encode := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	put := func(data []byte, kind string) map[string]any {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
		reg.blobs[digest] = data
		return map[string]any{"mediaType": kind, "size": len(data), "digest": digest}
	}
	config := encode(map[string]any{"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(root))}}})
	reg.index = encode(map[string]any{"schemaVersion": 2, "mediaType": manifestType,
		"config": put(config, "application/vnd.docker.container.image.v1+json"),
		"layers": []any{put(layer.Bytes(), "application/vnd.docker.image.rootfs.diff.tar.gzip")}})
	l, err := r.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reg.address = l.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(reg.serve)}
	done := make(chan struct{})
	go func() { server.Serve(l); close(done) }()
	t.Cleanup(func() { server.Close(); <-done })
	return reg
}

// await waits until the layer is requested.
func (r *registry) await(t *testing.T) {
	t.Helper()
	testenv.Poll(t, "the engine requests the layer", func() bool { return len(r.asked) > 0 })
	<-r.asked
}

func (r *registry) serve(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == "/v2/":
	case strings.Contains(req.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256(r.index)))
		w.Write(r.index)
	case strings.Contains(req.URL.Path, "/blobs/"):
		_, digest, _ := strings.Cut(req.URL.Path, "/blobs/")
		data, ok := r.blobs[digest]
		if !ok {
			http.NotFound(w, req)
			return
		}
		if !json.Valid(data) { // the layer
			r.asked <- struct{}{}
			select {
			case <-r.send:
			case <-req.Context().Done():
				return
			}
		}
		w.Write(data)
	default:
		http.NotFound(w, req)
	}
}

// testSlowImage: a create that waits for an image can be canceled, deleted or killed without leaving anything behind. Other
// creates that wait for the image succeed.
func testSlowImage(h *hub) {
	reg := startRegistry(h.t, h.r)
	image := reg.address + "/cove-test/slow:1"
	h.t.Cleanup(func() { h.r.Run(h.t, nil, "rmi", "-f", image) })
	type result struct {
		sandbox.Sandbox
		err error
	}
	create := func(ctx context.Context, name string) chan result {
		out := make(chan result, 1)
		go func() {
			sb, err := h.Create(ctx, sandbox.Spec{Name: name, Image: image})
			out <- result{sb, err}
		}()
		return out
	}

	ctx, cancel := context.WithCancel(h.t.Context())
	canceled := create(ctx, "canceled")
	reg.await(h.t)
	cancel()
	if got := <-canceled; !errors.Is(got.err, context.Canceled) {
		h.t.Errorf("canceled: got %v, want %v", got.err, context.Canceled)
	}
	if left := h.r.left(h.t, h.cfg); len(left) > 0 {
		h.t.Errorf("canceled: left behind: %q", left)
	}

	patient, deleted := create(h.t.Context(), "patient"), create(h.t.Context(), "deleted")
	var creating []sandbox.Sandbox
	testenv.Poll(h.t, "both are listed", func() bool {
		var err error
		creating, err = h.List(h.t.Context(), sandbox.Filter{States: []sandbox.State{sandbox.Creating}})
		return err == nil && len(creating) == 2
	})
	for _, sb := range creating {
		if sb.Spec.Name == "deleted" {
			if err := h.Delete(h.t.Context(), sb.ID); err != nil {
				h.t.Error(err)
			}
		}
	}
	if got := <-deleted; got.err == nil {
		h.t.Errorf("deleted: got %+v, want an error", got.Sandbox)
	}
	close(reg.send)
	got := <-patient
	if got.err != nil {
		h.t.Fatal(got.err)
	}
	h.wantOutput(got.ID, map[string]string{"id -u": "1000\n"})
	if n := len(strings.Fields(h.r.Run(h.t, nil, "ps", "-aq", "--filter", "label=io.cove.hub="+docker.Instance(h.cfg)))); n != 1 {
		h.t.Errorf("%d containers, want 1", n)
	}
	if err := h.Delete(h.t.Context(), got.ID); err != nil { // before its image
		h.t.Error(err)
	}
}

// testKilledPulling: a hub that is killed while it waits for an image leaves nothing behind.
func testKilledPulling(h *hub) {
	reg := startRegistry(h.t, h.r)
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	_, kill := startDying(h.t, plan{Config: h.cfg, Specs: []sandbox.Spec{{Name: "slow", Image: reg.address + "/cove-test/slow:1"}}})
	reg.await(h.t)
	kill()
	h.open()
	if all, err := h.List(h.t.Context(), sandbox.Filter{}); err != nil || len(all) != 0 {
		h.t.Errorf("got %v, %v, want none", all, err)
	}
}
