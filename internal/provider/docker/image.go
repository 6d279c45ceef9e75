package docker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	engine "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// base describes the program of the original image of a disk. Snapshots store it, because the image of a snapshot
// describes the hub's first process.
type base struct {
	Image   string   `json:"image,omitempty"` // its reference, as specs name it
	Command []string `json:"command,omitempty"`
	Env     []string `json:"env,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	// Checked: the image has a health check, which must not run.
	Checked bool `json:"checked,omitempty"`
	// Committed: the disk started from an image that the hub has committed.
	Committed bool `json:"committed,omitempty"`
}

// source is the initial content of a disk. Its image is pinned.
type source struct {
	Image string // the engine's ID
	Base  base
	From  string // the snapshot; empty if it is none
}

// images manages images and snapshots of the engine. Pinned images are not removed.
type images struct {
	*session
	// making is held for reading until a new or found image is pinned, and for writing while unused images are removed.
	making sync.RWMutex

	mu       sync.Mutex
	pins     map[string]int
	reserved map[string]bool // tags of snapshots in progress
}

// digestOf returns the digest of an image ID, whose prefix differs between responses of engines.
func digestOf(id string) string { return strings.TrimPrefix(id, "sha256:") }

func (i *images) pin(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pins[digestOf(id)]++
}

func (i *images) unpin(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id = digestOf(id)
	if i.pins[id]--; i.pins[id] <= 0 {
		delete(i.pins, id)
	}
}

func (i *images) pinned(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pins[digestOf(id)] > 0
}

// reserve reserves the tag of a snapshot. It returns false if the tag is reserved.
func (i *images) reserve(tag string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reserved[tag] {
		return false
	}
	i.reserved[tag] = true
	return true
}

func (i *images) release(tag string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.reserved, tag)
}

// findSource finds the initial content of a disk and pins it.
func (i *images) findSource(ctx context.Context, spec sandbox.Spec) (source, error) {
	if spec.Snapshot == "" {
		return i.findImage(ctx, spec.Image)
	}
	src, _, err := i.findSnapshot(ctx, spec.Owner, spec.Snapshot)
	if err != nil {
		return source{}, err
	}
	if spec.Image != "" && spec.Image != src.Base.Image {
		i.unpin(src.Image)
		return source{}, fmt.Errorf("%w: snapshot %q has image %q, not %q", sandbox.ErrInvalid, spec.Snapshot, src.Base.Image, spec.Image)
	}
	return src, nil
}

// isDisk matches the names of disks of sandboxes, which only their owners may use. An image that is pulled under such a
// name would be taken for a snapshot.
var isDisk = regexp.MustCompile(`cove-[0-9a-f]{8}(/|-deleted)`)

// mounted are the folders that the hub mounts. Volumes of an image must not cover them.
var mounted = []string{isolate.Programs, containerinit.HubDir, containerinit.ControlDir, path.Dir(control.ServerSocket)}

// checkFound rejects an image that was found by its ID if it is the disk of a sandbox, or if the ID is abbreviated: disks
// could be guessed in a few attempts. It also rejects images with volumes that cover mounts of the hub.
func checkFound(name string, got client.ImageInspectResult) error {
	id, isHub := strings.TrimPrefix(name, "sha256:"), false
	if got.Config != nil {
		_, isHub = got.Config.Labels[labelHub]
		for volume := range got.Config.Volumes {
			for _, dir := range mounted {
				if at := path.Clean("/" + volume); at == dir || strings.HasPrefix(at, dir+"/") {
					return fmt.Errorf("%w: image %q has the volume %q, which conflicts with a mount of sandboxes", sandbox.ErrInvalid, name, volume)
				}
			}
		}
	}
	if full := digestOf(got.ID); strings.HasPrefix(full, id) && (isHub || id != full) {
		return fmt.Errorf("%w: no such image: %q; use a name or all 64 digits of an ID", sandbox.ErrInvalid, name)
	}
	return nil
}

// findImage finds an image on the engine, or pulls it.
func (i *images) findImage(ctx context.Context, name string) (source, error) {
	ref := name
	if ref == "" {
		ref = i.cfg.Image
	} else if isDisk.MatchString(ref) || strings.HasPrefix(ref, "sha256:") && len(ref) != len("sha256:")+2*sha256.Size {
		return source{}, fmt.Errorf("%w: no such image: %q; use the field snapshot for a snapshot", sandbox.ErrInvalid, ref)
	}
	got, err := i.engine.ImageInspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		if err := i.pull(ctx, ref); err != nil {
			return source{}, err
		}
		got, err = i.engine.ImageInspect(ctx, ref)
	}
	if err != nil {
		if ctx.Err() != nil {
			return source{}, context.Cause(ctx)
		}
		return source{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	if name != "" {
		if err := checkFound(name, got); err != nil {
			return source{}, err
		}
	}
	i.pin(got.ID)
	src := source{Image: got.ID, Base: base{Image: name}}
	if c := got.Config; c != nil {
		src.Base.Command, src.Base.Env, src.Base.Workdir = slices.Concat(c.Entrypoint, c.Cmd), c.Env, c.WorkingDir
		src.Base.Checked = c.Healthcheck != nil && len(c.Healthcheck.Test) > 0
	}
	return src, nil
}

func (i *images) pull(ctx context.Context, ref string) error {
	pulled, err := i.engine.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err == nil {
		err = errors.Join(pulled.Wait(ctx), pulled.Close())
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err), errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err):
		return fmt.Errorf("%w: no such image: %q: %w", sandbox.ErrInvalid, ref, err)
	}
	return fmt.Errorf("%w: pull image %q: %w", sandbox.ErrInvalid, ref, err)
}

// commit stores the current disk of a sandbox as an image with labels, and pins it. The engine pauses running programs
// during the commit. Without a tag, the image is removed when no container uses it.
func (i *images) commit(ctx context.Context, b *box, tag string, labels map[string]string) (string, error) {
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	call, cancel := steady(ctx)
	defer cancel()
	from := b.rec.Base
	from.Committed = true
	origin, err := encodeLabel(from)
	if err != nil {
		return "", err
	}
	// The labels of the container are inherited; they describe the sandbox.
	all := map[string]string{labelHub: i.instance, labelBase: origin, labelSandbox: "", labelID: "", labelName: "",
		labelOwner: "", labelSnapshot: ""}
	maps.Copy(all, labels)
	changes := []string{} // not all engines use the labels of Config
	for k, v := range all {
		changes = append(changes, "LABEL "+k+"="+v)
	}
	i.making.RLock()
	defer i.making.RUnlock()
	made, err := i.engine.ContainerCommit(call, b.rec.Container, client.ContainerCommitOptions{Reference: tag,
		Comment: "cove", Changes: changes, Config: &engine.Config{}})
	if err != nil {
		return "", fmt.Errorf("commit container: %w", err)
	}
	i.pin(made.ID)
	return made.ID, nil
}

// encodeLabel encodes a value as a label of an image. Base64 avoids quotes and spaces, which engines parse differently.
func encodeLabel(v any) (string, error) {
	data, err := json.Marshal(v)
	return base64.RawURLEncoding.EncodeToString(data), err
}

// decodeLabel decodes a value of encodeLabel, or plain JSON of earlier releases.
func decodeLabel(label string, v any) error {
	if strings.HasPrefix(label, "{") {
		return json.Unmarshal([]byte(label), v)
	}
	data, err := base64.RawURLEncoding.DecodeString(label)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// collect removes unused images of the hub.
func (i *images) collect(ctx context.Context) {
	ctx, cancel := steady(ctx)
	defer cancel()
	i.making.Lock()
	defer i.making.Unlock()
	for i.collectOnce(ctx) {
	}
}

// collectOnce reports whether more images may be removable: a parent image can be removed only after its children.
func (i *images) collectOnce(ctx context.Context) (more bool) {
	list, err := i.engine.ImageList(ctx, client.ImageListOptions{Filters: i.own()})
	if err != nil {
		i.cfg.Log.Warn("cannot list unused images; the next deletion retries", "error", err)
		return false
	}
	removed, refused := false, false
	for _, img := range list.Items {
		if i.pinned(img.ID) || slices.ContainsFunc(img.RepoTags, i.isNameInUse) {
			continue
		}
		_, err := i.engine.ImageRemove(ctx, img.ID, client.ImageRemoveOptions{PruneChildren: true})
		switch {
		case err == nil:
			removed = true
		case errdefs.IsConflict(err): // in use
			refused = true
		case !errdefs.IsNotFound(err): // it was removed with another image
			i.cfg.Log.Warn("cannot remove an unused image; the next deletion retries", "image", img.ID, "error", err)
		}
	}
	return removed && refused
}

// tail is a writer that keeps the last bytes.
type tail struct {
	max  int64
	data []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.data = append(t.data, b...)
	if extra := int64(len(t.data)) - t.max; extra > t.max {
		t.data = append(t.data[:0], t.data[extra:]...)
	}
	return len(b), nil
}

func (t *tail) bytes() []byte {
	if extra := int64(len(t.data)) - t.max; extra > 0 {
		return t.data[extra:]
	}
	return t.data
}

var _ io.Writer = (*tail)(nil)
