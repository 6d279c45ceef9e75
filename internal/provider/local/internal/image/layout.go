package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Prefixes of references to files of this machine.
const (
	layoutPrefix  = "oci:"
	archivePrefix = "tar:"
)

func isLocal(ref string) bool {
	return strings.HasPrefix(ref, layoutPrefix) || strings.HasPrefix(ref, archivePrefix)
}

// layout is an OCI layout, in a folder or in a tar.
type layout struct {
	open func(name string) (io.ReadCloser, error)
}

// refName is the annotation for the tag of an image in the index of a layout.
const refName = "org.opencontainers.image.ref.name"

// openLocal finds an image in a layout or an archive of this machine, and the tag it
// has there, if any. Done must be called after its layers have been read.
func openLocal(ctx context.Context, ref string) (f found, tag string, done func(), err error) {
	done = func() {}
	file := strings.TrimPrefix(strings.TrimPrefix(ref, layoutPrefix), archivePrefix)
	if !filepath.IsAbs(file) {
		return f, "", done, fmt.Errorf("%w: %q: an absolute path is required", ErrInvalid, ref)
	}
	var l layout
	if strings.HasPrefix(ref, layoutPrefix) {
		root, err := os.OpenRoot(file)
		if err != nil {
			return f, "", done, missing(err)
		}
		done = func() { root.Close() }
		l.open = func(name string) (io.ReadCloser, error) { return root.Open(name) }
	} else {
		a, err := openArchive(ctx, file)
		if err != nil {
			return f, "", done, missing(err)
		}
		done = func() { a.file.Close() }
		l.open = a.open
	}
	f, tag, err = l.find(ctx)
	if err != nil {
		done()
		return f, "", func() {}, err
	}
	for i := range f.layers {
		f.layers[i].from = ref
	}
	return f, tag, done, nil
}

func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

func (l layout) find(ctx context.Context) (found, string, error) {
	raw, err := l.read("index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return l.docker()
	}
	if err != nil {
		return found{}, "", err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return found{}, "", fmt.Errorf("%w: read index.json: %w", ErrInvalid, err)
	}
	d, err := pick(index.Manifests)
	if err != nil {
		return found{}, "", err
	}
	tag := d.Annotations["io.containerd.image.name"]
	if tag == "" {
		tag = d.Annotations[refName]
	}
	f, err := find(ctx, l, d)
	return f, tag, err
}

func (l layout) read(name string) ([]byte, error) {
	r, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readJSON(r)
}

func (l layout) manifest(_ context.Context, d v1.Descriptor) ([]byte, error) {
	return l.read(blobPath(d.Digest))
}

func (l layout) blob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	return l.open(blobPath(d.Digest))
}

func blobPath(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// docker finds the image in an archive of older versions of docker save, which did not
// write layouts.
func (l layout) docker() (found, string, error) {
	raw, err := l.read("manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, "", fmt.Errorf("%w: it has neither index.json nor manifest.json, so it is not an image", ErrInvalid)
	}
	if err != nil {
		return found{}, "", err
	}
	var list []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return found{}, "", fmt.Errorf("%w: read manifest.json: %w", ErrInvalid, err)
	}
	if len(list) != 1 {
		return found{}, "", fmt.Errorf("%w: it holds %d images; save only one", ErrInvalid, len(list))
	}
	config, err := l.read(list[0].Config)
	if err != nil {
		return found{}, "", err
	}
	h, _, err := v1.SHA256(strings.NewReader(string(config)))
	if err != nil {
		return found{}, "", err
	}
	f := found{digest: h.String()}
	ids, err := f.configure(config)
	if err != nil {
		return found{}, "", err
	}
	if len(ids) != len(list[0].Layers) {
		return found{}, "", fmt.Errorf("%w: manifest and config disagree on the number of layers", ErrInvalid)
	}
	for i, name := range list[0].Layers {
		r, err := l.open(name)
		if err != nil {
			return found{}, "", err
		}
		r.Close()
		var size int64
		if s, ok := r.(section); ok {
			size = s.Size()
		}
		f.layers = append(f.layers, blob{id: ids[i], size: size, open: func(context.Context) (io.ReadCloser, error) { return l.open(name) }})
	}
	tag := ""
	if len(list[0].RepoTags) > 0 {
		tag = list[0].RepoTags[0]
	}
	return f, tag, nil
}

// archive is a tar whose members can be read in any order.
type archive struct {
	file    *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string
}

// maxMembers bounds the index of an archive.
const maxMembers = 10_000

func openArchive(ctx context.Context, file string) (a *archive, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	a = &archive{file: f, members: map[string]member{}}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%w: it must be an uncompressed tar: %w", ErrInvalid, err)
		}
		if len(a.members) == maxMembers {
			return nil, fmt.Errorf("%w: more than %d files in the archive", ErrTooLarge, maxMembers)
		}
		m := member{size: h.Size}
		if m.offset, err = f.Seek(0, io.SeekCurrent); err != nil {
			return nil, err
		}
		switch h.Typeflag {
		case tar.TypeReg:
		case tar.TypeSymlink:
			m.link = path.Join(path.Dir(h.Name), h.Linkname)
		case tar.TypeLink:
			m.link = h.Linkname
		default:
			continue
		}
		a.members[path.Clean(h.Name)] = m
	}
}

func (a *archive) open(name string) (io.ReadCloser, error) {
	m, ok := a.members[path.Clean(name)]
	for range 8 {
		if !ok || m.link == "" {
			break
		}
		m, ok = a.members[path.Clean(m.link)]
	}
	if !ok || m.link != "" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return section{io.NewSectionReader(a.file, m.offset, m.size)}, nil
}

type section struct{ *io.SectionReader }

func (section) Close() error { return nil }
