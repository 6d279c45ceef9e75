package docker_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// testOthersDisks: the disk of another owner's snapshot is an image of the engine, but cannot be used by its name or ID. An
// image cannot imitate the snapshot of another owner.
func testOthersDisks(h *hub) {
	ann := h.create(sandbox.Spec{Owner: "ann"})
	h.wantOutput(ann.ID, map[string]string{"echo private >/home/gem/secret && echo ok": "ok\n"})
	if _, err := h.Snapshot(h.t.Context(), ann.ID, "mine"); err != nil {
		h.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("ann"))
	tag := "cove-" + docker.Instance(h.cfg) + "/" + hex.EncodeToString(sum[:8]) + ":mine"
	id := strings.TrimPrefix(strings.TrimSpace(h.r.Run(h.t, nil, "image", "inspect", "--format", "{{.Id}}", tag)), "sha256:")
	for _, image := range []string{tag, "localhost/" + tag, "docker.io/" + tag, "evil.example/x" + tag, id,
		"sha256:" + id, id[:12], id[:8], "sha256:" + id[:12],
		strings.TrimSuffix(tag, ":mine") + "@sha256:" + id} {
		sb, err := h.Create(h.t.Context(), sandbox.Spec{Owner: "bob", Image: image})
		if err == nil {
			h.t.Errorf("image %q of bob's sandbox: got %q of ann's disk, want an error", image, h.sh(sb.ID, "cat /home/gem/secret"))
			continue
		}
		if !errors.Is(err, sandbox.ErrInvalid) {
			h.t.Errorf("image %q: got %v, want %v", image, err, sandbox.ErrInvalid)
		}
	}
	// An image that is not the disk of a sandbox can be used by its ID.
	tiny := strings.TrimSpace(h.r.Run(h.t, nil, "image", "inspect", "--format", "{{.Id}}", tinyImage))
	if !strings.HasPrefix(tiny, "sha256:") {
		tiny = "sha256:" + tiny
	}
	h.create(sandbox.Spec{Owner: "bob", Image: tiny})
	if err := h.DeleteSnapshot(h.t.Context(), "ann", "mine"); err != nil {
		h.t.Error(err)
	}
}

// testHostileImage: an image can replace neither the first process nor the mounts of the hub, and leaves nothing behind.
func testHostileImage(h *hub) {
	const script = "#!/bin/sh\n(id -u; cat /proc/self/status) >/run/cove-control/planted\n"
	for name, changes := range map[string][]string{
		"program":    {"VOLUME /run/bin"},
		"one":        {"VOLUME /run/bin/cove-container"},
		"payload":    {"VOLUME /run/bin/payload"},
		"hub":        {"VOLUME /run/cove"},
		"dots":       {"VOLUME /tmp/../run/bin"},
		"control":    {"VOLUME /run/cove-control"},
		"above":      {"VOLUME /run"},
		"entrypoint": {`ENTRYPOINT ["/bin/evil"]`, `CMD ["/bin/evil"]`, "USER 0:0", "WORKDIR /run/cove-control"},
		"variables": {"ENV LD_PRELOAD=/bin/evil", "ENV PATH=/evil:/bin", "ENV GODEBUG=madvdontneed=1",
			"ENV COVE_LISTEN=tcp:127.0.0.1:1", "ENV HOME=/run/cove-control"},
		"labels": {"LABEL io.cove.hub=" + docker.Instance(h.cfg), "LABEL io.cove.id=sb-0000000000000000",
			"LABEL io.cove.owner=ann", "LABEL io.cove.snapshot={\"name\":\"mine\",\"owner\":\"ann\"}",
			"LABEL io.cove.base={}"},
	} {
		h.t.Run(name, func(t *testing.T) {
			image := "cove-test/hostile-" + name + ":1"
			args := []string{"import"}
			for _, c := range changes {
				args = append(args, "-c", c)
			}
			h.r.Run(t, plantedRoot(t, map[string]string{"run/bin/cove-container": script, "run/bin/payload": script,
				"bin/evil": script, "evil/id": script}), append(args, "-", image)...)
			defer h.r.Run(t, nil, "rmi", "-f", image)
			volumes := h.r.Run(t, nil, "volume", "ls", "-q")
			sb, err := h.Create(t.Context(), sandbox.Spec{Name: "hostile-" + name, Owner: "bob", Image: image, NoRoot: true})
			if planted, _ := filepath.Glob(filepath.Join(h.cfg.Dir, "containers", "*", "control", "planted")); len(planted) > 0 {
				text, _ := os.ReadFile(planted[0])
				t.Errorf("a program of the image replaced a program of the hub: %.200q", text)
			}
			if err == nil {
				if out, err := h.request(sb.ID, 0, "/run", "id -u; grep ^NoNewPrivs /proc/self/status"); out != "1000\nNoNewPrivs:\t1\n" {
					t.Errorf("got %q, %v, want the user of the sandbox, which cannot become root", out, err)
				}
				if err := h.Delete(t.Context(), sb.ID); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrNotReady) {
				t.Errorf("got %v, want it rejected as invalid or not ready", err)
			}
			if list, err := h.Snapshots(t.Context(), ""); err != nil || len(list) > 0 {
				t.Errorf("got snapshots %v and error %v, want none", list, err)
			}
			if after := h.r.Run(t, nil, "volume", "ls", "-q"); after != volumes {
				t.Errorf("got volumes %q, want the previous ones, %q", after, volumes)
			}
		})
	}
}

// plantedRoot is a root filesystem with additional files.
func plantedRoot(t *testing.T, files map[string]string) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for r := tar.NewReader(tinyRoot(t, "planted")); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = w.WriteHeader(h)
		}
		if err == nil {
			_, err = io.Copy(w, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}
