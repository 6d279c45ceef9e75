package activity

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// Limits of pictures. The oldest are removed first.
const (
	maxPictures = 40        // of one record
	maxPicture  = 256 << 10 // bytes of one
	jpg         = ".jpg"
)

func (s *Store) picturesDir(id string) string { return filepath.Join(s.cfg.Dir, id+".pictures") }

func (s *Store) picturePath(id string, entry int64) string {
	return filepath.Join(s.picturesDir(id), strconv.FormatInt(entry, 10)+jpg)
}

// savePictures adds pictures to a record. It ignores data of a sandbox that does not start like a
// picture. The lock is held.
func (s *Store) savePictures(id string, pictures map[int64][]byte) error {
	for entry, b := range pictures {
		if len(b) > maxPicture || !bytes.HasPrefix(b, []byte("\xff\xd8\xff")) {
			continue
		}
		if err := os.MkdirAll(s.picturesDir(id), 0o700); err != nil {
			return err
		}
		err := atomicfile.Replace(s.picturePath(id, entry), atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
			_, err := f.Write(b)
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.prunePictures(id)
}

// prunePictures deletes the oldest pictures of a record that has too many.
func (s *Store) prunePictures(id string) error {
	files, err := os.ReadDir(s.picturesDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var entries []int64
	for _, f := range files {
		if n, err := strconv.ParseInt(strings.TrimSuffix(f.Name(), jpg), 10, 64); err == nil {
			entries = append(entries, n)
		}
	}
	slices.Sort(entries)
	for _, n := range entries[:max(0, len(entries)-maxPictures)] {
		err = errors.Join(err, os.Remove(s.picturePath(id, n)))
	}
	return err
}

// remove deletes the files of a record.
func (s *Store) remove(id string) error {
	return errors.Join(os.Remove(s.path(id)), os.RemoveAll(s.picturesDir(id)))
}

// PictureIn selects a picture.
type PictureIn struct {
	ID    string `path:"id" doc:"ID of the sandbox"`
	Entry int64  `path:"entry" doc:"ID of the entry"`
}

// Picture returns the picture of an entry. It is untrusted: browsers interpret it only as a JPEG.
func (s *Store) Picture(ctx context.Context, in PictureIn) (*op.Blob, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(ctx, in.ID); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(s.picturePath(in.ID, in.Entry))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, op.Errorf(op.NotFound, "entry %d has no picture; only the latest pictures are kept", in.Entry)
	}
	if err != nil {
		return nil, err
	}
	return &op.Blob{Type: "image/jpeg", Size: int64(len(b)), Body: io.NopCloser(bytes.NewReader(b)), Header: map[string]string{
		"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox",
	}}, nil
}
