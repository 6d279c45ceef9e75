package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
)

// Export is an image to write.
type Export struct {
	// Layers are tars, lowest first, as Tar writes them. Each is read once.
	Layers  []func() (io.ReadCloser, error)
	Command []string
	Env     map[string]string
	Workdir string
	User    string
	Tag     string    // a reference such as team/name:1; none if empty
	Created time.Time // omitted if zero
}

// Save writes an image as a tar that is an OCI layout and that docker load accepts.
// Layers are first compressed into temporary files of the store, because a tar states
// sizes before contents.
func (s *Store) Save(ctx context.Context, w io.Writer, e Export) (err error) {
	tag := ""
	if e.Tag != "" {
		if tag, err = s.name(e.Tag); err != nil {
			return err
		}
	}
	if len(e.Layers) == 0 || len(e.Layers) > maxLayers {
		return fmt.Errorf("%w: %d layers; 1 to %d are supported", ErrInvalid, len(e.Layers), maxLayers)
	}
	tmp, err := os.MkdirTemp(s.path("tmp"), "save-")
	if err != nil {
		return explainNoSpace(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	layers, ids, err := s.compressLayers(ctx, tmp, e.Layers)
	if err != nil {
		return err
	}
	return e.write(ctx, &bundle{tw: tar.NewWriter(w), tmp: tmp, seen: map[string]bool{}}, tag, layers, ids)
}

// compressLayers compresses layers into files named for their digests.
func (s *Store) compressLayers(ctx context.Context, tmp string,
	layers []func() (io.ReadCloser, error)) (out []v1.Descriptor, ids []v1.Hash, err error) {
	for i, open := range layers {
		d, id, err := s.compressLayer(ctx, tmp, open)
		if err != nil {
			return nil, nil, fmt.Errorf("save layer %d: %w", i, explainNoSpace(err))
		}
		out, ids = append(out, d), append(ids, id)
	}
	return out, ids, nil
}

func (s *Store) compressLayer(ctx context.Context, tmp string, open func() (io.ReadCloser, error)) (d v1.Descriptor,
	id v1.Hash, err error) {
	if err := s.checkSpace(0); err != nil {
		return d, id, err
	}
	in, err := open()
	if err != nil {
		return d, id, err
	}
	defer in.Close()
	f, err := os.CreateTemp(tmp, "layer-")
	if err != nil {
		return d, id, err
	}
	defer f.Close()
	packed, plain := sha256.New(), sha256.New()
	z, err := gzip.NewWriterLevel(io.MultiWriter(f, packed), gzip.BestSpeed)
	if err != nil {
		return d, id, err
	}
	watch := &meter{r: in, ctx: ctx, report: func(int64, int64) {}}
	if _, err := io.Copy(io.MultiWriter(z, plain), watch); err != nil {
		return d, id, err
	}
	if err := z.Close(); err != nil {
		return d, id, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return d, id, err
	}
	d = v1.Descriptor{MediaType: types.OCILayer, Size: size, Digest: digest(packed.Sum(nil))}
	return d, digest(plain.Sum(nil)), os.Rename(f.Name(), filepath.Join(tmp, d.Digest.Hex))
}

func digest(sum []byte) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum)} }

// bundle is the tar that is being written.
type bundle struct {
	tw   *tar.Writer
	tmp  string
	seen map[string]bool
}

func (e *Export) write(ctx context.Context, b *bundle, tag string, layers []v1.Descriptor, ids []v1.Hash) error {
	config := v1.ConfigFile{Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: e.Created},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: ids},
		Config: v1.Config{Cmd: e.Command, WorkingDir: e.Workdir, User: e.User}}
	for k, v := range e.Env {
		config.Config.Env = append(config.Config.Env, k+"="+v)
	}
	slices.Sort(config.Config.Env)
	if err := b.put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	var files []string
	for _, l := range layers {
		files = append(files, blobPath(l.Digest))
		if err := b.copy(ctx, l); err != nil {
			return err
		}
	}
	at, err := b.blob(types.OCIConfigJSON, config)
	if err != nil {
		return err
	}
	manifest, err := b.blob(types.OCIManifestSchema1,
		v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: at, Layers: layers})
	if err != nil {
		return err
	}
	manifest.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	var tags []string
	if tag != "" {
		tags = []string{tag}
		manifest.Annotations = map[string]string{refName: tag, "io.containerd.image.name": tag}
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{manifest}})
	if err != nil {
		return err
	}
	docker, err := json.Marshal([]any{map[string]any{"Config": blobPath(at.Digest), "RepoTags": tags, "Layers": files}})
	if err != nil {
		return err
	}
	if err := errors.Join(b.put("index.json", index), b.put("manifest.json", docker)); err != nil {
		return err
	}
	return b.tw.Close()
}

func (b *bundle) put(name string, content []byte) error {
	if err := b.tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := b.tw.Write(content)
	return err
}

func (b *bundle) blob(kind types.MediaType, v any) (v1.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	sum := sha256.Sum256(raw)
	d := v1.Descriptor{MediaType: kind, Size: int64(len(raw)), Digest: digest(sum[:])}
	return d, b.put(blobPath(d.Digest), raw)
}

// copy writes a compressed layer to the tar, once.
func (b *bundle) copy(ctx context.Context, d v1.Descriptor) error {
	if b.seen[d.Digest.Hex] {
		return nil
	}
	b.seen[d.Digest.Hex] = true
	f, err := os.Open(filepath.Join(b.tmp, d.Digest.Hex))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := b.tw.WriteHeader(&tar.Header{Name: blobPath(d.Digest), Mode: 0o644, Size: d.Size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(b.tw, &meter{r: f, ctx: ctx, report: func(int64, int64) {}})
	return err
}
