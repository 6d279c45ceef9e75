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

// parallel is how many layers of an image come at the same time.
const parallel = 3

// Resolve returns an image that is stored under the reference, or gets it. It
// does not ask the registry whether a tag has moved since; Pull does.
func (s *Store) Resolve(ctx context.Context, ref string) (Image, error) {
	key, err := s.key(ref)
	if err != nil {
		return Image{}, err
	}
	if img, ok := s.stored(key); ok {
		return img, nil
	}
	return s.Pull(ctx, ref, nil)
}

// Pull gets what the reference means now. Layers that are stored already are not
// transferred again.
func (s *Store) Pull(ctx context.Context, ref string, p Progress) (Image, error) {
	key, err := s.key(ref)
	if err != nil {
		return Image{}, err
	}
	if isLocal(ref) {
		return s.Load(ctx, ref, ref, p)
	}
	return s.pulls.do(ctx, key, p, func(ctx context.Context, report Progress) (Image, error) {
		f, err := s.remote(ctx, key)
		if err != nil {
			return Image{}, err
		}
		img, err := s.fetch(ctx, key, f, report)
		if err != nil {
			return Image{}, explain(err, ref)
		}
		return img, nil
	})
}

// Load stores an image of this machine, oci:/path of a layout or tar:/path of what
// docker save or Save wrote, under a reference; without one, under the name it has.
// It is the operator's: the path is opened with the rights of this process.
func (s *Store) Load(ctx context.Context, from, as string, p Progress) (Image, error) {
	if !isLocal(from) {
		return Image{}, fmt.Errorf("%w: %q: write oci:/path of a layout or tar:/path of an archive", ErrInvalid, from)
	}
	return s.pulls.do(ctx, from+"\x00"+as, p, func(ctx context.Context, report Progress) (Image, error) {
		f, tag, done, err := local(ctx, from)
		if err != nil {
			return Image{}, err
		}
		defer done()
		key := as
		if as == "" {
			// Some tools note down the tag without the name.
			if key = tag; !strings.ContainsAny(tag, ":/") {
				return Image{}, fmt.Errorf("%w: %s holds no name; give the reference to store it under", ErrInvalid, from)
			}
		}
		if key != from {
			if key, err = s.name(key); err != nil {
				return Image{}, err
			}
		}
		img, err := s.fetch(ctx, key, f, report)
		if err != nil {
			return Image{}, fmt.Errorf("load %s: %w", from, err)
		}
		return img, nil
	})
}

// key is what an image is stored under.
func (s *Store) key(ref string) (string, error) {
	if !isLocal(ref) {
		return s.name(ref)
	}
	if !s.cfg.LocalRefs {
		return "", fmt.Errorf("%w: %w: files of this machine as images; name an image of a registry, or one that the operator has loaded", ErrInvalid, sandbox.ErrUnsupported)
	}
	return ref, nil
}

// name is a reference in full, so that debian and docker.io/library/debian:latest
// are one.
func (s *Store) name(ref string) (string, error) {
	r, err := s.parse(ref)
	if err != nil {
		return "", err
	}
	return r.Name(), nil
}

// fetch obtains an image's layers and enters it.
func (s *Store) fetch(ctx context.Context, key string, f found, report Progress) (img Image, err error) {
	defer func() {
		// What is too large would be so again: nobody comes back for its layers.
		if errors.Is(err, ErrTooLarge) {
			if _, perr := s.Prune(); perr != nil {
				s.cfg.Log.Warn("cannot remove layers of an image that is too large", "ref", key, "err", perr)
			}
		}
	}()
	var total int64
	for _, l := range f.layers {
		if l.size < 0 || l.size > s.cfg.MaxSize-total {
			return Image{}, fmt.Errorf("%w: more than %d MiB are to be transferred", ErrTooLarge, s.cfg.MaxSize>>20)
		}
		total += l.size
	}
	if err := s.space(0); err != nil {
		return Image{}, err
	}
	defer s.pin(f.layers)()
	units, err := s.obtainAll(ctx, f.layers, total, report)
	if err != nil {
		return Image{}, err
	}
	rec := record{f.image()}
	rec.Ref, rec.Pulled = key, time.Now().UTC()
	var files int64
	var hidden bool // by a layer above
	for i, u := range slices.Backward(units) {
		rec.Size += u.Size
		files += u.Files
		// An overlay takes a folder once. A layer that comes again further down
		// adds nothing to what it does on top.
		if id := f.layers[i].id.Hex; !hidden && !slices.Contains(rec.Layers, id) {
			rec.Layers = append(rec.Layers, id)
		}
		hidden = hidden || u.Opaque
	}
	if len(rec.Layers) == 0 {
		return Image{}, fmt.Errorf("%w: it has no layers, so there is nothing to run", ErrInvalid)
	}
	if rec.Size > s.cfg.MaxSize || files > s.cfg.MaxFiles {
		return Image{}, errTotal
	}
	return s.enter(rec)
}

var errTotal = fmt.Errorf("%w: its layers together are beyond the limit", ErrTooLarge)

// obtainAll obtains layers, some at a time. The first failure ends the others.
func (s *Store) obtainAll(ctx context.Context, layers []blob, total int64, report Progress) ([]unit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	units := make([]unit, len(layers))
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
			u, err := s.obtain(ctx, l, func(done, _ int64) { t.set(i, done) })
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

// pin keeps layers from being removed while a pull counts on them. A failed pull
// leaves them to the next try.
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

// stored returns an image that is there.
func (s *Store) stored(key string) (Image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.images[key]
	if !ok {
		return Image{}, false
	}
	return s.hand(rec), true
}

// hand notes down that an image is about to be used. The caller holds the lock.
func (s *Store) hand(rec record) Image {
	for _, id := range rec.Layers {
		s.handed[id] = time.Now()
	}
	return s.show(rec)
}

// show returns a record's image with the layers' folders.
func (s *Store) show(rec record) Image {
	img := rec.clone()
	for i, id := range rec.Layers {
		img.Layers[i] = filepath.Join(s.path("layers", id, rootDir))
	}
	return img
}

var errNotStored = errors.New("it is not stored here; list images to see those that are")
