package local

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/image"
	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Saver writes images; *image.Store does.
type Saver interface {
	Save(ctx context.Context, w io.Writer, e image.Export) error
}

// Export implements sandbox.Exporter. Without an image the host's programs, which
// the sandbox sees, are part of it.
func (p *Provider) Export(ctx context.Context, id string, w io.Writer) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return err
	}
	if p.cfg.Saver == nil {
		row.Release()
		return fmt.Errorf("%w: export", sandbox.ErrUnsupported)
	}
	disk, err := p.take(ctx, row)
	b := &box{dir: row.Data.dir, rec: row.Data.rec}
	row.Release()
	if err != nil {
		return err
	}
	defer p.giveBack(disk)
	b.rec.Layers = append(slices.Clone(disk.Layers), "") // nothing is written above
	return p.cfg.Saver.Save(ctx, w, p.export(ctx, b))
}

// export describes the image. The environment of the spec is not in it: there
// may be secrets.
func (p *Provider) export(ctx context.Context, b *box) image.Export {
	spec, img := b.rec.Sandbox.Spec, Image{}
	if b.rec.Image != nil {
		img = *b.rec.Image
	}
	e := image.Export{Command: slices.Clone(img.Command), Env: img.Env, Workdir: cmp.Or(spec.Workdir, img.Workdir, isolate.Home),
		User: fmt.Sprintf("%d:%d", isolate.UID, isolate.GID)}
	if len(spec.Command) > 0 {
		e.Command = slices.Clone(spec.Command)
	}
	if len(e.Command) > 0 {
		e.Command = append(e.Command, spec.Args...)
	}
	for _, parts := range p.parts(b) {
		e.Layers = append(e.Layers, func() (io.ReadCloser, error) { return pack(ctx, parts), nil })
	}
	return e
}

// part is a folder that becomes a part of an image's layer.
type part struct {
	dir, target string
	owner       image.Owner
}

// parts lists what the layers of the image consist of, lowest first.
func (p *Provider) parts(b *box) (layers [][]part) {
	ours := p.ownerInside()
	if b.rec.Image != nil {
		for _, dir := range slices.Backward(b.rec.Image.Layers) {
			layers = append(layers, []part{{dir, "/", ours}})
		}
	} else {
		base := []part{{filepath.Join(p.cfg.Dir, "base", b.rec.Base), "/", ours}}
		for _, t := range p.root.Trees {
			base = append(base, part{t, t, nil})
		}
		layers = append(layers, base)
	}
	targets, names := p.trees(b)
	for _, l := range b.rec.Layers[:len(b.rec.Layers)-1] {
		var one []part
		for i, t := range targets {
			if dir := p.store.path(l, names[i]); exists(dir) {
				one = append(one, part{dir, t, ours})
			}
		}
		layers = append(layers, one)
	}
	return layers
}

// ownerInside tells who owns inside what has an owner on disk.
func (p *Provider) ownerInside() image.Owner {
	switch base := p.owner(); {
	case base < 0:
		return func(int, int) (int, int) { return isolate.UID, isolate.GID }
	case base > 0:
		inside := func(id int) int {
			if id < base || id >= base+idRange {
				return idRange - 2 // nobody
			}
			return id - base
		}
		return func(uid, gid int) (int, int) { return inside(uid), inside(gid) }
	}
	return nil
}

// pack writes folders as one tar while it is read.
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

// piped is the reading end of a pipe and ends its writer.
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

// ImageLayers lists the folders of images that sandboxes and snapshots stand on,
// for whoever keeps the images. It fails rather than leave one out.
func (p *Provider) ImageLayers() ([]string, error) {
	var used []string
	dirs, err := filepath.Glob(p.dir("*"))
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		rec, err := load(d)
		if err != nil && !notThere(err) {
			return nil, err
		}
		if rec.Image != nil {
			used = append(used, rec.Image.Layers...)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.snaps {
		if s != nil && s.Image != nil {
			used = append(used, s.Image.Layers...)
		}
	}
	slices.Sort(used)
	return slices.Compact(used), nil
}
