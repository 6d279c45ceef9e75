package disk

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// Export writes a read-only disk as an image with a configuration. It contains the layers of the sandbox and its image,
// and never programs of the host.
func (s *Store) Export(ctx context.Context, w io.Writer, d Disk, config image.Export) error {
	for _, parts := range s.parts(d) {
		config.Layers = append(config.Layers, func() (io.ReadCloser, error) { return pack(ctx, parts), nil })
	}
	return s.images.Save(ctx, w, config)
}

// part is a folder that becomes a part of an image's layer.
type part struct {
	dir, target string
	owner       image.Owner
}

// parts lists the parts of each layer of the image, lowest first.
func (s *Store) parts(d Disk) (layers [][]part) {
	owner := s.ownerInside()
	if d.Image != nil {
		for _, dir := range slices.Backward(d.Image.Layers) {
			layers = append(layers, []part{{dir, "/", owner}})
		}
	}
	targets, names := s.trees(d)
	for _, l := range d.Layers {
		var one []part
		for i, t := range targets {
			if dir := s.layers.Path(l, names[i]); tree.Exists(dir) {
				one = append(one, part{dir, t, owner})
			}
		}
		layers = append(layers, one)
	}
	return layers
}

// ownerInside maps the owner of a file on disk to its owner inside.
func (s *Store) ownerInside() image.Owner {
	switch base := s.owner(); {
	case base < 0:
		return func(int, int) (int, int) { return isolate.UID, isolate.GID }
	case base > 0:
		inside := func(id int) int {
			if id < base || id >= base+IDRange {
				return IDRange - 2 // nobody
			}
			return id - base
		}
		return func(uid, gid int) (int, int) { return inside(uid), inside(gid) }
	}
	return nil
}

// pack returns the tar of several folders, written while it is read.
func pack(ctx context.Context, parts []part) io.ReadCloser {
	return pipe(func(w io.Writer) error {
		out := tar.NewWriter(w)
		for _, p := range parts {
			if err := p.write(ctx, out); err != nil {
				return err
			}
		}
		return out.Close()
	})
}

// write adds one folder, below its target.
func (p part) write(ctx context.Context, out *tar.Writer) error {
	packed := pipe(func(w io.Writer) error {
		_, err := image.Tar(ctx, w, p.dir, p.owner)
		return err
	})
	defer packed.Close()
	in := tar.NewReader(packed)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		h.Name = p.below(h.Name)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = p.below(h.Linkname)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

// below puts a name under the target and keeps the slash that marks a folder.
func (p part) below(name string) string {
	to := strings.TrimPrefix(path.Join(p.target, name), "/")
	if strings.HasSuffix(name, "/") {
		to += "/"
	}
	return to
}

// piped is the reading end of a pipe. Its Close waits for the writer to end.
type piped struct {
	*io.PipeReader
	ended chan struct{}
}

// pipe runs write in the background, until it has ended or the reader is closed.
func pipe(write func(io.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	p := piped{r, make(chan struct{})}
	go func() {
		defer close(p.ended)
		w.CloseWithError(write(w))
	}()
	return p
}

func (p piped) Close() error {
	err := p.PipeReader.Close()
	<-p.ended
	return err
}
