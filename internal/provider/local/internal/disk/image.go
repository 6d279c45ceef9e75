package disk

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// HasImages reports whether there is an image store.
func (s *Store) HasImages() bool { return s.images != nil }

var errNoImages = fmt.Errorf("%w: images", sandbox.ErrUnsupported)

// ResolveImage returns an image that is stored, or pulls it.
func (s *Store) ResolveImage(ctx context.Context, ref string) (*Image, error) {
	if s.images == nil {
		return nil, errNoImages
	}
	img, err := s.images.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &Image{Layers: img.Layers, Command: img.Command, Env: img.Env, Workdir: img.Workdir}, nil
}

// ImportImage implements sandbox.Importer.
func (s *Store) ImportImage(ctx context.Context, path, ref string) error {
	if s.images == nil {
		return errNoImages
	}
	_, err := s.images.Load(ctx, "tar:"+path, ref, nil)
	return err
}

// Images implements sandbox.Importer.
func (s *Store) Images(_ context.Context, prefix string) ([]sandbox.ImageInfo, error) {
	if s.images == nil {
		return nil, errNoImages
	}
	list := []sandbox.ImageInfo{}
	for _, m := range s.images.List() {
		if strings.HasPrefix(m.Ref, prefix) {
			list = append(list, sandbox.ImageInfo{Ref: m.Ref, Size: m.Size, Created: m.Pulled})
		}
	}
	return list, nil
}

// DeleteImage implements sandbox.Importer.
func (s *Store) DeleteImage(_ context.Context, ref string) error {
	if s.images == nil {
		return errNoImages
	}
	_, err := s.images.Remove(ref)
	if errors.Is(err, image.ErrNotFound) {
		return fmt.Errorf("%w: %w", sandbox.ErrNotFound, err)
	}
	return err
}
