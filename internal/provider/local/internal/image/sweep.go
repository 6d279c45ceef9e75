package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// sweeper schedules the removal of unused layers and images in the background.
type sweeper struct {
	wg  *sync.WaitGroup
	run func()

	mu     sync.Mutex
	timer  *time.Timer // nil: no sweep is scheduled
	at     time.Time
	plans  int // number of scheduled sweeps
	closed bool
}

// after schedules a sweep, unless an earlier one is scheduled.
func (w *sweeper) after(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now().Add(d)
	if w.closed || w.timer != nil && w.at.Before(at) {
		return
	}
	w.stop()
	w.wg.Add(1)
	w.at = at
	w.plans++
	this := w.plans
	w.timer = time.AfterFunc(d, func() {
		defer w.wg.Done()
		w.mu.Lock()
		if w.plans == this {
			w.timer = nil
		}
		closed := w.closed
		w.mu.Unlock()
		if !closed {
			w.run()
		}
	})
}

// stop cancels a scheduled sweep. The caller holds the lock.
func (w *sweeper) stop() {
	if w.timer != nil && w.timer.Stop() {
		w.wg.Done()
	}
	w.timer = nil
}

func (w *sweeper) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.stop()
}

// Sweep removes unused layers, and unused pulled images that exceed Cache, in the background.
func (s *Store) Sweep() { s.sweeper.after(0) }

// sweep removes unused layers and images.
func sweep(s *Store) {
	_, err := s.Prune()
	if err = errors.Join(evict(s), err); err != nil {
		s.cfg.Log.Warn("cannot remove unused images; the next removal retries", "error", err)
	}
}

// used lists the layer folders of sandboxes and snapshots.
func (c *Config) used() (map[string]bool, error) {
	used := map[string]bool{}
	if c.Used == nil {
		return used, nil
	}
	paths, err := c.Used()
	if err != nil {
		return nil, fmt.Errorf("list the layers in use: %w", err)
	}
	for _, p := range paths {
		used[filepath.Clean(p)] = true
	}
	return used, nil
}

// evict removes the least recently used unused images until the remaining ones fit into the cache.
func evict(s *Store) error {
	used, err := s.cfg.used()
	if err != nil {
		return err
	}
	var errs []error
	refs, later := excess(s, used)
	if later {
		s.sweeper.after(s.cfg.Grace)
	}
	for _, ref := range refs {
		if err := s.forget(ref); err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		_, err := s.Prune()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// excess lists the unused images that do not fit into the cache. Later reports whether others are kept temporarily because
// they were returned recently.
func excess(s *Store, used map[string]bool) (refs []string, later bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type unused struct {
		ref  string
		last time.Time
		size int64
	}
	var list []unused
	for ref, rec := range s.images {
		last, inUse := rec.Pulled, !rec.cached()
		for _, id := range rec.Layers {
			if at, ok := s.handed[id]; ok && at.After(last) {
				last = at
			}
			inUse = inUse || s.pins[id] > 0
		}
		based := !slices.ContainsFunc(rec.Layers, func(id string) bool { return !used[s.path("layers", id, rootDir)] })
		if !inUse && !based {
			list = append(list, unused{ref, last, rec.Size})
		}
	}
	slices.SortFunc(list, func(a, b unused) int { return b.last.Compare(a.last) })
	var kept int64
	for _, u := range list {
		if kept += u.size; kept <= s.cfg.Cache {
			continue
		}
		if time.Since(u.last) < s.cfg.Grace {
			later = true
			continue
		}
		refs = append(refs, u.ref)
	}
	return refs, later
}

// forget removes the record of an image.
func (s *Store) forget(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.images[key]; !ok {
		return fmt.Errorf("%w: %s: %w", ErrNotFound, key, errNotStored)
	}
	if err := os.Remove(s.recordPath(key)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove image %s: %w", key, err)
	}
	delete(s.images, key)
	return nil
}
