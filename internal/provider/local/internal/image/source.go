package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Bounds on the description of an image.
const (
	maxJSON   = 8 << 20
	maxLayers = 200 // overlays accept 500, and a sandbox adds its own
)

// source returns the parts of images.
type source interface {
	// manifest returns the manifest of an image or index, without verification.
	manifest(ctx context.Context, d v1.Descriptor) ([]byte, error)
	// blob returns a stored config or layer, without verification.
	blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)
}

// found is an image that can be downloaded.
type found struct {
	digest string
	config v1.Config
	layers []blob // lowest first
}

// blob is a layer that can be downloaded.
type blob struct {
	id   v1.Hash // of the tar
	size int64   // as transferred
	from string  // its source
	// scope is a repository whose readers may access all its layers; empty if every source must prove that it has the
	// content.
	scope string
	open  func(context.Context) (io.ReadCloser, error)
}

// find follows a descriptor to the image for this platform.
func find(ctx context.Context, src source, d v1.Descriptor) (found, error) {
	// Indexes may contain indexes; valid images have only a few levels.
	for range 4 {
		raw, err := src.manifest(ctx, d)
		if err != nil {
			return found{}, err
		}
		if err := match(raw, d.Digest); err != nil {
			return found{}, fmt.Errorf("manifest: %w", err)
		}
		var kind struct {
			MediaType types.MediaType `json:"mediaType"`
			Manifests json.RawMessage `json:"manifests"`
		}
		if err := json.Unmarshal(raw, &kind); err != nil {
			return found{}, fmt.Errorf("%w: read manifest: %w", ErrInvalid, err)
		}
		if !kind.MediaType.IsIndex() && kind.Manifests == nil {
			return describe(ctx, src, d.Digest, raw)
		}
		var index v1.IndexManifest
		if err := json.Unmarshal(raw, &index); err != nil {
			return found{}, fmt.Errorf("%w: read index: %w", ErrInvalid, err)
		}
		if d, err = pick(index.Manifests); err != nil {
			return found{}, err
		}
	}
	return found{}, fmt.Errorf("%w: indexes are nested too deep", ErrInvalid)
}

// pick selects the image for this platform.
func pick(list []v1.Descriptor) (v1.Descriptor, error) {
	var have []string
	var best *v1.Descriptor
	for i, d := range list {
		p := d.Platform
		if p == nil {
			// An archive may omit the platform; the config has it.
			if len(list) == 1 || d.MediaType.IsIndex() {
				return d, nil
			}
			continue
		}
		if p.OS == "linux" && p.Architecture == runtime.GOARCH {
			// The lowest variant runs everywhere.
			if best == nil || p.Variant < best.Platform.Variant {
				best = &list[i]
			}
		}
		if p.OS != "unknown" && len(have) < 20 {
			have = append(have, path.Join(p.OS, p.Architecture, p.Variant))
		}
	}
	if best == nil {
		return v1.Descriptor{}, fmt.Errorf("%w: it is available for %s, and this machine is linux/%s; use "+
			"another image", ErrPlatform, strings.Join(have, ", "), runtime.GOARCH)
	}
	return *best, nil
}

// describe reads the manifest and the config of one image.
func describe(ctx context.Context, src source, digest v1.Hash, raw []byte) (found, error) {
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return found{}, fmt.Errorf("%w: read manifest: %w", ErrInvalid, err)
	}
	if !m.Config.MediaType.IsConfig() && m.Config.MediaType != "" || m.Config.Digest.Hex == "" {
		return found{}, fmt.Errorf("%w: %q is not the config of an image; use an image, not another kind of artifact",
			ErrInvalid, m.Config.MediaType)
	}
	config, err := fetch(ctx, src, m.Config)
	if err != nil {
		return found{}, fmt.Errorf("config: %w", err)
	}
	f := found{digest: digest.String()}
	ids, err := f.configure(config)
	if err != nil {
		return found{}, err
	}
	// Layers and IDs belong together in order.
	if len(ids) != len(m.Layers) {
		return found{}, fmt.Errorf("%w: manifest and config disagree on the number of layers", ErrInvalid)
	}
	for i, l := range m.Layers {
		f.layers = append(f.layers, blob{id: ids[i], size: l.Size, open: func(ctx context.Context) (io.ReadCloser, error) {
			return src.blob(ctx, l)
		}})
	}
	return f, nil
}

// configure reads the config and returns the IDs of the layers.
func (f *found) configure(raw []byte) ([]v1.Hash, error) {
	var c v1.ConfigFile
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("%w: read config: %w", ErrInvalid, err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("%w: it is for %s/%s, and this machine is linux/%s; use another image", ErrPlatform,
			c.OS, c.Architecture, runtime.GOARCH)
	}
	if len(c.RootFS.DiffIDs) > maxLayers {
		return nil, fmt.Errorf("%w: it has %d layers, more than %d; squash it", ErrTooLarge, len(c.RootFS.DiffIDs), maxLayers)
	}
	for _, id := range c.RootFS.DiffIDs {
		if id.Algorithm != "sha256" || len(id.Hex) != 64 || strings.Trim(id.Hex, "0123456789abcdef") != "" {
			return nil, fmt.Errorf("%w: %q is not the ID of a layer", ErrInvalid, id)
		}
	}
	f.config = c.Config
	return c.RootFS.DiffIDs, nil
}

// fetch reads and checks a small blob.
func fetch(ctx context.Context, src source, d v1.Descriptor) ([]byte, error) {
	r, err := src.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := readJSON(r)
	if err != nil {
		return nil, err
	}
	return raw, match(raw, d.Digest)
}

func readJSON(r io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxJSON+1))
	if err == nil && len(raw) > maxJSON {
		err = fmt.Errorf("%w: its manifest or config is larger than %d MiB", ErrTooLarge, maxJSON>>20)
	}
	return raw, err
}

// errDigest means that content does not match its digest.
var errDigest = errors.New("content does not match its digest; it was damaged or changed in transit, retry")

func match(raw []byte, want v1.Hash) error {
	got, _, err := v1.SHA256(strings.NewReader(string(raw)))
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: %w: got %s, want %s", ErrInvalid, errDigest, got, want)
	}
	return nil
}

// image returns what the config says of an image.
func (f *found) image() Image {
	c := f.config
	img := Image{Digest: f.digest, Workdir: c.WorkingDir, User: c.User, Command: slices.Concat(c.Entrypoint, c.Cmd)}
	env := map[string]string{}
	for _, e := range c.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k != "" && !strings.ContainsRune(e, 0) {
			env[k] = v
		}
	}
	if len(env) > 0 {
		img.Env = env
	}
	return img
}
