package guide

import (
	"bytes"
	"fmt"
	"html"
	"image/png"
	"io/fs"
	"path"
	"regexp"

	"github.com/yuin/goldmark/ast"
)

// pictureOf returns the image of a paragraph that consists of one.
func pictureOf(n ast.Node) *ast.Image {
	if n.Kind() != ast.KindParagraph || n.ChildCount() != 1 {
		return nil
	}
	image, _ := n.FirstChild().(*ast.Image)
	return image
}

// Drawings have colors for programs that show them alone; the page has others, for its theme.
var drawingStyle = regexp.MustCompile(`(?s)\s*<style>.*?</style>`)

// maxPicture is the maximum size of a screenshot: both programs contain it.
const maxPicture = 100 << 10

// writePicture writes a drawing as a part of the page, and a screenshot as an image that the browser loads when it comes into
// view. It fails for other images.
func (c *chapter) writePicture(w *bytes.Buffer, docs fs.FS, image *ast.Image) error {
	name := path.Join(path.Dir(c.path), string(image.Destination))
	text := html.EscapeString(plain(image, c.source))
	switch path.Ext(name) {
	case ".svg":
		drawing, err := fs.ReadFile(docs, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "<figure class=\"picture\" role=\"img\" aria-label=\"%s\">\n%s</figure>\n",
			text, drawingStyle.ReplaceAll(drawing, nil))
		return nil
	case ".png":
		data, err := readScreenshot(docs, name)
		if err != nil {
			return err
		}
		size, err := png.DecodeConfig(bytes.NewReader(data))
		if err != nil {
			return fmt.Errorf("picture %s: %w", image.Destination, err)
		}
		fmt.Fprintf(w, `<figure class="picture"><img src="guide/pictures/%s" alt="%s" width="%d" height="%d" loading="lazy"></figure>`+"\n",
			path.Base(name), text, size.Width, size.Height)
		return nil
	}
	return fmt.Errorf("picture %s: use an SVG or a PNG", image.Destination)
}

// readScreenshot reads a PNG of docs/pictures.
func readScreenshot(docs fs.FS, name string) ([]byte, error) {
	if path.Dir(name) != "pictures" {
		return nil, fmt.Errorf("picture %s: move it to docs/pictures", name)
	}
	data, err := fs.ReadFile(docs, name)
	if err == nil && len(data) > maxPicture {
		err = fmt.Errorf("picture %s: %d bytes, more than %d; use fewer colors", name, len(data), maxPicture)
	}
	return data, err
}

var screenshot = regexp.MustCompile(`<img src="guide/pictures/([^"]+)"`)

// Screenshots returns the images that the rendered page loads, by name.
func Screenshots(docs fs.FS, page []byte) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, found := range screenshot.FindAllSubmatch(page, -1) {
		name := string(found[1])
		data, err := readScreenshot(docs, path.Join("pictures", name))
		if err != nil {
			return nil, err
		}
		out[name] = data
	}
	return out, nil
}
