package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// storedImage is an image as it is recorded: its layers are IDs, topmost first.
type storedImage struct {
	Image
	// Loaded says that the image came from an archive. It cannot be pulled again, so it stays
	// until it is removed.
	Loaded bool `json:"loaded,omitempty"`
}

// cached reports whether the image can be pulled again. Records of earlier versions do not say
// whether they were loaded; imported images have a registry that does not exist.
func (r storedImage) cached() bool {
	return !r.Loaded && !isLocal(r.Ref) && !isReserved(r.Ref)
}

func (r storedImage) clone() Image {
	img := r.Image
	img.Layers, img.Command, img.Env = slices.Clone(r.Layers), slices.Clone(r.Command), maps.Clone(r.Env)
	return img
}

func (s *Store) recordPath(key string) string {
	sum := sha256.Sum256([]byte(key))
	return s.path("images", hex.EncodeToString(sum[:])+".json")
}

// save records an image, in the place of an earlier one of its reference.
func (s *Store) save(rec storedImage) (Image, error) {
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return Image{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = atomicfile.Replace(s.recordPath(rec.Ref), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(raw)
		return err
	})
	if err != nil {
		return Image{}, fmt.Errorf("save image record: %w", explainNoSpace(err))
	}
	s.images[rec.Ref] = rec
	if rec.Loaded {
		return s.toImage(rec), nil // nothing is created from it yet
	}
	return s.markUsed(rec), nil
}

// loadRecords reads the records. One that cannot be used is skipped: its image can be
// pulled again.
func (s *Store) loadRecords() error {
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		file := s.path("images", e.Name())
		if atomicfile.IsTemp(e.Name()) {
			if err := os.Remove(file); err != nil {
				return err
			}
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var rec storedImage
		err = json.Unmarshal(raw, &rec)
		for _, id := range rec.Layers {
			if err == nil {
				_, err = s.readLayerInfo(id)
			}
		}
		if err == nil && s.recordPath(rec.Ref) != file {
			err = errors.New("it is the record of another image")
		}
		if err != nil {
			s.cfg.Log.Warn("skipping the record of an image that cannot be used", "record", file, "ref", rec.Ref, "error", err)
			continue
		}
		s.images[rec.Ref] = rec
	}
	return nil
}

// List returns the stored images by reference.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Image, 0, len(s.images))
	for _, rec := range s.images {
		list = append(list, s.toImage(rec))
	}
	slices.SortFunc(list, func(a, b Image) int { return strings.Compare(a.Ref, b.Ref) })
	return list
}

// Remove removes an image and unused layers. It returns the size of the removed files.
func (s *Store) Remove(ref string) (freed int64, err error) {
	key := ref
	if !isLocal(ref) {
		if key, err = s.name(ref); err != nil {
			return 0, err
		}
	}
	if err := s.forget(key); err != nil {
		return 0, err
	}
	return s.Prune()
}

// Prune removes the layers that no image has, no sandbox uses and no pull needs. It
// returns the size of their files.
func (s *Store) Prune() (freed int64, err error) {
	used, err := s.cfg.used()
	if err != nil {
		return 0, err
	}
	doomed, freed, later, err := s.moveUnused(used)
	if later {
		s.sweeper.after(s.cfg.Grace)
	}
	for _, d := range doomed {
		err = errors.Join(err, os.RemoveAll(d))
	}
	if err != nil {
		return freed, fmt.Errorf("remove layers: %w", err)
	}
	return freed, nil
}

// moveUnused moves layers to temporary folders, to be removed without the lock. Later
// reports whether others are kept for now because they were returned a moment ago.
func (s *Store) moveUnused(used map[string]bool) (doomed []string, freed int64, later bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[string]bool{}
	for _, rec := range s.images {
		for _, id := range rec.Layers {
			keep[id] = true
		}
	}
	maps.DeleteFunc(s.handed, func(_ string, at time.Time) bool { return time.Since(at) >= s.cfg.Grace })
	dir, err := os.Open(s.path("layers"))
	if err != nil {
		return nil, 0, false, err
	}
	defer dir.Close()
	ids, err := dir.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, false, err
	}
	for _, id := range ids {
		_, handed := s.handed[id]
		if keep[id] || s.pins[id] > 0 || used[s.path("layers", id, rootDir)] {
			continue
		}
		if handed {
			later = true
			continue
		}
		u, _ := s.readLayerInfo(id) // a damaged one has no known size, and is removed, too
		tmp, err := os.MkdirTemp(s.path("tmp"), "gone-")
		if err != nil {
			return doomed, freed, later, err
		}
		doomed = append(doomed, tmp)
		if err := os.Rename(s.path("layers", id), filepath.Join(tmp, id)); err != nil {
			return doomed, freed, later, err
		}
		freed += u.Size
	}
	return doomed, freed, later, nil
}
