package guide

import (
	"bytes"
	"fmt"
	"html"
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

// writePicture writes a drawing as a part of the page. It fails for other images: every file that the page loads
// would be another request.
func (c *chapter) writePicture(w *bytes.Buffer, docs fs.FS, image *ast.Image) error {
	name := path.Join(path.Dir(c.path), string(image.Destination))
	if path.Ext(name) != ".svg" {
		return fmt.Errorf("picture %s: use an SVG", image.Destination)
	}
	drawing, err := fs.ReadFile(docs, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "<figure class=\"picture\" role=\"img\" aria-label=\"%s\">\n%s</figure>\n",
		html.EscapeString(plain(image, c.source)), drawingStyle.ReplaceAll(drawing, nil))
	return nil
}
