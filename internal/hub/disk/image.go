package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// maxImage is the maximum size of an archive.
const maxImage = 32 << 30

// ImageOps lists the operations on imported images.
func (s *Service) ImageOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "image_import", Route: "POST /api/v1/image/{image}", Tag: "image", MaxBody: -1, NoTool: true,
			Doc: "Import an image from a tar archive, as written by export or docker save. Create sandboxes from " +
				"it as imported/NAME."}, s.ImportImage),
		op.New(op.Spec{Name: "image_list", Access: op.AccessRead, Tool: "listImages", Route: "GET /api/v1/image", Tag: "image", ReadOnly: true,
			Columns: []string{"name", "size", "created"},
			Doc:     "List imported images."}, s.ListImages),
		op.New(op.Spec{Name: "image_delete", Tool: "deleteImage", Route: "DELETE /api/v1/image/{image}", Tag: "image",
			Verb: "image rm", Destructive: true,
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

// ImportImageIn is an image archive.
type ImportImageIn struct {
	Image string   `path:"image" doc:"Name of the image: lower-case letters, digits and -, at most 50"`
	File  *op.File `form:"file" doc:"The archive"`
}

// ImageOut is an imported image.
type ImageOut struct {
	Name    string    `json:"name" doc:"Name for the field image of new sandboxes"`
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
	ref, err := naming.ResolveImage(owner, naming.Imported+in.Image)
	if err != nil {
		return ImageOut{}, err
	}
	room := s.Quota.OpenRoom(ctx, owner)
	defer room.Release()
	path, err := s.receive(in.File, room)
	if err != nil {
		return ImageOut{}, err
	}
	defer os.Remove(path)
	// The quota of the archive covers its content as well: the archive is deleted after the import.
	room.Reuse()
	if err := p.ImportImage(sandbox.WithBudget(ctx, room.Budget), path, ref); err != nil {
		return ImageOut{}, importError(err)
	}
	if err := s.Quota.CountImages(ctx, owner, room); err != nil {
		// The provider does not check budgets, and the archive was smaller than its content.
		return ImageOut{}, errors.Join(err, p.DeleteImage(context.WithoutCancel(ctx), ref))
	}
	list, err := p.Images(ctx, naming.ImagePrefix(owner))
	if err != nil {
		return ImageOut{}, fault.FromProvider("", err)
	}
	for _, i := range list {
		if out := imageOut(i); out.Name == naming.Imported+in.Image {
			return out, nil
		}
	}
	return ImageOut{}, fmt.Errorf("image %s is missing after its import", ref)
}

// receive writes an uploaded archive to a file. The caller removes the file.
func (s *Service) receive(in io.Reader, room *usage.Room) (path string, err error) {
	f, err := os.CreateTemp(s.Scratch, "import-*.tar")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	n, err := io.Copy(f, io.TeeReader(io.LimitReader(in, maxImage+1), room))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if refused, ok := op.AsError(err); ok {
		return "", refused
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "", op.Errorf(op.Unavailable, "cannot store the archive: the hub's disk is full; the operator must free space")
	case err != nil:
		return "", fault.Show(op.Invalid, "cannot store the archive: ", err)
	case n > maxImage:
		return "", op.Errorf(op.TooLarge, "the archive is larger than %d bytes", int64(maxImage))
	}
	return f.Name(), nil
}

// importError explains why an archive was not imported.
func importError(err error) error {
	explained := fault.FromProvider("", err)
	if refused, ok := op.AsError(explained); ok && refused.Code != op.Invalid {
		return refused
	}
	return fault.Show(op.Invalid, "cannot import an image from the archive: ", err)
}

func imagesOf(ctx context.Context, p sandbox.Importer, owner string) (size int64, err error) {
	list, err := p.Images(ctx, naming.ImagePrefix(owner))
	for _, i := range list {
		size += i.Size
	}
	return size, err
}

// ImagesSize is the size in bytes of the images that an owner imported and, if the provider reports
// them, of those on which its sandboxes and snapshots are based.
func ImagesSize(ctx context.Context, p sandbox.Provider, owner string) (int64, error) {
	importer, ok := p.(sandbox.Importer)
	if !ok || !p.Abilities().Image {
		return 0, nil
	}
	if c, ok := p.(sandbox.ImageCounter); ok {
		if size, err := c.ImageUse(ctx, owner, naming.ImagePrefix(owner)); !errors.Is(err, sandbox.ErrUnsupported) {
			return size, err
		}
	}
	return imagesOf(ctx, importer, owner)
}

func imageOut(i sandbox.ImageInfo) ImageOut {
	name, _, _ := strings.Cut(naming.ImageName(i.Ref), ":")
	return ImageOut{name, i.Size, i.Created.UTC()}
}

// ListImages lists the caller's images.
func (s *Service) ListImages(ctx context.Context, _ op.None) ([]ImageOut, error) {
	p, err := s.importer()
	if err != nil {
		return nil, err
	}
	list, err := p.Images(ctx, naming.ImagePrefix(caller.Owner(ctx)))
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
	ref, err := naming.ResolveImage(caller.Owner(ctx), naming.Imported+strings.TrimPrefix(in.Image, naming.Imported))
	if err != nil {
		return "", err
	}
	if err := p.DeleteImage(ctx, ref); err != nil {
		return "", opError("image", in.Image, "", err)
	}
	if err := s.Quota.CountImages(ctx, caller.Owner(ctx), nil); err != nil {
		return "", err
	}
	return "Image " + in.Image + " deleted successfully", nil
}
