package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// HasImages reports whether there is an image store.
func (s *Store) HasImages() bool { return s.images != nil }

// Images returns the images of disks.
func (s *Store) Images() Images { return Images{s.images, s.cfg.ImageLayers, s.baseIdentity} }

// Images stores images for owners. Without a store its methods fail.
type Images struct {
	store *image.Store
	// layers lists the image layers that an owner's disks use.
	layers func(owner string) ([]string, error)
	base   func() string // identity of the root filesystem without an image
}

var errNoImages = fmt.Errorf("%w: images", sandbox.ErrUnsupported)

// Resolve returns a stored image, or pulls it, for an owner.
func (m Images) Resolve(ctx context.Context, ref, owner string) (*Image, error) {
	if m.store == nil {
		return nil, errNoImages
	}
	img, err := m.store.Resolve(charge(ctx, func() ([]string, error) { return m.layers(owner) }), ref)
	if err != nil {
		return nil, err
	}
	return &Image{Layers: img.Layers, Command: img.Command, Env: img.Env, Workdir: img.Workdir}, nil
}

// packages is the list of the host's packages, which changes with them.
const packages = "/var/lib/dpkg/status"

// baseIdentity changes when the base or the packages of the host change.
func (s *Store) baseIdentity() string {
	id := filepath.Base(s.root.Base)
	if st, err := os.Stat(packages); err == nil {
		id += fmt.Sprintf("-%d-%d", st.Size(), st.ModTime().UnixNano())
	}
	return id
}

// Describe returns the configuration of an image for an owner. With fresh, it asks the registry for the current image.
func (m Images) Describe(ctx context.Context, ref, owner string, fresh bool) (sandbox.ImageConfig, error) {
	if ref == "" {
		return sandbox.ImageConfig{Digest: m.base()}, nil
	}
	if m.store == nil {
		return sandbox.ImageConfig{}, errNoImages
	}
	ctx = charge(ctx, func() ([]string, error) { return m.layers(owner) })
	img, err := m.store.Resolve(ctx, ref)
	if err == nil && fresh && img.CanPull() {
		img, err = m.store.Pull(ctx, ref, nil)
	}
	return sandbox.ImageConfig{Digest: img.Digest, Env: img.Env, Workdir: img.Workdir, User: img.User}, err
}

// charge passes on the budget of a call. Owned returns the layers that count for the caller already.
func charge(ctx context.Context, owned func() ([]string, error)) context.Context {
	budget := sandbox.BudgetOf(ctx)
	if budget == nil {
		return ctx
	}
	return image.WithCharge(ctx, image.Charge{Take: budget, Owned: func() (map[string]bool, error) {
		dirs, err := owned()
		return image.IDs(dirs), err
	}})
}

// layersOf returns the folders of the layers of images whose reference starts with a prefix.
func (m Images) layersOf(prefix string) (dirs []string) {
	for _, img := range m.store.List() {
		if strings.HasPrefix(img.Ref, prefix) {
			dirs = append(dirs, img.Layers...)
		}
	}
	return dirs
}

// Use returns the size of the images that an owner's disks use, and of those whose reference starts with a prefix.
func (m Images) Use(owner, prefix string) (int64, error) {
	if m.store == nil {
		return 0, errNoImages
	}
	dirs, err := m.layers(owner)
	if err != nil {
		return 0, err
	}
	return m.store.Footprint(append(dirs, m.layersOf(prefix)...)), nil
}

// Sweep removes unused images and layers in the background.
func (m Images) Sweep() {
	if m.store != nil {
		m.store.Sweep()
	}
}

// Import implements sandbox.Importer.
func (m Images) Import(ctx context.Context, path, ref string) error {
	if m.store == nil {
		return errNoImages
	}
	// The imported images of an owner have a common prefix; see List.
	prefix := ref[:strings.LastIndexByte(ref, '/')+1]
	if prefix != "" {
		ctx = charge(ctx, func() ([]string, error) { return m.layersOf(prefix), nil })
	} else {
		ctx = charge(ctx, func() ([]string, error) { return nil, nil })
	}
	_, err := m.store.Load(ctx, "tar:"+path, ref, nil)
	return err
}

// List implements sandbox.Importer.
func (m Images) List(_ context.Context, prefix string) ([]sandbox.ImageInfo, error) {
	if m.store == nil {
		return nil, errNoImages
	}
	list := []sandbox.ImageInfo{}
	for _, img := range m.store.List() {
		if strings.HasPrefix(img.Ref, prefix) {
			list = append(list, sandbox.ImageInfo{Ref: img.Ref, Size: img.Size, Created: img.Pulled})
		}
	}
	return list, nil
}

// Delete implements sandbox.Importer.
func (m Images) Delete(_ context.Context, ref string) error {
	if m.store == nil {
		return errNoImages
	}
	_, err := m.store.Remove(ref)
	if errors.Is(err, image.ErrNotFound) {
		return fmt.Errorf("%w: %w", sandbox.ErrNotFound, err)
	}
	return err
}
