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

// maxPictureName is how many bytes the escaped name of a picture may have: it is the name
// of a file.
const maxPictureName = 200

// pictureType is the ending of the files in an album.
const pictureType = ".png"

// Album keeps pictures under the names that a model gave them, the newest ones. A picture
// replaces the previous one of its name.
type Album struct{ shelf *Shelf }

// NewAlbum returns an album in a folder, which is created when it is needed.
func NewAlbum(dir string) *Album { return &Album{NewShelf(dir)} }

// file returns the path of a picture. A name cannot leave the folder: slashes are escaped.
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
		return fmt.Errorf("keep the picture %q: %w", name, errors.Join(err, os.Remove(path)))
	}
	return nil
}

// names lists the pictures.
func (a *Album) names() []string {
	entries, _ := os.ReadDir(a.shelf.dir) // none yet
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

// read returns a picture of at most limit bytes; a larger one is reduced.
func (a *Album) read(name string, limit int64) (toolset.Image, error) {
	data, err := os.ReadFile(a.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return toolset.Image{}, op.Errorf(op.NotFound, "no screenshot has the name %q; take one with browser_screenshot", name)
	}
	if err != nil {
		return toolset.Image{}, fmt.Errorf("read the picture %q: %w", name, err)
	}
	picture := toolset.Shrink(toolset.Image{Type: "image/png", Data: data}, int(limit))
	if int64(len(picture.Data)) > limit {
		return toolset.Image{}, op.Errorf(op.TooLarge, "the screenshot %q has more than %d bytes; take one of an element", name, limit)
	}
	return picture, nil
}
