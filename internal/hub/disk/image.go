package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/imageref"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// maxImage bounds an archive.
const maxImage = 32 << 30

// ImageOps lists the operations on imported images.
func (s *Service) ImageOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "image_import", Route: "POST /api/v1/image/{image}", Tag: "image", MaxBody: -1, NoTool: true,
			Doc: "Import an image from a tar archive, as written by export or docker save. Create sandboxes from it as imported/NAME."}, s.ImportImage),
		op.New(op.Spec{Name: "image_list", Access: op.AccessRead, Tool: "listImages", Route: "GET /api/v1/image", Tag: "image", ReadOnly: true,
			Columns: []string{"name", "size", "created"},
			Doc:     "List imported images."}, s.ListImages),
		op.New(op.Spec{Name: "image_delete", Tool: "deleteImage", Route: "DELETE /api/v1/image/{image}", Tag: "image", Verb: "image rm", Destructive: true,
			Doc: "Delete an imported image. Sandboxes created from it are not affected."}, s.DeleteImage),
	}
}

func (s *Service) importer() (sandbox.Importer, error) {
	p, ok := s.Provider.(sandbox.Importer)
	if !ok || !s.Provider.Abilities().Image {
		return nil, op.Errorf(op.Invalid, "provider %s stores no images here", s.Provider.Abilities().Provider)
	}
	return p, nil
}

// ImportImageIn is an image to import.
type ImportImageIn struct {
	Image string   `path:"image" doc:"Name of the image: lower-case letters, digits and -, at most 50"`
	File  *op.File `form:"file" doc:"The archive"`
}

// ImageOut is an imported image.
type ImageOut struct {
	Name    string    `json:"name" doc:"Image to create sandboxes from"`
	Size    int64     `json:"size" doc:"Bytes of its files"`
	Created time.Time `json:"created"`
}

// ImportImage imports an image.
func (s *Service) ImportImage(ctx context.Context, in ImportImageIn) (ImageOut, error) {
	p, err := s.importer()
	if err != nil {
		return ImageOut{}, err
	}
	op.CallOf(ctx).TargetName = fault.Clip(in.Image)
	owner := caller.Owner(ctx)
	ref, err := imageref.Resolve(owner, imageref.Imported+in.Image)
	if err != nil {
		return ImageOut{}, err
	}
	room := &room{reserve: func(size int64) (func(), error) { return s.Quota.ReserveDisk(ctx, owner, size) }}
	defer room.release()
	f, err := os.CreateTemp(s.Scratch, "import-*.tar")
	if err != nil {
		return ImageOut{}, err
	}
	defer os.Remove(f.Name())
	n, err := io.Copy(f, io.TeeReader(io.LimitReader(in.File, maxImage+1), room))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if refused, ok := op.AsError(err); ok {
		return ImageOut{}, refused
	}
	switch {
	case err != nil:
		return ImageOut{}, op.Errorf(op.Invalid, "cannot store the archive: %w", err)
	case n > maxImage:
		return ImageOut{}, op.Errorf(op.TooLarge, "the archive is larger than %d bytes", int64(maxImage))
	}
	if err := p.ImportImage(ctx, f.Name(), ref); err != nil {
		return ImageOut{}, op.Errorf(op.Invalid, "cannot import an image from the archive: %w", err)
	}
	room.release()
	list, err := s.chargeImages(ctx, p, owner)
	if err != nil {
		// It was smaller as an archive.
		return ImageOut{}, errors.Join(err, p.DeleteImage(context.WithoutCancel(ctx), ref))
	}
	for _, i := range list {
		if out := imageOut(i); out.Name == imageref.Imported+in.Image {
			return out, nil
		}
	}
	return ImageOut{}, fmt.Errorf("image %s is missing after its import", ref)
}

// chargeImages counts all images of an owner against the disk limit.
func (s *Service) chargeImages(ctx context.Context, p sandbox.Importer, owner string) ([]sandbox.ImageInfo, error) {
	s.counting.Lock()
	defer s.counting.Unlock()
	list, size, err := imagesOf(ctx, p, owner)
	if err != nil {
		return nil, err
	}
	return list, s.Quota.CountImages(owner, size)
}

func imagesOf(ctx context.Context, p sandbox.Importer, owner string) (list []sandbox.ImageInfo, size int64, err error) {
	list, err = p.Images(ctx, imageref.Prefix(owner))
	for _, i := range list {
		size += i.Size
	}
	return list, size, err
}

// ImagesSize is what the images that an owner imported take, in bytes.
func ImagesSize(ctx context.Context, p sandbox.Provider, owner string) (int64, error) {
	importer, ok := p.(sandbox.Importer)
	if !ok || !p.Abilities().Image {
		return 0, nil
	}
	_, size, err := imagesOf(ctx, importer, owner)
	return size, err
}

// roomStep is how much room is reserved at a time.
const roomStep = 4 << 20

// room reserves disk space for what is written to it.
type room struct {
	reserve func(size int64) (release func(), err error)
	held    []func()
	left    int64
}

func (r *room) Write(b []byte) (int, error) {
	for r.left < int64(len(b)) {
		release, err := r.reserve(roomStep)
		if err != nil {
			return 0, err
		}
		r.held, r.left = append(r.held, release), r.left+roomStep
	}
	r.left -= int64(len(b))
	return len(b), nil
}

// release gives the space back. It is idempotent.
func (r *room) release() {
	for _, release := range r.held {
		release()
	}
	r.held = nil
}

func imageOut(i sandbox.ImageInfo) ImageOut {
	name, _, _ := strings.Cut(imageref.Name(i.Ref), ":")
	return ImageOut{name, i.Size, i.Created.UTC()}
}

// ListImages lists the caller's images.
func (s *Service) ListImages(ctx context.Context, _ op.None) ([]ImageOut, error) {
	p, err := s.importer()
	if err != nil {
		return nil, err
	}
	list, err := p.Images(ctx, imageref.Prefix(caller.Owner(ctx)))
	if err != nil {
		return nil, err
	}
	out := []ImageOut{}
	for _, i := range list {
		out = append(out, imageOut(i))
	}
	return out, nil
}

// DeleteImageIn names an image.
type DeleteImageIn struct {
	Image string `path:"image" doc:"Name of the image"`
}

// DeleteImage deletes an image.
func (s *Service) DeleteImage(ctx context.Context, in DeleteImageIn) (string, error) {
	p, err := s.importer()
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = fault.Clip(in.Image)
	ref, err := imageref.Resolve(caller.Owner(ctx), imageref.Imported+strings.TrimPrefix(in.Image, imageref.Imported))
	if err != nil {
		return "", err
	}
	if err := p.DeleteImage(ctx, ref); err != nil {
		return "", opError("image", in.Image, "", err)
	}
	if _, err := s.chargeImages(ctx, p, caller.Owner(ctx)); err != nil {
		return "", err
	}
	return "Image " + in.Image + " deleted successfully", nil
}
