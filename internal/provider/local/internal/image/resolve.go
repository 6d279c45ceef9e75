package image

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// parallel is the maximum number of concurrent downloads of layers of an image.
const parallel = 3

// Resolve returns the stored image of a reference, or pulls it. It does not check whether the tag has changed; Pull does.
func (s *Store) Resolve(ctx context.Context, ref string) (Image, error) {
	key, err := s.key(ref)
	if err != nil {
		return Image{}, err
	}
	img, ok, err := s.stored(key, newAccount(ctx))
	if ok || err != nil {
		return img, err
	}
	return s.Pull(ctx, ref, nil)
}

// CanPull reports whether a registry can have a newer image of the same reference.
func (i Image) CanPull() bool { return !isLocal(i.Ref) && !isReserved(i.Ref) }

// Pull downloads the current image of a reference, except stored layers.
func (s *Store) Pull(ctx context.Context, ref string, p Progress) (Image, error) {
	key, err := s.key(ref)
	if err != nil {
		return Image{}, err
	}
	if isLocal(ref) {
		return s.Load(ctx, ref, ref, p)
	}
	c := newAccount(ctx)
	for {
		var own bool
		img, err := s.pulls.do(ctx, key, p, func(ctx context.Context, report Progress) (Image, error) {
			own = true
			f, err := s.remote(ctx, key)
			if err != nil {
				return Image{}, err
			}
			img, err := s.fetch(ctx, storedImage{Image: Image{Ref: key}}, f, report, c)
			if err != nil {
				return Image{}, explain(err, ref)
			}
			return img, nil
		})
		if err == nil {
			s.Sweep()
		}
		if err == nil && !own {
			return img, c.payFor(s, img)
		}
		if err == nil || ctx.Err() != nil || own || !isRefusal(err) {
			return img, err
		}
		// Another caller had no remaining space. This one may have.
	}
}

// Load stores an image of this machine under a reference, or under the name in it if
// that is empty. From is oci:/path of a layout, or tar:/path of what docker save or
// Save wrote. The path is opened with the rights of this process, so it must come
// from the operator.
func (s *Store) Load(ctx context.Context, from, as string, p Progress) (Image, error) {
	if !isLocal(from) {
		return Image{}, fmt.Errorf("%w: %q: use oci:/path of a layout or tar:/path of an archive", ErrInvalid, from)
	}
	c := newAccount(ctx)
	return s.pulls.do(ctx, from+"\x00"+as, p, func(ctx context.Context, report Progress) (Image, error) {
		f, tag, done, err := openLocal(ctx, from)
		if err != nil {
			return Image{}, err
		}
		defer done()
		key := as
		if as == "" {
			// Some tools store the tag without the name.
			if key = tag; !strings.ContainsAny(tag, ":/") {
				return Image{}, fmt.Errorf("%w: it has no name; specify the reference to store it under", ErrInvalid)
			}
		}
		if key != from {
			if key, err = s.name(key); err != nil {
				return Image{}, err
			}
		}
		img, err := s.fetch(ctx, storedImage{Image: Image{Ref: key}, Loaded: true}, f, report, c)
		if err != nil {
			return Image{}, err
		}
		s.Sweep() // it may have replaced another image
		return img, nil
	})
}

// key returns the key of an image in the store.
func (s *Store) key(ref string) (string, error) {
	if !isLocal(ref) {
		return s.name(ref)
	}
	if !s.cfg.LocalRefs {
		return "", fmt.Errorf("%w: %w: local files as images; use an image of a registry, or one that was imported",
			ErrInvalid, sandbox.ErrUnsupported)
	}
	return ref, nil
}

// name returns a reference in full, so that debian and docker.io/library/debian:latest
// are the same.
func (s *Store) name(ref string) (string, error) {
	r, err := s.parse(ref)
	if err != nil {
		return "", err
	}
	return r.Name(), nil
}

// fetch downloads the layers of an image and records it. If that fails, nothing of it is
// kept: no owner would be charged for it.
func (s *Store) fetch(ctx context.Context, rec storedImage, f found, report Progress, c *account) (img Image, err error) {
	defer func() {
		if err == nil {
			return
		}
		if _, perr := s.Prune(); perr != nil {
			s.cfg.Log.Warn("cannot remove layers of an image that was not stored", "ref", rec.Ref, "error", perr)
		}
	}()
	var total int64
	for _, l := range f.layers {
		if l.size < 0 || l.size > s.cfg.MaxSize-total {
			return Image{}, fmt.Errorf("%w: its layers are larger than %d MiB", ErrTooLarge, s.cfg.MaxSize>>20)
		}
		total += l.size
	}
	if err := s.checkSpace(0); err != nil {
		return Image{}, err
	}
	defer s.pin(f.layers)()
	units, err := s.getLayers(ctx, f.layers, total, report, c)
	if err != nil {
		return Image{}, err
	}
	ref := rec.Ref
	rec.Image = f.image()
	rec.Ref, rec.Pulled = ref, time.Now().UTC()
	var files int64
	var hidden bool // by a layer above
	for i, u := range slices.Backward(units) {
		rec.Size += u.Size
		files += u.Files
		// An overlay accepts a folder once. A layer that occurs again further down
		// adds nothing.
		if id := f.layers[i].id.Hex; !hidden && !slices.Contains(rec.Layers, id) {
			rec.Layers = append(rec.Layers, id)
		}
		hidden = hidden || u.Opaque
	}
	if len(rec.Layers) == 0 {
		return Image{}, fmt.Errorf("%w: it has no layers", ErrInvalid)
	}
	if rec.Size > s.cfg.MaxSize || files > s.cfg.MaxFiles {
		return Image{}, errTotal
	}
	return s.save(rec)
}

var errTotal = fmt.Errorf("%w: its layers together exceed the limit", ErrTooLarge)

// getLayers gets several layers, some at a time. The first failure ends the others.
func (s *Store) getLayers(ctx context.Context, layers []blob, total int64, report Progress, c *account) ([]layerInfo, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	units := make([]layerInfo, len(layers))
	t := tally{have: make([]int64, len(layers)), total: total, report: report}
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	var size int64
	var mu sync.Mutex
	for i, l := range layers {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			u, err := s.getLayer(ctx, l, func(done, _ int64) { t.set(i, done) }, c)
			mu.Lock()
			defer mu.Unlock()
			if size += u.Size; err == nil && size > s.cfg.MaxSize {
				err = errTotal
			}
			if err != nil {
				cancel(err)
				return
			}
			units[i] = u
			t.set(i, l.size)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return units, nil
}

// tally adds up the progress of layers.
type tally struct {
	mu     sync.Mutex
	have   []int64
	total  int64
	report Progress
}

func (t *tally) set(i int, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.have[i] = n
	var sum int64
	for _, n := range t.have {
		sum += n
	}
	t.report(sum, t.total)
}

// pin keeps layers from being removed while a pull needs them.
func (s *Store) pin(layers []blob) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range layers {
		s.pins[l.id.Hex]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range layers {
			if s.pins[l.id.Hex]--; s.pins[l.id.Hex] == 0 {
				delete(s.pins, l.id.Hex)
			}
		}
	}
}

// stored returns an image if it is stored, and counts it for the caller.
func (s *Store) stored(key string, c *account) (Image, bool, error) {
	s.mu.Lock()
	rec, ok := s.images[key]
	if !ok {
		s.mu.Unlock()
		return Image{}, false, nil
	}
	img := s.markUsed(rec)
	s.mu.Unlock()
	return img, true, c.payFor(s, img)
}

// markUsed notes that an image is about to be used. The caller holds the lock.
func (s *Store) markUsed(rec storedImage) Image {
	for _, id := range rec.Layers {
		s.handed[id] = time.Now()
	}
	return s.toImage(rec)
}

// toImage returns the image of a record, with the folders of its layers.
func (s *Store) toImage(rec storedImage) Image {
	img := rec.clone()
	for i, id := range rec.Layers {
		img.Layers[i] = filepath.Join(s.path("layers", id, rootDir))
	}
	return img
}

var errNotStored = errors.New("it is not stored here; list images to see which are")
