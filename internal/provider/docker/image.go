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

// base is what the image that a disk began with says about its program. Snapshots keep it,
// because the image of a snapshot describes our own first process.
type base struct {
	Image   string   `json:"image,omitempty"` // its reference, as specs name it
	Command []string `json:"command,omitempty"`
	Env     []string `json:"env,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	// Checked says that the image has a health check, which must not run.
	Checked bool `json:"checked,omitempty"`
	// Committed says that the disk began with one that we committed.
	Committed bool `json:"committed,omitempty"`
}

// source is what a disk starts from. Its image is pinned.
type source struct {
	Image string // the engine's ID
	Base  base
	From  string // the snapshot, if it is one
}

// images is the engine's images and snapshots. It keeps images that are about to be used from being collected.
type images struct {
	*session
	// making is held for reading while an image is made or found, until it is pinned, and for
	// writing while unused ones are removed.
	making sync.RWMutex

	mu       sync.Mutex
	pins     map[string]int
	reserved map[string]bool // tags of snapshots that are being taken
}

// digestOf is the part of an image's ID that every answer of an engine has.
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

// reserve reports whether nobody else is taking a snapshot of that tag.
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

// findSource finds what the disk of a spec starts from, and pins it.
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

// isDisk matches the names that hubs give to the disks of sandboxes. These are their owners' alone; and an image that is
// pulled under such a name would be taken for a snapshot.
var isDisk = regexp.MustCompile(`cove-[0-9a-f]{8}(/|-deleted)`)

// inside are the folders that the hub mounts, which an image must not cover.
var inside = []string{isolate.Programs, containerinit.HubDir, containerinit.ControlDir, path.Dir(control.ServerSocket)}

// checkFound refuses an image that was found by its ID if that is the disk of a sandbox, or not all of the ID: every disk on the
// engine could be guessed in a few attempts. It also refuses one that would cover what the hub mounts.
func checkFound(name string, got client.ImageInspectResult) error {
	id, isHub := strings.TrimPrefix(name, "sha256:"), false
	if got.Config != nil {
		_, isHub = got.Config.Labels[labelHub]
		for volume := range got.Config.Volumes {
			for _, dir := range inside {
				if at := path.Clean("/" + volume); at == dir || strings.HasPrefix(at, dir+"/") {
					return fmt.Errorf("%w: image %q has the volume %q, where a sandbox has its own files", sandbox.ErrInvalid, name, volume)
				}
			}
		}
	}
	if full := digestOf(got.ID); strings.HasPrefix(full, id) && (isHub || id != full) {
		return fmt.Errorf("%w: no such image: %q; use a name, or all 64 digits of an ID", sandbox.ErrInvalid, name)
	}
	return nil
}

// findImage finds an image on the engine, which pulls it if need be.
func (i *images) findImage(ctx context.Context, name string) (source, error) {
	ref := name
	if ref == "" {
		ref = i.cfg.Image
	} else if isDisk.MatchString(ref) || strings.HasPrefix(ref, "sha256:") && len(ref) != len("sha256:")+2*sha256.Size {
		return source{}, fmt.Errorf("%w: no such image: %q; for a snapshot, name it as such", sandbox.ErrInvalid, ref)
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

// commit keeps the present disk of a sandbox as an image with labels, and pins it. The
// engine pauses what runs meanwhile. Without a tag, the image lives as long as containers
// use it.
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
	changes := []string{} // not all engines look at the labels of a configuration
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

// encodeLabel writes a value as an image's label: engines read quotes and spaces in different ways.
func encodeLabel(v any) (string, error) {
	data, err := json.Marshal(v)
	return base64.RawURLEncoding.EncodeToString(data), err
}

// decodeLabel reads a value of encodeLabel, or plain JSON, as images of earlier releases have it.
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

// collect removes images of ours that nothing uses.
func (i *images) collect(ctx context.Context) {
	ctx, cancel := steady(ctx)
	defer cancel()
	i.making.Lock()
	defer i.making.Unlock()
	for i.collectOnce(ctx) {
	}
}

// collectOnce reports whether there may be more to remove: an image that others are based on can be removed only after them.
func (i *images) collectOnce(ctx context.Context) (more bool) {
	list, err := i.engine.ImageList(ctx, client.ImageListOptions{Filters: i.own()})
	if err != nil {
		i.cfg.Log.Warn("cannot list unused images; the next deletion tries again", "error", err)
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
		case !errdefs.IsNotFound(err): // not removed with another
			i.cfg.Log.Warn("cannot remove an unused image; the next deletion tries again", "image", img.ID, "error", err)
		}
	}
	return removed && refused
}

// tail keeps the end of what is written to it.
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
