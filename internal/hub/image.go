package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Images keeps images that tenants bring along.
type Images interface {
	// Import stores the image in a tar archive under a reference.
	Import(ctx context.Context, path, ref string) error
	// Imported lists the images whose reference begins with prefix.
	Imported(prefix string) []ImageInfo
	// RemoveImage forgets one; ErrNotFound of package sandbox if there is none.
	RemoveImage(ref string) error
}

// ImageInfo is an image that is kept.
type ImageInfo struct {
	Ref     string
	Size    int64
	Created time.Time
}

// Imported images are named imported/NAME by their owners. Their references have
// the owner's digest in them, and nobody may write such a reference out: so
// nobody reaches another's.
const (
	importedName = "imported/"
	importedRef  = "imported.invalid/"
	// maxImage bounds an archive.
	maxImage = 32 << 30
)

func importedPrefix(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return importedRef + hex.EncodeToString(sum[:16]) + "/"
}

// imageRef is the reference that an image of a request stands for.
func imageRef(owner, name string) (string, error) {
	if short, ok := strings.CutPrefix(name, importedName); ok {
		if err := sandbox.CheckName(short); err != nil {
			return "", op.Errorf(op.Invalid, "image: %w", err)
		}
		return importedPrefix(owner) + short, nil
	}
	if strings.HasPrefix(name, importedRef) {
		return "", op.Errorf(op.Invalid, "image %.60q: write imported/NAME for one that was imported", name)
	}
	return name, nil
}

// imageName shows a reference as its owner wrote it.
func imageName(ref string) string {
	if rest, ok := strings.CutPrefix(ref, importedRef); ok {
		if _, name, ok := strings.Cut(rest, "/"); ok {
			return importedName + name
		}
	}
	return ref
}

// imageOps keep images that tenants bring along.
func (h *Hub) imageOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "image_import", Route: "POST /api/v1/image/{image}", Tag: "image", MaxBody: -1, NoTool: true,
			Doc: "Keep an image from a tar archive, as export or docker save write it. Sandboxes are created from it as imported/NAME."}, h.ImportImage),
		op.New(op.Spec{Name: "image_list", Route: "GET /api/v1/image", Tag: "image", ReadOnly: true,
			Columns: []string{"name", "size", "created"},
			Doc:     "List the images that were imported."}, h.ListImages),
		op.New(op.Spec{Name: "image_delete", Route: "DELETE /api/v1/image/{image}", Tag: "image", Verb: "image rm", Destructive: true,
			Doc: "Delete an image that was imported. Sandboxes that were made from it stay as they are."}, h.DeleteImage),
	}
}

func (h *Hub) images() (Images, error) {
	if h.cfg.Images == nil || !h.cfg.Provider.Abilities().Image {
		return nil, op.Errorf(op.Invalid, "provider %s keeps no images here", h.cfg.Provider.Abilities().Provider)
	}
	return h.cfg.Images, nil
}

// ImportImageIn is an image to keep.
type ImportImageIn struct {
	Image string   `path:"image" doc:"Name to keep it under: lower-case letters, digits and -, at most 50"`
	File  *op.File `form:"file" doc:"The archive"`
}

// ImageOut is an image that was imported.
type ImageOut struct {
	Name    string    `json:"name" doc:"As sandboxes are created from it"`
	Size    int64     `json:"size" doc:"Bytes of its files"`
	Created time.Time `json:"created"`
}

// ImportImage keeps an image.
func (h *Hub) ImportImage(ctx context.Context, in ImportImageIn) (ImageOut, error) {
	p, err := h.images()
	if err != nil {
		return ImageOut{}, err
	}
	op.CallOf(ctx).TargetName = clip(in.Image)
	ref, err := imageRef(owner(ctx), importedName+in.Image)
	if err != nil {
		return ImageOut{}, err
	}
	f, err := os.CreateTemp(h.cfg.Scratch, "import-*.tar")
	if err != nil {
		return ImageOut{}, err
	}
	defer os.Remove(f.Name())
	n, err := io.Copy(f, io.LimitReader(in.File, maxImage+1))
	if closed := f.Close(); err == nil {
		err = closed
	}
	switch {
	case err != nil:
		return ImageOut{}, op.Errorf(op.Invalid, "the archive could not be kept: %w", err)
	case n > maxImage:
		return ImageOut{}, op.Errorf(op.TooLarge, "the archive is larger than %d bytes", int64(maxImage))
	}
	if err := p.Import(ctx, f.Name(), ref); err != nil {
		return ImageOut{}, op.Errorf(op.Invalid, "the archive holds no image that could be kept: %w", err)
	}
	for _, i := range p.Imported(ref) {
		if out := imageOut(i); out.Name == importedName+in.Image {
			return out, nil
		}
	}
	return ImageOut{}, fmt.Errorf("image %s is not there after its import", ref)
}

func imageOut(i ImageInfo) ImageOut {
	name, _, _ := strings.Cut(imageName(i.Ref), ":")
	return ImageOut{name, i.Size, i.Created.UTC()}
}

// ListImages shows the caller's.
func (h *Hub) ListImages(ctx context.Context, _ None) ([]ImageOut, error) {
	p, err := h.images()
	if err != nil {
		return nil, err
	}
	out := []ImageOut{}
	for _, i := range p.Imported(importedPrefix(owner(ctx))) {
		out = append(out, imageOut(i))
	}
	return out, nil
}

// DeleteImageIn names an image.
type DeleteImageIn struct {
	Image string `path:"image" doc:"Name of the image"`
}

// DeleteImage forgets one.
func (h *Hub) DeleteImage(ctx context.Context, in DeleteImageIn) (string, error) {
	p, err := h.images()
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = clip(in.Image)
	ref, err := imageRef(owner(ctx), importedName+strings.TrimPrefix(in.Image, importedName))
	if err != nil {
		return "", err
	}
	if err := p.RemoveImage(ref); err != nil {
		return "", h.diskError("image", in.Image, "", err)
	}
	return "Image " + in.Image + " deleted successfully", nil
}
