package cove

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/image"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// openImages opens the store that sandboxes with an image start from. It lives in
// the state folder, on the filesystem that can stack its layers.
// used tells which layers sandboxes need.
func openImages(cfg config.Cove, used func() ([]string, error), log *slog.Logger) (*image.Store, error) {
	return image.Open(image.Config{
		Dir: filepath.Join(cfg.State, "images"), Insecure: cfg.InsecureRegistries, Private: cfg.PrivateRegistries, AuthFile: cfg.RegistryAuth,
		Proxy: http.ProxyFromEnvironment, Used: used, Log: log,
	})
}

// images is the store as the provider wants it.
type images struct{ *image.Store }

// Resolve implements local.Images.
func (i images) Resolve(ctx context.Context, ref string) (local.Image, error) {
	m, err := i.Store.Resolve(ctx, ref)
	return local.Image{Layers: m.Layers, Command: m.Command, Env: m.Env, Workdir: m.Workdir}, err
}

// withImages is a provider that closes its store of images.
type withImages struct {
	*local.Provider
	store *image.Store
}

// Close implements sandbox.Provider.
func (p withImages) Close() error { return errors.Join(p.Provider.Close(), p.store.Close()) }

var _ sandbox.Provider = withImages{}

// importer is the store of a provider that has one, as the hub wants it.
func importer(p sandbox.Provider) hub.Images {
	if with, ok := p.(withImages); ok {
		return imports{with.store}
	}
	return nil
}

type imports struct{ store *image.Store }

// Import implements hub.Images.
func (i imports) Import(ctx context.Context, path, ref string) error {
	_, err := i.store.Load(ctx, "tar:"+path, ref, nil)
	return err
}

// Imported implements hub.Images.
func (i imports) Imported(prefix string) []hub.ImageInfo {
	var out []hub.ImageInfo
	for _, m := range i.store.List() {
		if strings.HasPrefix(m.Ref, prefix) {
			out = append(out, hub.ImageInfo{Ref: m.Ref, Size: m.Size, Created: m.Pulled})
		}
	}
	return out
}

// RemoveImage implements hub.Images.
func (i imports) RemoveImage(ref string) error {
	_, err := i.store.Remove(ref)
	if errors.Is(err, image.ErrNotFound) {
		return fmt.Errorf("%w: %w", sandbox.ErrNotFound, err)
	}
	return err
}
