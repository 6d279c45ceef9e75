package toolcatalog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// maxPictureName is the maximum length of the escaped name of a picture, which is a file name.
const maxPictureName = 200

// pictureType is the extension of the files in an album.
const pictureType = ".png"

// Album stores the newest pictures under names that a model has chosen. A picture replaces the
// previous one with its name.
type Album struct{ shelf *Shelf }

// NewAlbum returns an album in a folder, which is created on first use.
func NewAlbum(dir string) *Album { return &Album{NewShelf(dir)} }

// file returns the path of a picture. Slashes are escaped, so the path is always in the folder.
func (a *Album) file(name string) string {
	return filepath.Join(a.shelf.dir, "-"+url.PathEscape(name)+pictureType)
}

func (a *Album) put(name string, data []byte) error {
	if name == "" || len(url.PathEscape(name)) > maxPictureName {
		return op.Errorf(op.Invalid, "argument %q: pass a short name, such as %q", "name", "login")
	}
	path, _, err := a.shelf.Put("picture", bytes.NewReader(data))
	if err != nil {
		return err
	}
	if err := os.Rename(path, a.file(name)); err != nil {
		return fmt.Errorf("cannot store the picture %q: %w", name, errors.Join(err, os.Remove(path)))
	}
	return nil
}

// names lists the pictures.
func (a *Album) names() []string {
	entries, _ := os.ReadDir(a.shelf.dir) // it may not exist yet
	var all []string
	for _, e := range entries {
		escaped, ok := strings.CutSuffix(strings.TrimPrefix(e.Name(), "-"), pictureType)
		if name, err := url.PathUnescape(escaped); ok && err == nil && strings.HasPrefix(e.Name(), "-") {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// read returns a picture of at most limit bytes. A larger picture is reduced.
func (a *Album) read(name string, limit int64) (toolset.Image, error) {
	data, err := os.ReadFile(a.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return toolset.Image{}, op.Errorf(op.NotFound, "no screenshot with the name %q; take one with browser_screenshot", name)
	}
	if err != nil {
		return toolset.Image{}, fmt.Errorf("cannot read the picture %q: %w", name, err)
	}
	picture := toolset.Shrink(toolset.Image{Type: "image/png", Data: data}, int(limit))
	if int64(len(picture.Data)) > limit {
		return toolset.Image{}, op.Errorf(op.TooLarge, "the screenshot %q is larger than %d bytes; take a screenshot of an element", name, limit)
	}
	return picture, nil
}
