package convert

import (
	"archive/zip"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// maxImages and maxImageBytes bound what is extracted from one document, because a small
	// archive can unpack to any size.
	maxImages     = 200
	maxImageBytes = 256 << 20
	// maxImagePages is the last page of a PDF whose images are extracted.
	maxImagePages = "500"
)

// ImagesIn names a document and a folder.
type ImagesIn struct {
	URI    string  `json:"uri" doc:"http:, https:, file: or data: URI, or a path"`
	Folder *string `json:"folder" doc:"Folder to save the images in; it is created. Default: a new folder in the temporary directory"`
}

// ImagesOut lists the saved images.
type ImagesOut struct {
	Folder    string  `json:"folder" doc:"Absolute path of the folder"`
	Images    []Image `json:"images" doc:"Images in the order of the document"`
	Truncated bool    `json:"truncated" doc:"Whether the document contains more images"`
}

// Image is a saved image.
type Image struct {
	Path string `json:"path" doc:"Absolute path"`
	Type string `json:"mime_type"`
	Size int64  `json:"size" doc:"Size in bytes"`
}

// imageTypes are the extensions of images in documents.
var imageTypes = []string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".svg", ".emf", ".wmf", ".jp2"}

// ExtractImages saves the images that a document contains.
func (s *Service) ExtractImages(ctx context.Context, in ImagesIn) (ImagesOut, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	release, err := s.acquire(ctx)
	if err != nil {
		return ImagesOut{}, err
	}
	defer release()
	src, err := s.open(ctx, strings.TrimSpace(in.URI))
	if err != nil {
		return ImagesOut{}, s.explainTimeout(ctx, err)
	}
	defer src.close()
	kind, err := src.kind()
	if err != nil {
		return ImagesOut{}, pyerr.From("extract images of", src.path, err)
	}
	if !slices.Contains([]string{".pdf", ".docx", ".pptx", ".xlsx", ".epub"}, kind) {
		return ImagesOut{}, op.Errorf(op.Invalid, "images cannot be extracted from %s; use a PDF, DOCX, PPTX, XLSX or EPUB", src.title())
	}
	out := ImagesOut{Images: []Image{}}
	if out.Folder, err = s.imageFolder(in.Folder); err != nil {
		return out, err
	}
	if kind == ".pdf" {
		err = s.pdfImages(ctx, src.path, &out)
	} else {
		err = out.unpack(src.path)
	}
	if err != nil && in.Folder == nil {
		os.RemoveAll(out.Folder)
	}
	return out, s.explainTimeout(ctx, err)
}

// imageFolder creates the folder of the images.
func (s *Service) imageFolder(folder *string) (string, error) {
	if folder == nil {
		return os.MkdirTemp("", "images-*")
	}
	full, err := s.base.Resolve(*folder)
	if err != nil {
		return "", pyerr.From("extract images to", *folder, err)
	}
	if err := os.MkdirAll(full, 0o755); err != nil {
		return "", pyerr.From("extract images to", full, err)
	}
	return full, nil
}

// pdfImages saves the images of a PDF in a separate folder first, because their names are not known.
func (s *Service) pdfImages(ctx context.Context, file string, out *ImagesOut) error {
	dir, err := os.MkdirTemp(out.Folder, ".pdf-*")
	if err != nil {
		return pyerr.From("extract images to", out.Folder, err)
	}
	defer os.RemoveAll(dir)
	res, err := s.cfg.Runner.Run(ctx, proc.Command{Path: "pdfimages", Limit: 64 << 10,
		Args: []string{"-all", "-l", maxImagePages, "--", file, filepath.Join(dir, "image")}})
	switch {
	case errors.Is(err, proc.ErrNotFound):
		return op.Errorf(op.Unavailable, "reading PDF requires pdfimages, which is not installed; install the Debian package poppler-utils")
	case err != nil:
		return fmt.Errorf("run pdfimages: %w", err)
	case res.Exit.Code != 0:
		return op.Errorf(op.Invalid, "the PDF cannot be read: %s", strings.Join(strings.Fields(string(res.Stderr)), " "))
	}
	found, err := os.ReadDir(dir) // sorted by name, which contains the number
	if err != nil {
		return err
	}
	for _, f := range found {
		data, err := os.Open(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		err = out.save(filepath.Ext(f.Name()), data)
		data.Close()
		if err != nil || out.Truncated {
			return err
		}
	}
	return nil
}

// unpack saves the images of a document that is a zip archive.
func (out *ImagesOut) unpack(file string) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return op.Errorf(op.Invalid, "the document is damaged or encrypted: %w", err)
	}
	defer z.Close()
	images := slices.DeleteFunc(slices.Clone(z.File), func(f *zip.File) bool {
		return !slices.Contains(imageTypes, strings.ToLower(path.Ext(f.Name)))
	})
	stem := func(f *zip.File) string { return strings.TrimSuffix(f.Name, path.Ext(f.Name)) }
	slices.SortStableFunc(images, func(a, b *zip.File) int { // image2 before image10
		return cmp.Or(cmp.Compare(len(stem(a)), len(stem(b))), strings.Compare(stem(a), stem(b)))
	})
	for _, f := range images {
		data, err := f.Open()
		if err != nil {
			return op.Errorf(op.Invalid, "the document is damaged: %w", err)
		}
		err = out.save(strings.ToLower(path.Ext(f.Name)), data)
		data.Close()
		if err != nil || out.Truncated {
			return err
		}
	}
	return nil
}

// save stores an image under a new name. Names in documents are not trusted.
func (out *ImagesOut) save(ext string, data io.Reader) error {
	left := int64(maxImageBytes)
	for _, i := range out.Images {
		left -= i.Size
	}
	if len(out.Images) == maxImages || left <= 0 {
		out.Truncated = true
		return nil
	}
	name := filepath.Join(out.Folder, fmt.Sprintf("image-%03d%s", len(out.Images)+1, ext))
	f, err := os.Create(name)
	if err != nil {
		return pyerr.From("extract images to", name, err)
	}
	n, err := io.Copy(f, io.LimitReader(data, left+1))
	if err = errors.Join(err, f.Close()); err != nil || n > left {
		os.Remove(name)
		out.Truncated = n > left
		if out.Truncated {
			return nil
		}
		return op.Errorf(op.Invalid, "an image of the document cannot be saved: %w", err)
	}
	out.Images = append(out.Images, Image{name, cmp.Or(mime.TypeByExtension(ext), "application/octet-stream"), n})
	return nil
}
